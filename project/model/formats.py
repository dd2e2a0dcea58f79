"""The network that is exported, its files, ONNX and torch's own, and their check."""

import base64
import io
import json
import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from lightkeeper.exact import UserError, note
from lightkeeper.images import prepare
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from project.model.inference import mean_logits
from project.model.normalize import Normalization, image_shape
from project.model.resizing import Resizing

if TYPE_CHECKING:
    from project.model.classifier import ImageClassifier

TOLERANCE = 1e-4
"""The largest difference of a probability; float32 on other kernels differs by less than 1e-5."""


class ProbabilityNetwork(nn.Module):
    """A copy of a model for export: from pixels to probabilities, in float32 on the CPU.

    Args:
        model: The model of a checkpoint.
        photos: Takes photos of any size, and resizes them; else images of the crop.
    """

    def __init__(self, model: "ImageClassifier", photos: bool = False) -> None:
        super().__init__()
        self.photos = photos
        self.resize = Resizing(model.preprocessing) if photos else nn.Identity()
        self.network = (
            deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
        )
        self._temperature = model.about.get("temperature", 1.0)
        self._probabilities = model.probabilities
        self._views = model.test_time_augmentation
        statistics = Normalization(model.preprocessing)
        self.mean = nn.Buffer(statistics.mean)
        self.std = nn.Buffer(statistics.std)

    def forward(self, images: Tensor) -> Tensor:
        """Resizes, normalises and classifies images, as the preprocessing says.

        Args:
            images: Photos (N, channels, height, width), or images (N, channels, *crop).
        """
        logits = mean_logits(self._classify, self.resize(images), self._views)
        probabilities: Tensor = self._probabilities(logits / self._temperature)
        return probabilities

    def _classify(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) / self.std)
        return logits


def write_and_compare(
    model: "ImageClassifier",
    write: Callable[[ProbabilityNetwork, "ImageClassifier", Path], None],
    load: Callable[[Path], Callable[[Tensor], Tensor]],
    path: Path,
    photos: bool = False,
) -> tuple[int, float]:
    """Writes a model to a file, unless that computes something else.

    Args:
        model: The model of the checkpoint.
        write: Writes the network, from pixels to probabilities, to a path.
        load: Loads that file as a function from images to probabilities, float32 (N, classes).
        path: The file, which is replaced.
        photos: Takes photos of any size, and resizes them; else images of the crop.

    Returns:
        The number of images that both were compared on, and the largest difference of a
        probability.
    """
    model.eval()
    # without gradients, as a result with some cannot become an array
    network = ProbabilityNetwork(model, photos).eval().requires_grad_(False)
    batches = generated_images(model, photos)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        partial = Path(scratch) / path.name
        note(f"writing {path}…")
        with torch.inference_mode():
            expected = [model.predict_step(_fitted(network, model, x), 0) for x in batches]
        write(network, model, partial)
        classify = load(partial)
        computed = torch.cat([classify(batch) for batch in batches])
        difference = (torch.cat(expected).double() - computed.double()).abs().max().item()
        if not difference <= TOLERANCE:  # nan, too
            raise UserError(
                "the exported file does not compute what the checkpoint does: probabilities differ"
                f" by up to {difference:.2g}, so nothing was written; its network is what is"
                " exported, so what a forward of your own adds belongs there"
            )
        partial.replace(path)
    return len(computed), difference


def generated_images(model: "ImageClassifier", photos: bool) -> list[Tensor]:
    """Generates smooth and noisy images in batches, (N, channels, *crop) or photos."""
    _, *crop = image_shape(model.preprocessing)
    generator = torch.Generator().manual_seed(0)
    # less than twice as large: float32 sums these exactly, so that no pixel is rounded otherwise
    scales = 0.75 + 0.75 * torch.rand(5, 2, generator=generator)
    sizes = (scales * torch.tensor(crop)).long().clamp(min=1).tolist() if photos else [crop] * 5
    return [
        _smooth(model, count, size, generator)
        for count, size in zip((1, 7, 8, 8, 8), sizes, strict=True)
    ]


