"""The files that export writes, ONNX and torch's own: with metadata inside, and loaded again."""

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

if TYPE_CHECKING:
    from project.model.classifier import ImageClassifier


def trace(network: nn.Module, model: "ImageClassifier") -> ExportedProgram:
    """Traces a network for images of the crop, in batches of any size."""
    channels, crop = len(model.preprocessing["mean"]), model.preprocessing["crop"]
    # of one image the batch dimension would become a constant
    two = torch.zeros(2, channels, crop, crop, dtype=model.normalization.pixels)
    sizes = {"images": {0: Dim("batch", min=1)}}
    program = torch.export.export(network, (two,), dynamic_shapes=sizes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def metadata(model: "ImageClassifier") -> dict[str, str]:
    """Returns names, thresholds and preprocessing for a file: text as it is, all else as JSON."""
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    about = {**defaults, "class_names": model.class_names, **model.preprocessing}
    if model.thresholds:
        about["thresholds"] = model.thresholds
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }


def write_pt2(network: nn.Module, model: "ImageClassifier", path: Path) -> None:
    """Writes a program that torch runs without this project, with metadata in its extra files."""
    content = io.BytesIO()  # torch's own writer aborts the process where the disk is full
    program = trace(network, model)
    torch.export.save(program, content, extra_files=metadata(model))
    path.write_bytes(content.getvalue())


def load_pt2(path: Path) -> Callable[[Tensor], Tensor]:
    """Loads a program of ``torch.export``."""
    return torch.no_grad()(torch.export.load(path).module())


def write_onnx(network: nn.Module, model: "ImageClassifier", path: Path) -> None:
    """Writes one file of ONNX with its weights and metadata inside."""
    import onnx
    import onnxruntime  # noqa: F401  # here, so that a missing one is named before any work
    import onnxscript  # noqa: F401

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # OpenCV ignores the slope and offset of the operator HardSigmoid without an error
    decompositions = torch.export.default_decompositions()
    aten = torch.ops.aten
    hard = {
        operator: decompositions[operator]
        for operator in (aten.hardsigmoid.default, aten.hardswish.default)
    }
    program = torch.onnx.export(
        trace(network, model).run_decompositions(hard),
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
    onnx.save(file, path)


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
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
