"""The network that is exported, its files, ONNX, torch's own and timm's folder, and their check."""

import io
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from lightkeeper.exact import UserError, note
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from project.model.inference import mean_logits
from project.model.networks import TIMM
from project.model.normalize import Normalization, image_shape
from project.model.timm_folder import to_timm

if TYPE_CHECKING:
    from project.model.classifier import ImageClassifier

TOLERANCE = 1e-4
"""The largest difference of a probability; float32 on other kernels differs by less than 1e-5."""
_BATCH = 16


class ProbabilityNetwork(nn.Module):
    """A copy of a model for export: from pixels to probabilities, in float32 on the CPU."""

    def __init__(self, model: "ImageClassifier") -> None:
        super().__init__()
        self.network = (
            deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
        )
        for module in filter(is_parametrized, [*self.network.modules()]):  # such as LoRA's
            _merge_parametrizations(module)
        self._probabilities = model.probabilities
        self._views = model.test_time_augmentation
        statistics = Normalization(model.preprocessing)
        self.mean = nn.Buffer(statistics.mean)
        self.std = nn.Buffer(statistics.std)

    def forward(self, images: Tensor) -> Tensor:
        """Normalises and classifies images (N, channels, crop, crop), as the preprocessing says."""
        probabilities: Tensor = self._probabilities(
            mean_logits(self._classify, images, self._views)
        )
        return probabilities

    def _classify(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) / self.std)
        return logits


def _merge_parametrizations(module: Any) -> None:
    """Replaces a parametrization by its weights, without changing the shared class."""
    weights = {name: nn.Parameter(getattr(module, name)) for name in module.parametrizations}
    module.__class__ = type_before_parametrizations(module)
    del module.parametrizations
    for name, weight in weights.items():
        setattr(module, name, weight)


def write_and_compare(
    model: "ImageClassifier",
    write: Callable[[nn.Module, "ImageClassifier", Path], None],
    load: Callable[[Path], Callable[[Tensor], Tensor]],
    path: Path,
) -> tuple[Tensor, float]:
    """Writes a model to a file or a folder, unless that computes something else.

    Args:
        model: The model of the checkpoint.
        write: Writes a network from pixels to probabilities, as that of the model.
        load: Loads it as a function from images to probabilities, float32 (N, classes).
        path: The file or folder, which is replaced; other files in the folder stay.

    Returns:
        The images that both were compared on, and the largest difference of a probability.
    """
    model.eval()
    # without gradients, as a result with some cannot become an array
    network = ProbabilityNetwork(model).eval().requires_grad_(False)
    images = generated_images(model)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        partial = Path(scratch) / path.name
        note(f"writing {path}…")
        write(network, model, partial)
        with torch.inference_mode():
            expected = model.predict_step(images, 0)
        classify = load(partial)
        batches = (images[:1], *torch.split(images[1:], _BATCH))  # of any size
        computed = torch.cat([classify(batch) for batch in batches])
        difference = (expected.double() - computed.double()).abs().max().item()
        if not difference <= TOLERANCE:  # nan, too
            raise UserError(
                "the exported file does not compute what the checkpoint does: probabilities differ"
                f" by up to {difference:.2g}, so nothing was written"
            )
        if partial.is_dir():
            path.mkdir(exist_ok=True)
            for file in partial.iterdir():
                file.replace(path / file.name)
        else:
            partial.replace(path)
    return images, difference


def generated_images(model: "ImageClassifier", count: int = 32) -> Tensor:
    """Generates smooth and noisy images, (N, channels, *crop)."""
    channels, *crop = image_shape(model.preprocessing)
    dtype = model.normalization.pixels
    generator = torch.Generator().manual_seed(0)
    coarse = 3 * torch.rand(count, channels, 6, 6, generator=generator) - 1
    smooth = interpolate(coarse, size=crop, mode="bicubic")
    return (smooth.clamp(0, 1) * torch.iinfo(dtype).max).to(dtype)


def trace(network: nn.Module, model: "ImageClassifier") -> ExportedProgram:
    """Traces a network for images of the crop, in batches of any size."""
    # of one image the batch dimension would become a constant
    two = torch.zeros(2, *image_shape(model.preprocessing), dtype=model.normalization.pixels)
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


def write_folder(network: nn.Module, model: "ImageClassifier", folder: Path) -> None:
    """Writes weights and timm's configuration, with preprocessing and class names.

    Args:
        network: Its submodule ``network`` maps normalised images to logits.
        model: The model of the checkpoint.
        folder: A folder that does not exist.
    """
    from timm.models import save_for_hf

    twin = _timm_twin(network.get_submodule("network"), model)
    activation = "softmax" if model.has_one_class else "sigmoid"
    about: dict[str, object] = {"label_names": model.class_names, "activation": activation}
    if model.thresholds:
        about["thresholds"] = [*model.thresholds.values()]
    save_for_hf(twin, str(folder), about, _timm_args(model), safe_serialization=True)
    # safetensors writes for its owner alone
    shutil.copymode(folder / "config.json", folder / "model.safetensors")


def _timm_twin(network: nn.Module, model: "ImageClassifier") -> nn.Module:
    """Builds timm's network of the same name and layers, with the same weights."""
    import timm

    if model.test_time_augmentation:
        raise UserError(
            "--output: this model averages views of each image, which timm does not;"
            " write an .onnx or .pt2 file"
        )
    name = model.arch.removeprefix(TIMM)
    if timm.is_model(name):
        twin: nn.Module = timm.create_model(
            name,
            num_classes=len(model.class_names),
            pretrained_cfg_overlay=to_timm(model.preprocessing),
            **_timm_args(model),
        )
        with suppress(RuntimeError):  # it has other layers
            twin.load_state_dict(network.state_dict())
            return twin
    args = f" with {model.arch_args}" if model.arch_args else ""
    raise UserError(
        f"--output: timm has no network like {model.arch}{args}; write an .onnx or .pt2 file"
    )


def _timm_args(model: "ImageClassifier") -> dict[str, Any]:
    """Returns the arguments of timm's network."""
    channels = len(model.preprocessing["mean"])
    args = dict(model.arch_args or {}) if model.arch.startswith(TIMM) else {}
    return args if channels == 3 else args | {"in_chans": channels}
