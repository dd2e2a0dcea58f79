"""Pretrained weights by name, file or address, and their preprocessing."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, cast
from unicodedata import normalize

import numpy as np
import torch
from jsonargparse import Namespace
from lightkeeper.exact import UserError, note
from lightkeeper.images import Preprocessing, read_weights
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torchvision.models import get_model_weights  # type: ignore[attr-defined]  # not in its __all__

from project.model.networks import (
    INCEPTIONS,
    SMALL,
    TIMM,
    find_builder,
    head,
    timm_name,
    torchvision_names,
)
from project.model.normalize import image_shape
from project.model.timm_config import from_timm

_USUAL = "resnet18"
_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")
# names in torchvision's files, which the network has without the second dot
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.(\d)\.")


class Pretrained(NamedTuple):
    """Weights, which may be downloaded on request, and what they are for, if known."""

    source: str
    weights: Callable[[], Mapping[str, Tensor]]
    preprocessing: Preprocessing | None
    class_names: Sequence[str] = ()
    others: Sequence[str] = ()
    arch: str = ""


def default_arch(preprocessing: Preprocessing, weights: str | None) -> str:
    """Returns a small network for small images, or the network of weights."""
    if weights is not None:
        return _known_arch(find_weights(_USUAL, weights).arch)
    return "resnet9_slim" if min(image_shape(preprocessing)[1:]) < 64 else _USUAL


def _known_arch(arch: object) -> str:
    """Returns the network that a run or a checkpoint names, if it is torchvision's or ours."""
    return str(arch) if arch in (*SMALL, *torchvision_names()) else _USUAL


def find_weights(arch: str, weights: str) -> Pretrained:
    """Finds weights by torchvision's or timm's name, in a file or folder, or at an address."""
    if weights.startswith(("http://", "https://")):
        return _from_file(weights)
    names: list[str] = []
    if arch in torchvision_names():
        names = sorted(get_model_weights(arch).__members__)
        if weights in names:
            return _from_torchvision(arch, weights)
    elif arch.startswith(TIMM):
        import timm

        tagged = timm.list_pretrained(f"{timm_name(arch)}.*")
        names = [*(["DEFAULT"] if tagged else []), *(name.partition(".")[2] for name in tagged)]
        if weights in names:
            return _from_timm(arch, weights)
    path = Path(weights).expanduser()
    if (path / "config.json").is_file():
        return _from_folder(path)
    if not path.exists() and not re.search("[/.]", weights):
        find_builder(arch)
        raise UserError(
            f"--model.weights: there is no file '{weights}', and {arch} has no weights of that"
            f" name; it has {', '.join(names) or 'none'}"
        )
    return _from_file(str(path))


def _from_file(source: str) -> Pretrained:
    """Takes weights from a file or an address, saved by this project or any other script."""
    file = read_weights(source)
    return Pretrained(source, lambda: file.tensors, *file[1:])


def _from_folder(folder: Path) -> Pretrained:
    """Takes weights from a folder in timm's format, as ``examples/deploy/to_hub.py`` writes it."""
    try:
        config = json.loads((folder / "config.json").read_text())
        names = config.get("label_names")
        preprocessing = from_timm(config["pretrained_cfg"])
    except (
        *(ArithmeticError, AttributeError, LookupError),
        *(RecursionError, TypeError, ValueError),
    ) as error:
        raise UserError(f"--model.weights: '{folder}' has no config.json of timm's") from error
    is_plain = isinstance(names, list) and all(isinstance(name, str) for name in names)
    files = [folder / "model.safetensors", folder / "pytorch_model.bin"]
    file = next((file for file in files if file.exists()), files[0])
    return Pretrained(
        str(folder), lambda: read_weights(file).tensors, preprocessing, names if is_plain else ()
    )


def _from_torchvision(arch: str, name: str) -> Pretrained:
    entry: Any = get_model_weights(arch)[name]
    preset = entry.transforms()
    half = [0.5] * 3  # torchvision's inceptions convert ImageNet's statistics to these
    preprocessing = Preprocessing(
        resize=preset.resize_size[0],
        crop=preset.crop_size[0],
        fit="crop",
        interpolation=preset.interpolation.value,
        mean=half if arch in INCEPTIONS else list(preset.mean),
        std=half if arch in INCEPTIONS else list(preset.std),
    )
    # not by torchvision's loader, which unpickles whatever is in the cache
    return Pretrained(
        f"{entry.name} of {arch}", lambda: read_weights(entry.url).tensors, preprocessing
    )


def _from_timm(arch: str, tag: str) -> Pretrained:
    import timm

    name = timm_name(arch) if tag == "DEFAULT" else f"{timm_name(arch)}.{tag}"
    entry: Any = timm.get_pretrained_cfg(name)

    def weights() -> Mapping[str, Tensor]:
        address = entry.hf_hub_id or entry.url
        note(f"fetching {address}, unless it is in the cache")
        try:
            return cast(Mapping[str, Tensor], timm.create_model(name, pretrained=True).state_dict())
        except Exception as error:  # the Hub, the network and the file raise many types
            raise UserError(
                f"--model.weights: '{address}' is not in the cache and cannot be fetched"
                f" ({str(error).splitlines()[0]}); connect to the network, or fetch its file"
                " elsewhere and name it in --model.weights"
            ) from error

    return Pretrained(f"{entry.tag} of {arch}", weights, from_timm(entry.to_dict()))


