"""Writing a model as ONNX or as a program of ``torch.export``, and running such a file."""

import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from project.deploy.network import metadata, trace
from project.engine.errors import UserError
from project.model import ImageClassifier

Classify = Callable[[Tensor], Tensor]
"""Takes images, uint8 (N, 3, crop, crop), and returns probabilities, float32 (N, classes)."""

SUFFIXES = (".onnx", ".pt2")
INPUT, OUTPUT = "images", "probabilities"


def require_packages(suffix: str) -> None:
    """Notices what is missing before anything is read.

    Raises:
        UserError: Writing such a file needs packages that are not installed.
    """
    needed = ["onnx", "onnxscript", "onnxruntime"] if suffix == ".onnx" else []
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(f"writing ONNX needs packages that are not installed; run: pip install {' '.join(missing)}")


def write_pt2(model: ImageClassifier, path: Path) -> None:
    """Writes a program that torch runs without this project; what it says of itself lies in its extra files."""
    torch.export.save(trace(model), path, extra_files=metadata(model.class_names, model.preprocessing))


def load_pt2(path: Path) -> Classify:
    """Loads a program of ``torch.export``."""
    program = torch.export.load(path).module()

    def classify(images: Tensor) -> Tensor:
        with torch.no_grad():
            probabilities: Tensor = program(images)
        return probabilities

    return classify


def write_onnx(model: ImageClassifier, path: Path) -> None:
    """Writes one file of ONNX, which holds the weights, too."""
    import onnx

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program = torch.onnx.export(
        trace(model),
        dynamo=True,
        external_data=False,
        verbose=False,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes={INPUT: {0: "batch"}},
    )
    assert program is not None
    graph = program.model_proto
    for part in (graph.graph, *graph.graph.node, *graph.graph.input, *graph.graph.output, *graph.graph.value_info):
        del part.metadata_props[:]  # of how torch traced it, with paths of this machine
    onnx.helper.set_model_props(graph, metadata(model.class_names, model.preprocessing))
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)


def load_onnx(path: Path) -> Classify:
    """Loads a file of ONNX into ONNX Runtime on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.contiguous().numpy()})[0])
