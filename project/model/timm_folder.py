"""Folders in timm's format, from a disk or the Hugging Face Hub: written, loaded and converted."""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from torch import Tensor, nn

from project.model.networks import TIMM

if TYPE_CHECKING:
    from project.model.classifier import ImageClassifier

_CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""timm's names of the rules that fit an image to a square."""


def write_folder(network: nn.Module, model: "ImageClassifier", folder: Path) -> None:
    """Writes weights and timm's configuration, with preprocessing and class names.

    Args:
        network: Its submodule ``network`` maps normalised images to logits.
        model: The model of the checkpoint.
        folder: A folder that does not exist.
    """
    from timm.models import save_for_hf

    twin = _timm_twin(network.get_submodule("network"), model)
    activation = "softmax" if model.has_one_class else "sigmoid"
    about: dict[str, object] = {"label_names": model.class_names, "activation": activation}
    if model.thresholds:
        about["thresholds"] = [*model.thresholds.values()]
    save_for_hf(twin, str(folder), about, _timm_args(model), safe_serialization=True)
    # safetensors writes for its owner alone
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _timm_twin(network: nn.Module, model: "ImageClassifier") -> nn.Module:
    """Builds timm's network of the same name and layers, with the same weights."""
    import timm

    if model.test_time_augmentation:
        raise UserError(
            "--output: this model averages views of each image, which timm does not;"
            " write an .onnx or .pt2 file"
        )
    name = model.arch.removeprefix(TIMM)
    if timm.is_model(name):
        twin: nn.Module = timm.create_model(
            name,
            num_classes=len(model.class_names),
            pretrained_cfg_overlay=to_timm(model.preprocessing),
            **_timm_args(model),
        )
        with suppress(RuntimeError):  # it has other layers
            twin.load_state_dict(network.state_dict())
            return twin
    args = f" with {model.arch_args}" if model.arch_args else ""
    raise UserError(
        f"--output: timm has no network like {model.arch}{args}; write an .onnx or .pt2 file"
    )


def _timm_args(model: "ImageClassifier") -> dict[str, Any]:
    """Returns the arguments of timm's network."""
    channels = len(model.preprocessing["mean"])
    args = dict(model.arch_args or {}) if model.arch.startswith(TIMM) else {}
    return args if channels == 3 else args | {"in_chans": channels}


def load_folder(folder: Path) -> Callable[[Tensor], Tensor]:
    """Loads a folder by timm alone.

    Returns:
        A function of images, (N, channels, crop, crop), that returns probabilities, float32
        (N, classes).
    """
    import timm
    from timm.data.config import resolve_model_data_config

    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = resolve_model_data_config(network)  # type: ignore[no-untyped-call]
    mean, std = (torch.tensor(config[name]).view(-1, 1, 1) for name in ("mean", "std"))
    about = json.loads((folder / "config.json").read_text())

    @torch.inference_mode()
    def classify(images: Tensor) -> Tensor:
        most = torch.iinfo(images.dtype).max
        logits: Tensor = network((images.float() / most - mean) / std)
        return logits.sigmoid() if about["activation"] == "sigmoid" else logits.softmax(1)

    return classify


def to_timm(preprocessing: Preprocessing) -> dict[str, Any]:
    """Converts a preprocessing to timm's configuration."""
    crop = preprocessing["crop"]
    fit = preprocessing.get("fit", "crop")
    resize = preprocessing["resize"] if fit == "crop" else crop
    share = crop / resize
    if int(crop / share) < resize:  # timm rounds down
        share = math.nextafter(share, 0)
    of_other_weights = dict.fromkeys(("tag", "license", "origin_url", "paper_ids"))
    return {
        **of_other_weights,
        "input_size": (len(preprocessing["mean"]), crop, crop),
        "test_input_size": None,
        "interpolation": preprocessing.get("interpolation", "bilinear"),
        "crop_pct": share,
        "test_crop_pct": None,
        "crop_mode": _CROP_MODES[fit],
        "mean": tuple(preprocessing["mean"]),
        "std": tuple(preprocessing["std"]),
    }


def from_timm(config: Mapping[str, Any]) -> Preprocessing:
    """Converts timm's ``pretrained_cfg`` to our preprocessing."""
    crop = config["input_size"][1]
    fits: Any = {mode: fit for fit, mode in _CROP_MODES.items()}
    return Preprocessing(
        resize=int(crop / config["crop_pct"]),
        crop=crop,
        fit=fits[config["crop_mode"]],
        interpolation=config["interpolation"],
        mean=list(config["mean"]),
        std=list(config["std"]),
    )
