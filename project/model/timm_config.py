"""timm's configuration of a network's images, ``pretrained_cfg``, as a preprocessing."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from lightkeeper.images import Preprocessing

CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""timm's names of the rules that fit an image to a square."""


def from_timm(config: Mapping[str, Any]) -> Preprocessing:
    """Converts timm's ``pretrained_cfg`` to a preprocessing."""
    _, height, width = config["input_size"]
    crop = height if height == width else [height, width]
    fits: Any = {mode: fit for fit, mode in CROP_MODES.items()}
    return Preprocessing(
        resize=np.divide(crop, config["crop_pct"]).astype(int).tolist(),
        crop=crop,
        fit=fits[config["crop_mode"]],
        interpolation=config["interpolation"],
        mean=list(config["mean"]),
        std=list(config["std"]),
    )
