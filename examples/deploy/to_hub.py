"""Writes a checkpoint as a folder for timm and the Hugging Face Hub, with a model card to fill in.

python -m examples.deploy.to_hub runs/NAME/checkpoints/best.ckpt flowers

It needs ``pip install timm``.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import timm
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, read_metrics, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from timm.data.config import resolve_model_data_config
from timm.models import save_for_hf
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from project.analysis.tables import RATES, Metrics, added_metrics, class_rates, escaped
from project.model import ImageClassifier
from project.model.formats import ProbabilityNetwork, write_and_compare
from project.model.networks import TIMM, head
from project.model.normalize import image_shape
from project.model.timm_config import CROP_MODES


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m examples.deploy.to_hub", description="Writes a folder for timm and the Hub."
    )
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument("folder", type=Path, help="The folder.")
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace the files; others in the folder stay."
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Writes the folder, compares it with the checkpoint, and prints how to load it."""
    folder: Path = options.folder
    if not folder.parent.is_dir():
        raise UserError(f"must be in a folder that is there, got '{folder}'", "folder")
    if folder.is_dir() and any(folder.iterdir()) and not options.overwrite:
        raise UserError(f"'{folder}' is there already; --overwrite replaces its files", "folder")
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        written = Path(scratch) / folder.name
        write = partial(write_folder, card=model_card(model, options.checkpoint))
        count, difference = write_and_compare(model, write, load_folder, written)
        folder.mkdir(exist_ok=True)
        for file in written.iterdir():
            file.replace(folder / file.name)
    print(f'  load                  timm.create_model("local-dir:{folder}", pretrained=True)')
    print(f"  compared on           {count} generated images")
    print(f"  largest difference    {difference:.2g} in probability")


def write_folder(
    network: ProbabilityNetwork, model: ImageClassifier, folder: Path, card: str
) -> None:
    """Writes weights and timm's configuration, with preprocessing and class names, and the card.

    Args:
        network: Its ``network`` maps normalised images to logits.
        model: The model of the checkpoint.
        folder: A folder that does not exist.
        card: The model card, in Markdown.
    """
    for module in filter(is_parametrized, [*network.network.modules()]):  # such as LoRA's
        for name in [*module.parametrizations]:
            remove_parametrizations(module, name)  # of the checkpoint's model, too
    for layer in head(network.network, len(model.class_names)).values():
        for weight in layer.parameters():  # logits are linear in these
            weight.data /= model.about.get("temperature", 1.0)
    twin = timm_twin(network.network, model)
    activation = "softmax" if model.has_one_class else "sigmoid"
    about: dict[str, object] = {"label_names": model.class_names, "activation": activation}
    if model.thresholds:
        about["thresholds"] = [*model.thresholds.values()]
    save_for_hf(twin, str(folder), about, timm_args(model), safe_serialization=True)
    # safetensors writes for its owner alone
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    (folder / "README.md").write_text(card, "utf-8", "backslashreplace")


def timm_twin(network: nn.Module, model: ImageClassifier) -> nn.Module:
    """Builds timm's network of the same name and layers, with the same weights."""
    if model.test_time_augmentation:
        raise UserError("this model averages views of each image, which timm does not")
    name = model.arch.removeprefix(TIMM)
    if timm.is_model(name):
        twin: nn.Module = timm.create_model(
            name,
            num_classes=len(model.class_names),
            pretrained_cfg_overlay=to_timm(model.preprocessing),
            **timm_args(model),
        )
        with suppress(RuntimeError):  # it has other layers
            twin.load_state_dict(network.state_dict())
            return twin
    args = f" with {model.arch_args}" if model.arch_args else ""
    raise UserError(f"timm has no network like {model.arch}{args}")


def timm_args(model: ImageClassifier) -> dict[str, Any]:
    """Returns the arguments of timm's network."""
    channels = len(model.preprocessing["mean"])
    args = dict(model.arch_args or {}) if model.arch.startswith(TIMM) else {}
    return args if channels == 3 else args | {"in_chans": channels}


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
        "crop_mode": CROP_MODES[fit],
        "mean": tuple(preprocessing["mean"]),
        "std": tuple(preprocessing["std"]),
    }


def load_folder(folder: Path) -> Callable[[Tensor], Tensor]:
    """Loads a folder by timm alone.

    Returns:
        A function of images, (N, channels, *crop), that returns probabilities, float32 (N, classes).
    """
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


def model_card(model: ImageClassifier, checkpoint: str) -> str:
    """Writes a model card in Markdown: use, metrics by class, data, and fields to fill in."""
    split, metrics = newest_metrics(Path(checkpoint).absolute(), model.about)
    names = [" ".join(name.split()).replace("|", "\\|") for name in model.class_names]
    per_class = rates_of(metrics, checkpoint) if metrics else [{}]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    card = environment.get_template("model_card.md").render(
        model=model,
        about=model.about,
        images=model.about.get("images") or {},
        versions=model.about.get("versions") or {},
        split=split,
        metrics=metrics,
        added=added_metrics({split: metrics}),
        rates={rate: heading for rate, heading in RATES.items() if rate in per_class[0]},
        classes=list(zip(names, per_class, strict=False)),
    )
    return escaped(card)


def newest_metrics(checkpoint: Path, about: Mapping[str, Any]) -> tuple[str, Metrics]:
    """Returns the split that was measured last, and its metrics; empty if none was.

    They are those of the run's test if it is the ``best.ckpt`` of a finished run.
    """
    if checkpoint.name == "best.ckpt":
        with suppress(UserError):  # it is in no finished run
            return "test", read_metrics(checkpoint.parents[1])["test"]
    for split in ("test", "val"):
        if split in about["metrics"]:
            return split, about["metrics"][split]
    return "", {}


def rates_of(metrics: Metrics, checkpoint: str) -> list[dict[str, float]]:
    """Returns the rates of each class, from numbers that a file may have in any form."""
    try:
        for name in ("total", "accuracy", "f1"):
            float(metrics[name])
        return class_rates(metrics)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the metrics in '{checkpoint}' are damaged, or not those of the model card: {error!r}"
        ) from error


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
