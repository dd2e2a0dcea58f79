"""Folders in timm's format, from a disk or the Hugging Face Hub: loaded and converted."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightkeeper.images import Preprocessing
from torch import Tensor

from project.model.normalize import image_shape

_CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""timm's names of the rules that fit an image to a square."""


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
    """Converts a preprocessing to timm's configuration, which has one ratio for both sides."""
    shape = image_shape(preprocessing)
    fit = preprocessing.get("fit", "crop")
    crop = shape[1]
    resize = preprocessing["resize"] if fit == "crop" else crop
    resize = resize if isinstance(resize, int) else resize[0]
    share = crop / resize
    if int(crop / share) < resize:  # timm rounds down
        share = math.nextafter(share, 0)
    of_other_weights = dict.fromkeys(("tag", "license", "origin_url", "paper_ids"))
    return {
        **of_other_weights,
        "input_size": shape,
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
    _, height, width = config["input_size"]
    crop = height if height == width else [height, width]
    fits: Any = {mode: fit for fit, mode in _CROP_MODES.items()}
    return Preprocessing(
        resize=np.divide(crop, config["crop_pct"]).astype(int).tolist(),
        crop=crop,
        fit=fits[config["crop_mode"]],
        interpolation=config["interpolation"],
        mean=list(config["mean"]),
        std=list(config["std"]),
    )
