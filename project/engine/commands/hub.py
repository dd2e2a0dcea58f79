"""Workings of ``export --output FOLDER/``: a folder that timm loads, from a disk or the Hub."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LINES, UserError, printable
from ..preprocessing import Preprocessing
from ..run.checkpoint import ABOUT, read_checkpoint
from ..run.folder import read_metrics

_CARD = "README.md"
_FILES = {"model.safetensors", "config.json", _CARD}
_CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""timm's names of the rules that fit an image to a square."""


def is_folder(output: str) -> bool:
    """Returns True for the path of a folder, which may not exist yet."""
    return output.endswith("/") or Path(output).is_dir()


def require_free(folder: Path, overwrite: bool) -> None:
    """Refuses a folder that has other files than an export, or any without ``overwrite``."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := names - _FILES:
        raise UserError(f"--output: '{folder}' has other files, as '{min(others)}'; name a new one")
    if names and not overwrite:
        raise UserError(f"--output: '{folder}' is there already; give another name, or --overwrite")


def write_folder(network: nn.Module, model: Any, folder: Path) -> None:
    """Writes weights and timm's configuration, with preprocessing and class names.

    Args:
        network: Its submodule ``network`` maps normalised images to logits.
        model: The model of the checkpoint.
        folder: A folder that does not exist.
    """
    from timm.models import save_for_hf

    twin = timm_twin(network.get_submodule("network"), model)
    activation = "softmax" if model.has_one_class else "sigmoid"
    about = {"label_names": model.class_names, "activation": activation}
    if model.thresholds:
        about["thresholds"] = [*model.thresholds.values()]
    save_for_hf(twin, str(folder), about, timm_args(model), safe_serialization=True)


def timm_twin(network: nn.Module, model: Any) -> nn.Module:
    """Builds timm's network of the same name and layers, with the same weights."""
    import timm

    if model.test_time_augmentation:
        raise UserError(
            "--output: this model averages views of each image, which timm does not;"
            " write an .onnx or .pt2 file"
        )
    name = model.arch.removeprefix("timm/")
    if timm.is_model(name):
        twin: nn.Module = timm.create_model(
            name,
            num_classes=len(model.class_names),
            pretrained_cfg_overlay=timm_preprocessing(model.preprocessing),
            **timm_args(model),
        )
        with suppress(RuntimeError):  # it has other layers
            twin.load_state_dict(network.state_dict())
            return twin
    args = f" with {model.arch_args}" if model.arch_args else ""
    raise UserError(
        f"--output: timm has no network like {model.arch}{args}; write an .onnx or .pt2 file"
    )


def timm_args(model: Any) -> dict[str, Any]:
    """Returns the arguments of timm's network."""
    channels = len(model.preprocessing["mean"])
    args = dict(model.arch_args or {}) if model.arch.startswith("timm/") else {}
    return args if channels == 3 else args | {"in_chans": channels}


def timm_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
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


def facts(checkpoint: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Returns a checkpoint's facts about itself, a split, and the newest metrics of that split.

    They are those of the run's test if it is the ``best.ckpt`` of a finished run.
    """
    about = read_checkpoint(checkpoint)[ABOUT]
    if checkpoint.name == "best.ckpt":
        with suppress(UserError):  # it is in no finished run
            return about, "test", read_metrics(checkpoint.resolve().parents[1])["test"]
    for split in ("test", "val"):
        if split in about["metrics"]:
            return about, split, about["metrics"][split]
    return about, "", {}


def write_card(folder: Path, text: str) -> None:
    """Writes the model card; control characters are escaped."""
    (folder / _CARD).write_text(printable(text, keep=LINES), "utf-8", "backslashreplace")
