"""``python -m project.export``: write a checkpoint as one file that classifies without this project."""

from importlib.util import find_spec
from pathlib import Path

import torch
from jsonargparse import Namespace
from torch import Tensor
from torch.nn.functional import interpolate

from project.analysis.exported import load_onnx, load_pt2, write_onnx, write_pt2
from project.analysis.tables import require_writable, writing
from project.engine.cli.command import one_line_errors
from project.engine.cli.command_line import IMPORT, import_modules
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import LINES, UserError, printable
from project.engine.loading.files import prepare
from project.engine.loading.scan import image_paths
from project.engine.preprocessing import Preprocessing, bands_of, empty_images
from project.engine.run.files import whole_file
from project.engine.run.progress import note
from project.model import ImageClassifier
from project.model.test_time import evaluation_logits

TOLERANCE = 1e-4
"""How far a probability may be from the checkpoint's; float32 on other kernels differs by less than 1e-5."""
_FORMATS = {".onnx": (write_onnx, load_onnx), ".pt2": (write_pt2, load_pt2)}
_COMPARED = 128  # images, at most
_BATCH = 16


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies without this project, with normalisation, softmax"
        " and class names inside; runs the file, and compares it with the checkpoint. Ends with code 0 where they"
        " agree; otherwise writes nothing and ends with code 2.",
        epilog="example: python -m project.export runs/mine/checkpoints/best.ckpt --output mine.onnx",
    )
    option = parser.add_argument
    option("checkpoint", type=str, help="The checkpoint.")
    file = "The file: .onnx for ONNX Runtime and others, .pt2 for torch alone."
    option("--output", type=str, required=True, help=file)
    option("--images", type=str | None, help="Images to compare on, a folder; by default generated ones.")
    option("--import", **IMPORT)
    option("--overwrite", action="store_true", help="Replaces a file that is there.")
    return parser.parse_args(args)


def export(options: Namespace) -> None:
    """Writes the file, compares it with the checkpoint, and prints the result; the options are those of :func:`parse`."""
    output = Path(options.output)
    _require_usable(output, options.overwrite)
    import_modules(options["import"])
    model = ImageClassifier.load_from_checkpoint(options.checkpoint).eval()
    images = generated_images(model.preprocessing) if options.images is None else _images_of(options.images, model)
    write, load = _FORMATS[output.suffix]
    with writing("--output", output), whole_file(output) as partial:
        note(f"writing {output}…")
        write(model, partial)
        with torch.inference_mode():
            expected = model.probabilities(evaluation_logits(model, images))
        classify = load(partial)  # which must take batches of any size
        batches = [images[:1], *(images[start : start + _BATCH] for start in range(1, len(images), _BATCH))]
        found = torch.cat([classify(batch) for batch in batches])
        largest = (expected.double() - found.double()).abs().max().item()
        if not largest <= TOLERANCE:  # nan, too
            raise UserError(
                "the exported file does not compute what the checkpoint does: probabilities differ by up to"
                f" {largest:.2g}, so nothing was written"
            )
    dtype, rgb = str(images.dtype).removeprefix("torch."), "" if bands_of(model.preprocessing) else ", RGB"
    text = [
        f"  written               {output} ({output.stat().st_size / 1e6:.2f} MB)",
        f"  input                 images: {dtype} (N, {', '.join(map(str, images.shape[1:]))}){rgb}",
        f"  output                probabilities: float32 (N, {len(model.class_names)})",
        f"  compared on           {len(images)} images{f' of {options.images}' if options.images else ', generated'}",
        f"  largest difference    {largest:.2g} in probability",
    ]
    print(printable("\n".join(text), keep=LINES), flush=True)


def generated_images(preprocessing: Preprocessing, count: int = 32) -> Tensor:
    """Generates images (N, channels, crop, crop) of blurred noise with much contrast and with little."""
    images, generator = empty_images(count, preprocessing).contiguous(), torch.Generator().manual_seed(0)
    coarse, most = torch.rand(*images.shape[:2], 6, 6, generator=generator), torch.iinfo(images.dtype).max
    contrast = torch.linspace(0.2, 2, count).view(-1, 1, 1, 1)
    smooth = interpolate(coarse, size=images.shape[2:], mode="bicubic")
    grain = 0.1 * torch.randn(images.shape, generator=generator)
    return (most * ((smooth - 0.5) * contrast + 0.5 + grain)).clamp(0, most).to(images.dtype)


def _images_of(folder: str, model: ImageClassifier) -> Tensor:
    """Reads images from all parts of a folder."""
    paths = sorted(image_paths([folder], note=lambda _: None, bands=bands_of(model.preprocessing)))
    if not Path(folder).is_dir() or not paths:
        raise UserError(f"--images: there are no images in a folder '{printable(folder)}'")
    return torch.stack([prepare(path, model.preprocessing) for path in paths[:: -(-len(paths) // _COMPARED)]])


def _require_usable(output: Path, overwrite: bool) -> None:
    if output.suffix not in _FORMATS:
        raise UserError(f"--output must end in {' or '.join(_FORMATS)}, got '{output}'")
    if output.exists() and not overwrite:
        raise UserError(f"--output: '{output}' is there already; give another name, or --overwrite")
    require_writable("--output", output)
    needed = ["onnx", "onnxscript", "onnxruntime"] if output.suffix == ".onnx" else []
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"writing ONNX needs packages that are not installed; run: pip install {' '.join(missing)}")


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        export(parse())


if __name__ == "__main__":
    main()
