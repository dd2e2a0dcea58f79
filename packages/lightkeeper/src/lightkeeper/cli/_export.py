"""Workings of ``export``: a file of a checkpoint, compared with the checkpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ..exact._errors import UserError, note, require
from ..images._preprocessing import Preprocessing, empty_images
from ._parser import require_new

Classify = Callable[[Tensor], Tensor]
"""Takes images, (N, channels, crop, crop), and returns probabilities, float32 (N, classes)."""
Formats = Mapping[str, tuple[Callable[..., None], Callable[[Path], Classify]]]
"""Functions that write and load a model, by the ending of a path."""

TOLERANCE = 1e-4
"""The largest difference of a probability; float32 on other kernels differs by less than 1e-5."""
_BATCH = 16


def export_model(
    model: Any, network: nn.Module, options: Namespace, formats: Formats
) -> tuple[Tensor, float]:
    """Writes a checkpoint's model, and compares what both compute; if they differ, nothing is left.

    Args:
        model: The model that is loaded from the checkpoint.
        network: A network from pixels to probabilities, which is exported.
        options: The options of ``export``.
        formats: Functions by the ending of ``--output``, ``/`` for a folder: one of the network,
            the model and a path writes; one of the path loads.

    Returns:
        The images that both were compared on, and the largest difference of a probability.
    """
    path = Path(options.output)
    is_folder = options.output.endswith("/") or path.is_dir()
    ending = "/" if is_folder else path.suffix
    if ending not in formats:
        raise UserError(f"--output must end in {' or '.join(formats)}, got '{path}'")
    require(path.parent.is_dir(), "--output", path, "in a folder that is there")
    is_empty = path.is_dir() and not any(path.iterdir())
    require_new("--output", path, options.overwrite or is_empty)
    write, load = formats[ending]
    images = generated_images(model.preprocessing)
    model.eval()
    network.eval().requires_grad_(False)  # or no result could become an array
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        partial = Path(scratch) / path.name
        note(f"writing {options.output}…")
        write(network, model, partial)
        with torch.inference_mode():
            expected = model.predict_step(images, 0)
        classify = load(partial)  # which must take batches of any size
        rest = torch.split(images[1:], _BATCH)
        computed = torch.cat([classify(batch) for batch in (images[:1], *rest)])
        difference = (expected.double() - computed.double()).abs().max().item()
        if not difference <= TOLERANCE:  # nan, too
            raise UserError(
                "the exported file does not compute what the checkpoint does: probabilities differ"
                f" by up to {difference:.2g}, so nothing was written"
            )
        if is_folder:
            path.mkdir(exist_ok=True)
            for file in partial.iterdir():
                file.replace(path / file.name)
        else:
            partial.replace(path)
    return images, difference


def generated_images(preprocessing: Preprocessing, count: int = 32) -> Tensor:
    """Generates smooth and noisy images, (N, channels, crop, crop)."""
    images = empty_images(count, preprocessing).contiguous()
    generator = torch.Generator().manual_seed(0)
    coarse = 3 * torch.rand(*images.shape[:2], 6, 6, generator=generator) - 1
    smooth = interpolate(coarse, size=images.shape[2:], mode="bicubic")
    return (smooth.clamp(0, 1) * torch.iinfo(images.dtype).max).to(images.dtype)
