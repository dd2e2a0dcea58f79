"""Pretrained weights by name, file or address, and the preprocessing that they were trained with."""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torchvision.models import get_model_weights  # type: ignore[attr-defined]  # not in its __all__

from project.engine.errors import UserError, first_sentence, printable
from project.engine.preprocessing import Preprocessing
from project.engine.run.checkpoint import ABOUT, read_checkpoint, read_weights
from project.engine.run.download import fetch_file, one_at_a_time
from project.engine.run.progress import note
from project.model.networks import (
    INCEPTIONS,
    TIMM,
    current_names,
    import_timm,
    require_known,
    timm_name,
    torchvision_names,
)

_HASH = re.compile(r"-([0-9a-f]{8,})\.[^.]+$")  # torch.hub's convention for names of files
_FITS = {"center": "crop", "squash": "squash", "border": "pad"}  # what timm calls them


class Pretrained(NamedTuple):
    """Weights that were trained elsewhere.

    Attributes:
        source: What to call them.
        weights: Reads them, by the network's names, and downloads them before where they are not in torch's cache.
        preprocessing: How images became input where they were trained; None where that is not known.
    """

    source: str
    weights: Callable[[], Mapping[str, Tensor]]
    preprocessing: Callable[[], Preprocessing | None]


def find_weights(arch: str, weights: str) -> Pretrained:
    """Finds pretrained weights.

    Args:
        arch: The network, as :func:`project.model.networks.build_network` takes it.
        weights: ``DEFAULT``, or a name that torchvision or timm has for weights of this network; a file; or an address.

    Raises:
        UserError: There are no such weights.
    """
    if weights.startswith(("http://", "https://")):
        return _in_file(_place_of(weights), weights, url=weights)
    names = _names(arch)
    if weights in names:
        return _of_timm(arch, weights) if arch.startswith(TIMM) else _of_torchvision(arch, weights)
    if not Path(weights).expanduser().exists() and not re.search("[/.]", weights):
        known = f"it has {', '.join(names)}" if names else "it has none by name"
        raise UserError(
            f"--model.weights: there is no file '{printable(weights)}', and {printable(arch)} has no weights of that name;"
            f" {known}"
        )
    return _in_file(Path(weights).expanduser(), weights)


def hub_folder() -> Path:
    """Where torch keeps weights that it has downloaded."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def _place_of(url: str) -> Path:
    """Where the file of an address is kept: where torch would, if its name tells it from all others.

    Otherwise in a folder of the address's own, as many files are called ``best.ckpt``.
    """
    name = Path(urlsplit(url).path).name or "weights"
    return hub_folder() / name if _HASH.search(name) else hub_folder() / sha256(url.encode()).hexdigest()[:16] / name


def _names(arch: str) -> list[str]:
    """The names of a network's weights."""
    if arch in torchvision_names():
        return ["DEFAULT", *(member.name for member in get_model_weights(arch))]
    if arch.startswith(TIMM):
        tags = import_timm().list_pretrained(f"{timm_name(arch)}.*")
        return ["DEFAULT", *(tag.partition(".")[2] for tag in tags)] if tags else []
    require_known(arch)
    return []


def _in_file(path: Path, source: str, url: str | None = None) -> Pretrained:
    def weights() -> Mapping[str, Tensor]:
        _fetch(url, path)
        return read_weights(path)

    def preprocessing() -> Preprocessing | None:
        _fetch(url, path)
        try:
            found: Preprocessing = read_checkpoint(path)[ABOUT]["preprocessing"]
        except UserError:  # it is not a checkpoint of ours, or will be refused when its weights are read
            return None
        return found

    return Pretrained(source, weights, preprocessing)


def _fetch(url: str | None, path: Path) -> None:
    digest = _HASH.search(path.name)
    if url is not None:
        fetch_file(url, path, digest[1] if digest else "")


def _of_torchvision(arch: str, name: str) -> Pretrained:
    entry: Any = get_model_weights(arch)[name]
    path = hub_folder() / Path(urlsplit(entry.url).path).name

    def weights() -> Mapping[str, Tensor]:
        _fetch(entry.url, path)
        return current_names(read_weights(path))

    def preprocessing() -> Preprocessing:
        preset = entry.transforms()
        half = [0.5] * 3  # which torchvision's own network makes of other numbers
        mean, std = (half, half) if arch in INCEPTIONS else (list(preset.mean), list(preset.std))
        return Preprocessing(
            resize=preset.resize_size[0],
            crop=preset.crop_size[0],
            fit="crop",
            interpolation=preset.interpolation.value,
            mean=mean,
            std=std,
        )

    return Pretrained(f"{entry.name} of {arch}", weights, preprocessing)


def _of_timm(arch: str, tag: str) -> Pretrained:
    timm = import_timm()
    name = timm_name(arch) if tag == "DEFAULT" else f"{timm_name(arch)}.{tag}"
    entry = timm.get_pretrained_cfg(name)

    def weights() -> Mapping[str, Tensor]:
        place, hub = entry.hf_hub_id or entry.url, import_module("huggingface_hub")
        cache = hub.constants.HF_HUB_CACHE if entry.hf_hub_id else hub_folder()
        hub.utils.logging.set_verbosity_error()  # it says of each of many attempts that it failed
        note(f"fetching {place}, unless it is in {cache}")
        try:
            with one_at_a_time(hub_folder() / f"timm-{name}"):
                network = timm.create_model(name, pretrained=True)
        except Exception as error:  # of the hub, of the network, of the file
            raise UserError(
                f"--model.weights: '{place}' is not in '{cache}' and cannot be fetched ({first_sentence(error)}); connect to"
                " the network, or fetch its file elsewhere and name it in --model.weights"
            ) from error
        found: Mapping[str, Tensor] = network.state_dict()
        return found

    def preprocessing() -> Preprocessing:
        crop = entry.input_size[1]
        return Preprocessing(
            resize=int(crop / entry.crop_pct),
            crop=crop,
            fit=_FITS[entry.crop_mode],  # type: ignore[typeddict-item]  # one of the three
            interpolation=entry.interpolation,
            mean=list(entry.mean),
            std=list(entry.std),
        )

    return Pretrained(f"{entry.tag} of {arch}", weights, preprocessing)
