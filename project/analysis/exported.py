"""Exported files: a network with normalisation and probabilities around it, as ONNX or as a program of ``torch.export``."""

import io
import json
import logging
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from project.engine.preprocessing import empty_images
from project.model import ImageClassifier
from project.model.normalize import Normalization
from project.model.test_time import mean_logits

Classify = Callable[[Tensor], Tensor]
"""Takes images, (N, channels, crop, crop), and returns probabilities, float32 (N, classes)."""


class ProbabilityNetwork(nn.Module):
    """A network that takes bytes and returns probabilities, in float32 and on the CPU; the model stays as it is."""

    def __init__(self, model: ImageClassifier) -> None:
        super().__init__()
        self.network = deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
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
    network = ProbabilityNetwork(model).eval().requires_grad_(False)  # or what it returns could not become an array
    with torch.no_grad():
        program = torch.export.export(network, (two,), dynamic_shapes={"images": {0: Dim("batch", min=1)}})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def metadata(model: ImageClassifier) -> dict[str, str]:
    """Returns class names, their thresholds and preprocessing for an exported file: text as it is, all else as JSON."""
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    thresholds = {} if model.thresholds is None else {"thresholds": model.thresholds}
    about = {**defaults, "class_names": model.class_names, **thresholds, **model.preprocessing}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}


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
    hard = {operator: decompositions[operator] for operator in (aten.hardsigmoid.default, aten.hardswish.default)}
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
    for part in (file.graph, *file.graph.node, *file.graph.input, *file.graph.output, *file.graph.value_info):
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
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.contiguous().numpy()})[0])