def start_from(network: nn.Module, arch: str, weights: str, class_names: Sequence[str]) -> None:
    """Copies pretrained weights into a network, and reports what became of the head."""
    pretrained = find_weights(arch, weights)
    text = load_weights(
        network, pretrained.weights(), pretrained.source, class_names, pretrained.class_names
    )
    if pretrained.others:
        others = shorten(", ".join(pretrained.others), 200)
        text += f"; not taken, as they are not the network's: {others}"
    rank_zero_only(note)(f"starting from '{pretrained.source}', {text}")


def load_weights(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    source: str,
    class_names: Sequence[str],
    known: Sequence[str] = (),
) -> str:
    """Copies weights into a network, without any prefix of their names.

    If the classes of the weights are ``known``, each class keeps its row of the head. A new class,
    or a head for another number of classes, starts from zero: fine-tuning would not remove all of
    the noise of random weights (Kolesnikov et al., 2020, section 3.3,
    https://arxiv.org/abs/1912.11370).

    Returns:
        What became of the head, for people to read.
    """
    state = network.state_dict()  # with the versions of modules, which some modules read
    heads = tuple(f"{name}." for name in head(network, len(class_names)))
    weights = {_OLD_DENSENET.sub(r"\1\2.", name): value for name, value in weights.items()}
    stripped = _without_prefix(weights, state, heads, source)
    fitted = _converted_by_timm(network, stripped, state, heads)
    weights = {
        name: adapt_channels(value, state[name].shape) if name in state else value
        for name, value in fitted.items()
        if not name.startswith(_AUXILIARY_HEADS)
    }
    saved = {name: weights.get(name, torch.empty(0)) for name in state if name.startswith(heads)}
    row_of = {normalize("NFC", name): row for row, name in enumerate(known)}
    # -1, of a class that the file does not name, takes the zeros that are appended
    rows = [row_of.get(normalize("NFC", str(name)), -1) for name in class_names]
    matched = {
        name: torch.cat([value, value.new_zeros(1, *value.shape[1:])])[rows]
        for name, value in saved.items()
        if known
        and value.shape[:1] == (len(known),)
        # no hidden layer of the head, whose width may happen to be the number of known classes
        and state[name].shape[:1] == (len(class_names),)
    }
    weights |= matched
    new = [name for name, value in (saved | matched).items() if value.shape != state[name].shape]
    # torchvision's older files do not count batches
    zeroed = {
        name: torch.zeros_like(value)
        for name, value in state.items()
        if name in new or (name.endswith("num_batches_tracked") and name not in weights)
    }
    # torch has no isfinite for numbers of 8 bits
    if not all(
        value.layout is torch.strided
        and not (value.is_meta or value.is_complex())
        and value.double().isfinite().all()
        for value in weights.values()
    ):
        raise UserError(
            f"--model.weights: '{source}' has values that are not finite, or none, as of sparse"
            " and complex tensors"
        )
    state.clear()
    state.update(weights | zeroed)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"--model.weights: '{source}' does not fit --model.arch and --model.arch_args:"
            f" {shorten(str(error), 300)}"
        ) from error
    others = [name for name, row in zip(class_names, rows, strict=True) if row < 0]
    text = _describe_head(len(class_names), others, new, [*matched])
    return text if fitted is stripped else f"{text}; timm has fitted the rest to the image size"


def _converted_by_timm(
    network: nn.Module,
    weights: dict[str, Tensor],
    state: Mapping[str, Tensor],
    heads: tuple[str, ...],
) -> dict[str, Tensor]:
    """Converts weights that do not fit a timm network of patches, by its ``checkpoint_filter_fn``.

    That resamples position embeddings for another image size, and maps names in authors' files.
    """
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    fits = all(
        name in state and value.shape == state[name].shape
        for name, value in weights.items()
        if not name.startswith(heads)
    )
    if convert and hasattr(network, "patch_embed") and not fits:
        with suppress(Exception):  # of any type; loading lists what does not fit
            return cast(dict[str, Tensor], convert(dict(weights), network))
    return weights


def _describe_head(
    count: int, others: Sequence[str], new: Sequence[str], by_name: Sequence[str]
) -> str:
    """Says which rows of the head are the file's; ``others`` are classes that it does not name."""
    if new or (by_name and len(others) == count):
        return f"but with a new head for {count} classes ({', '.join(new or by_name)})"
    if not by_name:
        return (
            f"with its head: it does not name its classes, so the {count} of the data take its rows"
            " in their order"
        )
    if others:
        text = shorten(", ".join(others), 200)
        return f"with its head's rows of {count - len(others)} classes; new, from zero: {text}"
    return f"with its head for the same {count} classes"