def _smooth(
    model: "ImageClassifier", count: int, shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    dtype = model.normalization.pixels
    coarse = 3 * torch.rand(count, len(model.preprocessing["mean"]), 6, 6, generator=generator) - 1
    smooth = interpolate(coarse, size=shape, mode="bicubic")
    return (smooth.clamp(0, 1) * torch.iinfo(dtype).max).to(dtype)


def _fitted(network: ProbabilityNetwork, model: "ImageClassifier", images: Tensor) -> Tensor:
    """Fits images as the file does, (N, channels, *crop), if evaluation does likewise."""
    fitted: Tensor = network.resize(images)
    white = torch.iinfo(images.dtype).max
    difference = (
        (fitted.float() - _resized_as_in_evaluation(network, model, images).float()).abs().max()
    )
    if difference > white / 255:
        raise UserError(
            "the file would not resize as evaluation does: pixels differ by up to"
            f" {255 * difference / white:.2g} of 255; --prepared leaves resizing out of it"
        )
    return fitted.to(images.dtype)


def _resized_as_in_evaluation(
    network: ProbabilityNetwork, model: "ImageClassifier", images: Tensor
) -> Tensor:
    """Fits images as evaluation does."""
    if not network.photos:
        return images
    return torch.stack([prepare(image, model.preprocessing) for image in images])


def trace(network: ProbabilityNetwork, model: "ImageClassifier") -> ExportedProgram:
    """Traces a network for images in batches of any size, and photos of any size."""
    channels, height, width = image_shape(model.preprocessing)
    if network.photos and height == width:
        width += 1  # or photos would have to be square; and one image would fix the batch's size
    two = torch.zeros(2, channels, height, width, dtype=model.normalization.pixels)
    axes = {axis: Dim(name, min=1) for axis, name in _dynamic_axes(network).items()}
    program = torch.export.export(network, (two,), dynamic_shapes={"images": axes})
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def _dynamic_axes(network: ProbabilityNetwork) -> dict[int, str]:
    """Names the input's axes that may have any size, as ONNX does."""
    return {0: "batch", 2: "height", 3: "width"} if network.photos else {0: "batch"}


def metadata(network: ProbabilityNetwork, model: "ImageClassifier") -> dict[str, str]:
    """Returns a file's metadata: class names, thresholds, preprocessing and checks.

    ``positive`` is the place of the class that a model of two finds from its threshold on.

    Values are JSON, except for those that are text, which stand as they are.
    """
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    about = {**defaults, "class_names": model.class_names, **model.preprocessing}
    if model.thresholds:
        about["thresholds"] = model.thresholds
        positive = getattr(model, "positive", None)  # of a class of yours perhaps something else
        if isinstance(positive, int) and positive in range(2) and len(model.thresholds) == 2:
            about["positive"] = int(positive)
    about["has_one_class"] = model.has_one_class
    about["checks"] = _checks(network, model)
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }


def _checks(network: ProbabilityNetwork, model: "ImageClassifier") -> list[dict[str, object]]:
    """Returns three images and the checkpoint's probabilities for them, to check a runtime by.

    Each is the least sure of 16: other pixels, as of exchanged colours, change no probability of 1.
    ``pixels`` are base64 of the bytes, C-contiguous, of an array of ``shape``.
    """
    _, *crop = image_shape(model.preprocessing)
    generator = torch.Generator().manual_seed(1)
    checks: list[dict[str, object]] = []
    for shape in ((61, 83), (97, 64), (48, 48)) if network.photos else [crop] * 3:
        images = _smooth(model, 16, shape, generator)
        with torch.inference_mode():
            fitted = _resized_as_in_evaluation(network, model, images)
            probabilities = model.predict_step(fitted, 0)
        at = int((probabilities - 0.5).abs().amin(1).argmin())
        pixels = base64.b64encode(images[at].numpy().tobytes()).decode()
        shares = [round(share, 6) for share in probabilities[at].tolist()]
        checks.append({"shape": [1, *images[at].shape], "pixels": pixels, "probabilities": shares})
    return checks


def write_pt2(network: ProbabilityNetwork, model: "ImageClassifier", path: Path) -> None:
    """Writes a program that torch runs without this project, with metadata in its extra files."""
    content = io.BytesIO()  # torch's own writer aborts the process where the disk is full
    program = trace(network, model)
    torch.export.save(program, content, extra_files=metadata(network, model))
    path.write_bytes(content.getvalue())


def load_pt2(path: Path) -> Callable[[Tensor], Tensor]:
    """Loads a program of ``torch.export``."""
    return torch.no_grad()(torch.export.load(path).module())


def write_onnx(network: ProbabilityNetwork, model: "ImageClassifier", path: Path) -> None:
    """Writes one ONNX file with its weights and metadata inside."""
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
        dynamic_shapes={"images": _dynamic_axes(network)},
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
    onnx.helper.set_model_props(file, metadata(network, model))
    onnx.save(file, path)


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Loads an ONNX file as a function from images to probabilities."""
    session = open_onnx(path)
    return lambda images: torch.from_numpy(
        session.run(None, {"images": images.contiguous().numpy()})[0]
    )


def open_onnx(path: Path) -> Any:
    """Opens an ONNX file in ONNX Runtime on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as error:  # it raises many types
        reason = str(error).splitlines()[0]
        raise UserError(f"'{path}' cannot be opened as an ONNX file ({reason})") from error
