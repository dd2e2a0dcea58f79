"""Pretrained weights by name, file or address, and the preprocessing that they were trained with."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torchvision.models import get_model_weights  # type: ignore[attr-defined]  # not in its __all__

from project.engine.errors import UserError, first_sentence, listed, printable
from project.engine.preprocessing import Preprocessing, bands_of
from project.engine.run.checkpoint import ABOUT, read_checkpoint, read_weights
from project.engine.run.files import fetch_file
from project.engine.run.progress import note
from project.engine.training.fitting import require_finite
from project.model.networks import (
    INCEPTIONS,
    TIMM,
    find_builder,
    head,
    import_timm,
    timm_name,
    torchvision_names,
)

_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")
_FITS: Any = {"center": "crop", "squash": "squash", "border": "pad"}  # what timm calls them
_HASH = re.compile(r"-([0-9a-f]{8,})\.[^.]+$")  # torch.hub's convention for names of files
_OLD_DENSENET = re.compile(
    r"(denselayer\d+\.(?:norm|conv))\.(\d)\."
)  # names of torchvision's first release
_WRAPPER = re.compile(
    r"^(module|_orig_mod|network)\."
)  # of DistributedDataParallel, torch.compile and ours


class Pretrained(NamedTuple):
    """Weights that were trained elsewhere, and are downloaded when they are first read; None is unknown preprocessing."""

    source: str
    weights: Callable[[], Mapping[str, Tensor]]
    preprocessing: Callable[[], Preprocessing | None]


def find_weights(arch: str, weights: str) -> Pretrained:
    """Finds a network's weights by the name that torchvision or timm has for them, or in a file, or at an address."""
    if weights.startswith(("http://", "https://")):
        name = Path(urlsplit(weights).path).name or "weights"
        is_unique = _HASH.search(name)  # unlike the many files that are called best.ckpt
        folder = (
            _hub_folder()
            if is_unique
            else _hub_folder() / sha256(weights.encode()).hexdigest()[:16]
        )
        return _in_file(folder / name, weights, url=weights)
    names: list[str] = []
    if arch in torchvision_names():
        names = sorted(get_model_weights(arch).__members__)
    elif arch.startswith(TIMM) and (
        tagged := import_timm().list_pretrained(f"{timm_name(arch)}.*")
    ):
        names = ["DEFAULT", *(name.partition(".")[2] for name in tagged)]
    if weights in names:
        return _of_timm(arch, weights) if arch.startswith(TIMM) else _of_torchvision(arch, weights)
    path = Path(weights).expanduser()
    if not path.exists() and not re.search("[/.]", weights):
        find_builder(arch)
        raise UserError(
            f"--model.weights: there is no file '{printable(weights)}', and {printable(arch)} has no weights of that name;"
            f" it has {listed(names)}"
        )
    return _in_file(path, weights)


def _hub_folder() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


def _in_file(path: Path, source: str, url: str | None = None) -> Pretrained:
    def fetched() -> Path:
        if url is not None:
            digest = _HASH.search(path.name)
            fetch_file(url, path, digest[1] if digest else "")
        return path

    def preprocessing() -> Preprocessing | None:
        file = fetched()
        with suppress(
            UserError
        ):  # it is not a checkpoint of ours, or will be refused when its weights are read
            return cast(Preprocessing, read_checkpoint(file)[ABOUT]["preprocessing"])
        return None

    return Pretrained(source, lambda: read_weights(fetched()), preprocessing)


def _of_torchvision(arch: str, name: str) -> Pretrained:
    entry: Any = get_model_weights(arch)[name]
    preset = entry.transforms()
    # torchvision's inceptions turn other numbers into these
    mean, std = [[0.5] * 3] * 2 if arch in INCEPTIONS else [preset.mean, preset.std]
    preprocessing = Preprocessing(
        resize=preset.resize_size[0],
        crop=preset.crop_size[0],
        fit="crop",
        interpolation=preset.interpolation.value,
        mean=list(mean),
        std=list(std),
    )
    file = _in_file(
        _hub_folder() / Path(urlsplit(entry.url).path).name, f"{entry.name} of {arch}", entry.url
    )
    return file._replace(preprocessing=lambda: preprocessing)


def _of_timm(arch: str, tag: str) -> Pretrained:
    timm = import_timm()
    name = timm_name(arch) if tag == "DEFAULT" else f"{timm_name(arch)}.{tag}"
    entry = timm.get_pretrained_cfg(name)

    def weights() -> Mapping[str, Tensor]:
        place = entry.hf_hub_id or entry.url
        import_module(
            "huggingface_hub"
        ).utils.logging.set_verbosity_error()  # it reports each of many failed attempts
        note(f"fetching {place}, unless it is in the cache")
        try:
            return cast(Mapping[str, Tensor], timm.create_model(name, pretrained=True).state_dict())
        except Exception as error:  # of the hub, of the network, of the file
            raise UserError(
                f"--model.weights: '{place}' is not in the cache and cannot be fetched ({first_sentence(error)}); connect to"
                " the network, or fetch its file elsewhere and name it in --model.weights"
            ) from error

    crop = entry.input_size[1]
    preprocessing = Preprocessing(
        resize=int(crop / entry.crop_pct),
        crop=crop,
        fit=_FITS[entry.crop_mode],
        interpolation=entry.interpolation,
        mean=list(entry.mean),
        std=list(entry.std),
    )
    return Pretrained(f"{entry.tag} of {arch}", weights, lambda: preprocessing)


