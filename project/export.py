"""``python -m project.export``: write a checkpoint as one file that classifies without this project.

The file holds a network with normalisation and probabilities around it, as ONNX or as a program of ``torch.export``.
"""

import io
import json
import logging
from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from project.analysis.tables import require_writable, writing
from project.engine.cli.entry import one_line_errors
from project.engine.cli.parser import CommandParser, import_modules
from project.engine.errors import LINES, UserError, printable
from project.engine.loading.files import prepare
from project.engine.loading.scan import image_paths
from project.engine.preprocessing import Preprocessing, bands_of, empty_images
from project.engine.run.files import whole_file
from project.engine.run.progress import note
from project.model import ImageClassifier
from project.model.normalize import Normalization
from project.model.test_time import evaluation_logits, mean_logits

Classify = Callable[[Tensor], Tensor]
"""Takes images, (N, channels, crop, crop), and returns probabilities, float32 (N, classes)."""

TOLERANCE = 1e-4
"""The largest difference of a probability from the checkpoint's; float32 on other kernels differs by less than 1e-5."""
_COMPARED = 128  # images, at most
_BATCH = 16


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = CommandParser(
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
    option(
        "--images",
        type=str | None,
        help="Images to compare on, a folder; by default generated ones.",
    )
    parser.add_import()
    option("--overwrite", action="store_true", help="Replaces a file that is there.")
    return parser.parse_args(args)


def export(options: Namespace) -> None:
    """Writes the file, compares it with the checkpoint, and prints the result; the options are those of :func:`parse`."""
    output = Path(options.output)
    _require_usable(output, options.overwrite)
    import_modules(options["import"])
    model = ImageClassifier.load_from_checkpoint(options.checkpoint).eval()
    images = (
        generated_images(model.preprocessing)
        if options.images is None
        else _images_of(options.images, model)
    )
    write, load = _FORMATS[output.suffix]
    with writing("--output", output), whole_file(output) as partial:
        note(f"writing {output}…")
        write(model, partial)
        with torch.inference_mode():
            expected = model.probabilities(evaluation_logits(model, images))
        classify = load(partial)  # which must take batches of any size
        batches = [
            images[:1],
            *(images[start : start + _BATCH] for start in range(1, len(images), _BATCH)),
        ]
        found = torch.cat([classify(batch) for batch in batches])
        largest = (expected.double() - found.double()).abs().max().item()
        if not largest <= TOLERANCE:  # nan, too
            raise UserError(
                "the exported file does not compute what the checkpoint does: probabilities differ by up to"
                f" {largest:.2g}, so nothing was written"
            )
    dtype, rgb = (
        str(images.dtype).removeprefix("torch."),
        "" if bands_of(model.preprocessing) else ", RGB",
    )
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
    images, generator = (
        empty_images(count, preprocessing).contiguous(),
        torch.Generator().manual_seed(0),
    )
    coarse, most = (
        torch.rand(*images.shape[:2], 6, 6, generator=generator),
        torch.iinfo(images.dtype).max,
    )
    contrast = torch.linspace(0.2, 2, count).view(-1, 1, 1, 1)
    smooth = interpolate(coarse, size=images.shape[2:], mode="bicubic")
    grain = 0.1 * torch.randn(images.shape, generator=generator)
    return (most * ((smooth - 0.5) * contrast + 0.5 + grain)).clamp(0, most).to(images.dtype)


def _images_of(folder: str, model: ImageClassifier) -> Tensor:
    """Reads images from all parts of a folder."""
    paths = sorted(image_paths([folder], note=lambda _: None, bands=bands_of(model.preprocessing)))
    if not Path(folder).is_dir() or not paths:
        raise UserError(f"--images: there are no images in a folder '{printable(folder)}'")
    return torch.stack(
        [prepare(path, model.preprocessing) for path in paths[:: -(-len(paths) // _COMPARED)]]
    )


def _require_usable(output: Path, overwrite: bool) -> None:
    if output.suffix not in _FORMATS:
        raise UserError(f"--output must end in {' or '.join(_FORMATS)}, got '{output}'")
    if output.exists() and not overwrite:
        raise UserError(f"--output: '{output}' is there already; give another name, or --overwrite")
    require_writable("--output", output)
    needed = ["onnx", "onnxscript", "onnxruntime"] if output.suffix == ".onnx" else []
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(
            f"writing ONNX needs packages that are not installed; run: pip install {' '.join(missing)}"
        )


class ProbabilityNetwork(nn.Module):
    """A network that takes bytes and returns probabilities, in float32 and on the CPU; the model stays as it is."""

    def __init__(self, model: ImageClassifier) -> None:
        super().__init__()
        self.network = (
            deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
        )
        for module in filter(is_parametrized, [*self.network.modules()]):  # such as LoRA's
            _merge(module)
        self._probabilities, self._views = model.probabilities, model.test_time_augmentation
        statistics = Normalization(model.preprocessing)
        self.mean, self.std = nn.Buffer(statistics.mean), nn.Buffer(statistics.std)

    def forward(self, images: Tensor) -> Tensor:
        """Normalises and classifies images (N, channels, crop, crop), as the preprocessing says."""
        return self._probabilities(mean_logits(self._classify, images, self._views))

    def _classify(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) / self.std)
        return logits


def _merge(module: Any) -> None:
    """Keeps weights instead of what they are computed from; torch's function would change the class, which the model shares."""
    weights = {name: nn.Parameter(getattr(module, name)) for name in module.parametrizations}
    module.__class__ = type_before_parametrizations(module)
    del module.parametrizations
    for name, weight in weights.items():
        setattr(module, name, weight)


def trace(model: ImageClassifier) -> ExportedProgram:
    """Traces a model for images of its crop, in batches of any size."""
    # of one image the batch dimension would become a constant
    two = empty_images(2, model.preprocessing).contiguous().zero_()
    network = (
        ProbabilityNetwork(model).eval().requires_grad_(False)
    )  # or what it returns could not become an array
    with torch.no_grad():
        program = torch.export.export(
            network, (two,), dynamic_shapes={"images": {0: Dim("batch", min=1)}}
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def metadata(model: ImageClassifier) -> dict[str, str]:
    """Returns class names, thresholds, attributes and preprocessing for an exported file: text as it is, all else as JSON."""
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    some = {name: found for name in ("thresholds", "attributes") if (found := getattr(model, name))}
    about = {**defaults, "class_names": model.class_names, **some, **model.preprocessing}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }


def write_pt2(model: ImageClassifier, path: Path) -> None:
    """Writes a program that torch runs without this project, with metadata in its extra files."""
    content = io.BytesIO()  # torch's own writer aborts the process where the disk is full
    torch.export.save(trace(model), content, extra_files=metadata(model))
    path.write_bytes(content.getvalue())


def load_pt2(path: Path) -> Classify:
    """Loads a program of ``torch.export``."""
    return torch.no_grad()(torch.export.load(path).module())


def write_onnx(model: ImageClassifier, path: Path) -> None:
    """Writes one file of ONNX with its weights and metadata inside."""
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # OpenCV ignores the slope and offset of the operator HardSigmoid without an error
    decompositions, aten = torch.export.default_decompositions(), torch.ops.aten
    hard = {
        operator: decompositions[operator]
        for operator in (aten.hardsigmoid.default, aten.hardswish.default)
    }
    program = torch.onnx.export(
        trace(model).run_decompositions(hard),
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes={"images": {0: "batch"}},
    )
    assert program is not None
    file = program.model_proto
    for part in (
        file.graph,
        *file.graph.node,
        *file.graph.input,
        *file.graph.output,
        *file.graph.value_info,
    ):
        del part.metadata_props[:]  # of how torch traced it, with paths of this machine
    onnx.helper.set_model_props(file, metadata(model))
    onnx.checker.check_model(file, full_check=True)
    onnx.save(file, path)


def load_onnx(path: Path) -> Classify:
    """Loads a file of ONNX into ONNX Runtime on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    return lambda images: torch.from_numpy(
        session.run(None, {"images": images.contiguous().numpy()})[0]
    )


_FORMATS = {".onnx": (write_onnx, load_onnx), ".pt2": (write_pt2, load_pt2)}


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        export(parse())


if __name__ == "__main__":
    main()
