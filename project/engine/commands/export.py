"""Workings of ``export``: a file or folder of a checkpoint, compared with the checkpoint."""

import io
import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import Namespace
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from ..errors import UserError
from ..loading.files import prepare
from ..loading.scan import image_paths
from ..preprocessing import Preprocessing, bands_of, empty_images
from ..run.files import whole_file
from ..run.progress import note
from . import hub
from .command import OutputFile

Classify = Callable[[Tensor], Tensor]
"""Takes images, (N, channels, crop, crop), and returns probabilities, float32 (N, classes)."""
NetworkOf = Callable[[Any], nn.Module]
"""Makes a network of a model that maps images, as its preprocessing says, to probabilities.

Its submodule ``network`` maps normalised images to logits.
"""
CardOf = Callable[[Any, dict[str, Any], str, dict[str, Any]], str]
"""Describes a model in Markdown, see ``ExportCommand.card``."""

TOLERANCE = 1e-4
"""The largest difference of a probability; float32 on other kernels differs by less than 1e-5."""
_COMPARED = 128  # images, at most
_BATCH = 16


class Exported(NamedTuple):
    """An exported file, the images that it was compared on, and the largest difference."""

    path: Path
    model: Any
    images: Tensor
    difference: float


def export_model(
    model_class: Any, network_of: NetworkOf, card_of: CardOf, options: Namespace
) -> Exported:
    """Writes a checkpoint's model, and compares what both compute; if they differ, nothing is left.

    Args:
        model_class: The base class of models.
        network_of: Makes the network to export.
        card_of: Describes the model, for a folder.
        options: The options of ``export``.
    """
    output = OutputFile("--output", options.output)
    is_folder = hub.is_folder(options.output)
    ending = "/" if is_folder else output.path.suffix
    if ending not in _FORMATS:
        raise UserError(f"--output must end in {' or '.join(_FORMATS)}, got '{output.path}'")
    if is_folder:
        with output.one_line_errors():
            hub.require_free(output.path, options.overwrite)
    else:
        output.require_new(options.overwrite)
    write, load, packages = _FORMATS[ending]
    for package in packages:
        import_module(package)  # names the one that is missing, before any work
    model = model_class.load_from_checkpoint(options.checkpoint).eval()
    about: Preprocessing = model.preprocessing
    images = _images_of(options.images, about) if options.images else generated_images(about)
    network = network_of(model).eval().requires_grad_(False)  # or no result could become an array
    with output.one_line_errors(), whole_file(output.path) as partial:
        note(f"writing {output.path}…")
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
            hub.write_card(partial, card_of(model, *hub.facts(Path(options.checkpoint))))
    return Exported(output.path, model, images, difference)


def generated_images(preprocessing: Preprocessing, count: int = 32) -> Tensor:
    """Generates blurred noise, (N, channels, crop, crop), with much contrast and with little."""
    images = empty_images(count, preprocessing).contiguous()
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(*images.shape[:2], 6, 6, generator=generator)
    most = torch.iinfo(images.dtype).max
    contrast = torch.linspace(0.2, 2, count).view(-1, 1, 1, 1)
    smooth = interpolate(coarse, size=images.shape[2:], mode="bicubic")
    grain = 0.1 * torch.randn(images.shape, generator=generator)
    return (most * ((smooth - 0.5) * contrast + 0.5 + grain)).clamp(0, most).to(images.dtype)


def _images_of(folder: str, preprocessing: Preprocessing) -> Tensor:
    """Reads images from all parts of a folder."""
    bands = bands_of(preprocessing)
    paths = sorted(image_paths([folder], note=lambda _: None, bands=bands))
    if not Path(folder).is_dir() or not paths:
        raise UserError(f"--images: there are no images in a folder '{folder}'")
    chosen = paths[:: -(-len(paths) // _COMPARED)]
    return torch.stack([prepare(path, preprocessing) for path in chosen])


def trace(network: nn.Module, preprocessing: Preprocessing) -> ExportedProgram:
    """Traces a network for images of the crop, in batches of any size."""
    # of one image the batch dimension would become a constant
    two = empty_images(2, preprocessing).contiguous().zero_()
    with torch.no_grad():
        program = torch.export.export(
            network, (two,), dynamic_shapes={"images": {0: Dim("batch", min=1)}}
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def metadata(model: Any) -> dict[str, str]:
    """Returns names, thresholds and preprocessing for a file: text as it is, all else as JSON."""
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    about = {**defaults, "class_names": model.class_names, **model.preprocessing}
    if model.thresholds:
        about["thresholds"] = model.thresholds
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }


def write_pt2(network: nn.Module, model: Any, path: Path) -> None:
    """Writes a program that torch runs without this project, with metadata in its extra files."""
    content = io.BytesIO()  # torch's own writer aborts the process where the disk is full
    program = trace(network, model.preprocessing)
    torch.export.save(program, content, extra_files=metadata(model))
    path.write_bytes(content.getvalue())


def load_pt2(path: Path) -> Classify:
    """Loads a program of ``torch.export``."""
    return torch.no_grad()(torch.export.load(path).module())


def write_onnx(network: nn.Module, model: Any, path: Path) -> None:
    """Writes one file of ONNX with its weights and metadata inside."""
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # OpenCV ignores the slope and offset of the operator HardSigmoid without an error
    decompositions = torch.export.default_decompositions()
    aten = torch.ops.aten
    hard = {
        operator: decompositions[operator]
        for operator in (aten.hardsigmoid.default, aten.hardswish.default)
    }
    program = torch.onnx.export(
        trace(network, model.preprocessing).run_decompositions(hard),
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


_FORMATS = {
    ".onnx": (write_onnx, load_onnx, ["onnx", "onnxscript", "onnxruntime"]),
    ".pt2": (write_pt2, load_pt2, list[str]()),
    "/": (hub.write_folder, hub.load_folder, ["timm"]),
}