def _without_prefix(
    weights: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    heads: tuple[str, ...],
    source: str,
) -> dict[str, Tensor]:
    """Returns the network's weights without the prefix of its names, such as ``module.`` of DDP.

    A prefix is what precedes the name of the network's first tensor. Names without it are left out:
    they are not the network's, but a loss's or a counter's. If several prefixes suit the network
    equally well, as a teacher's and a student's do, their weights must be the same.
    """
    first = next(iter(state))
    firsts = sorted((name for name in weights if f".{name}".endswith(f".{first}")), key=len)
    parts = {
        prefix: {name: weights[prefix + name] for name in state if prefix + name in weights}
        for prefix in (name.removesuffix(first) for name in firsts)
    }
    body = [n for n in state if not n.startswith(heads) and not n.endswith("num_batches_tracked")]
    fitting = {
        prefix: sum(
            adapt_channels(part[name], state[name].shape).shape == state[name].shape
            for name in body or state
            if name in part
        )
        for prefix, part in parts.items()
    }
    most = max(fitting.values(), default=0)
    best, *others = [prefix for prefix in parts if fitting[prefix] == most] or [""]
    others = [prefix for prefix in others if not _are_equal(parts[prefix], parts[best])]
    if others and most:
        raise UserError(
            f"--model.weights: '{source}' has several networks that fit, with the prefixes"
            f" {shorten(', '.join(map(repr, (best, *others))), 200)}; save the one to start from, in"
            " Python as in torch.save({n: w for n, w in"
            f" lightkeeper.images.read_weights({source!r}).tensors.items()"
            f" if n.startswith({others[-1]!r})}}, 'one.pth')"
        )
    return {
        name.removeprefix(best): value for name, value in weights.items() if name.startswith(best)
    }


def _are_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def adapt_channels(weight: Tensor, shape: torch.Size) -> Tensor:
    """Adapts a convolution of RGB as timm does: sums it for one channel, else repeats it."""
    rgb = weight.dim() == 4 and weight.shape[1] == 3
    if not rgb or shape == weight.shape or shape[2:] != weight.shape[2:]:
        return weight
    if shape[1] == 1:
        return weight.sum(1, keepdim=True)
    return weight.repeat(1, -(-shape[1] // 3), 1, 1)[:, : shape[1]] * (3 / shape[1])


FILLED_IN = ("image_size", "resize", "fit", "interpolation", "channels", "bits", "mean", "std")
"""The options of data that weights decide."""


def fill_in_preprocessing(options: Namespace, preprocessing: Preprocessing) -> None:
    """Sets the options of a data module that are None to a preprocessing.

    For another image size, ``resize`` keeps its ratio to it. For other channels or bits, mean and
    std stay unset.
    """
    crop = preprocessing["crop"]
    image_size = options.get("image_size") or crop
    resize = np.divide(np.multiply(image_size, preprocessing["resize"]), crop)
    values: dict[str, object] = {
        "image_size": crop,
        "resize": resize.round().astype(int).tolist(),
        "fit": preprocessing.get("fit", "crop"),
        "interpolation": preprocessing.get("interpolation", "bilinear"),
    }
    bits = preprocessing.get("bits")
    bands = {"channels": bits and len(preprocessing["mean"]), "bits": bits}
    if all(options.get(name) in (None, value) for name, value in bands.items()):
        values |= {**bands, "mean": preprocessing["mean"], "std": preprocessing["std"]}
        for name, shares in (("mean", preprocessing["mean"]), ("std", preprocessing["std"])):
            if options.get(name) is None and not all(0 <= share <= 1 for share in shares):
                raise UserError(f"the weights need --data.{name} {shares}, which must be 0 to 1")
    _fill_in(options, values)


def _fill_in(options: Namespace, values: Mapping[str, object]) -> None:
    """Sets those of the options that are None to the values."""
    for name, value in values.items():
        if name in options and options[name] is None:
            options[name] = value


def fill_in_preprocessing_of_weights(config: Namespace, earlier: Mapping[str, object]) -> None:
    """Fills in a data module's preprocessing from the weights, or the options of a resumed run."""
    model = config.model.init_args
    options = config.data.get("init_args", {})
    if model.get("weights") is None:
        if model.get("freeze") and not earlier:
            raise UserError(
                "--model.freeze needs --model.weights: without, layers of random weights would"
                " never learn"
            )
    elif "arch" in model:
        if earlier:
            model.arch = model.arch or _known_arch(earlier.get("model.arch"))
            _fill_in(options, {name: earlier.get(f"data.{name}") for name in FILLED_IN})
            return
        weights = find_weights(model.arch or _USUAL, model.weights)
        model.arch = model.arch or _known_arch(weights.arch)
        if weights.preprocessing:
            fill_in_preprocessing(options, weights.preprocessing)
        elif None in (options.get("mean"), options.get("std")):
            rank_zero_only(note)(
                f"'{model.weights}' does not say how images are prepared for it: give --data.mean"
                " and --data.std, and what else its training had, unless these are the defaults"
            )