def start_from(network: nn.Module, arch: str, weights: str, num_classes: int) -> None:
    """Copies pretrained weights into a network, and reports a new head."""
    found = find_weights(arch, weights)
    if left_out := load_weights(network, found.weights(), found.source, num_classes):
        new = f"a new head for {num_classes} classes ({', '.join(left_out)})"
        rank_zero_only(note)(f"starting from '{found.source}', but with {new}")


def load_weights(
    network: nn.Module, weights: Mapping[str, Tensor], source: str, num_classes: int
) -> list[str]:
    """Copies weights into a network, whatever wrappers stand before their names; returns the names of those left out.

    A head for other classes is left out, and the new one starts from zero: random weights that the features do not correct
    would stay in it (Kolesnikov et al., 2020, section 3.3, https://arxiv.org/abs/1912.11370).
    """
    own = network.state_dict()
    weights = {_OLD_DENSENET.sub(r"\1\2.", name): value for name, value in weights.items()}
    while not own.keys() & weights.keys() and any(map(_WRAPPER.match, weights)):
        weights = {_WRAPPER.sub("", name): value for name, value in weights.items()}
    weights = {name: adapted(value, own.get(name, value).shape) for name, value in weights.items()}
    heads = tuple(f"{name}." for name in head(network, num_classes))
    other_shape = [
        name for name in own if name in weights and own[name].shape != weights[name].shape
    ]
    left_out = [
        name
        for name in own
        if name.startswith(heads) and (name in other_shape or name not in weights)
    ]
    # torchvision's older files do not count batches; BatchNorm does without
    needed = [
        name for name in own if name not in left_out and not name.endswith("num_batches_tracked")
    ]
    problems = {
        "missing": [name for name in needed if name not in weights],
        "unknown": [
            name for name in weights if name not in own and not name.startswith(_AUXILIARY_HEADS)
        ],
        "of another shape": [name for name in other_shape if name not in left_out],
    }
    if any(problems.values()):
        parts = "; ".join(
            f"{problem}: {listed(names, 5)}" for problem, names in problems.items() if names
        )
        raise UserError(
            f"--model.weights: '{source}' does not fit this network ({parts}); see --model.arch and --model.arch_args"
        )
    fitting = {
        name: value for name, value in weights.items() if name in own and name not in left_out
    }
    require_finite(fitting, source)
    # own keeps the versions of its modules, which some classes ask for
    own.update(fitting | {name: torch.zeros_like(own[name]) for name in left_out})
    network.load_state_dict(own)
    return left_out


def adapted(weight: Tensor, shape: torch.Size) -> Tensor:
    """Adapts a convolution of RGB as timm's ``adapt_input_conv`` does: its sum for one channel, else repeated and scaled."""
    if (
        weight.dim() != 4
        or weight.shape[1] != 3
        or shape == weight.shape
        or shape[2:] != weight.shape[2:]
    ):
        return weight
    if shape[1] == 1:
        return weight.sum(1, keepdim=True)
    return weight.repeat(1, -(-shape[1] // 3), 1, 1)[:, : shape[1]] * (3 / shape[1])


def follow_preprocessing(options: Any, preprocessing: Preprocessing) -> None:
    """Sets the options of a data module that were not given, and so are None, to the preprocessing of weights.

    Where another image size is given, ``resize`` keeps its ratio to it; for other channels, statistics do not follow.
    """
    crop = preprocessing["crop"]
    resize = round((options.get("image_size") or crop) * preprocessing["resize"] / crop)
    wanted = {
        "fit": "crop",
        "interpolation": "bilinear",
        **preprocessing,
        "image_size": crop,
        "resize": resize,
    }
    wanted["channels"], wanted["bits"] = bands_of(preprocessing) or (None, None)
    same = all(options.get(name) in (None, wanted[name]) for name in ("channels", "bits"))
    for name in (
        "image_size",
        "fit",
        "resize",
        "interpolation",
        *("channels", "bits", "mean", "std") * same,
    ):
        if name in options and options[name] is None:
            options[name] = wanted[name]


def follow_weights(config: Any, resumed: Sequence[Path]) -> None:
    """Lets a run's data module prepare images as the weights, or the newest checkpoint of a resumed run, require."""
    model = config.model.init_args
    if model.get("weights") is None:
        if model.get("freeze") and not resumed:
            raise UserError(
                "--model.freeze needs --model.weights: without, layers of random weights would never learn"
            )
    elif "arch" in model:
        found = (
            find_weights(model.arch or "resnet18", str(source)).preprocessing()
            for source in resumed or [model.weights]
        )
        if (preprocessing := next(filter(None, found), None)) is not None:
            follow_preprocessing(config.data.get("init_args", {}), preprocessing)
