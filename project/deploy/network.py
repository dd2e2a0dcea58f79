"""What an exported file holds: a network with normalisation and, by default, softmax around it, and what it says of itself."""

import json
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from project.engine.preprocessing import Preprocessing
from project.model import ImageClassifier
from project.model.normalize import to_255_scale
from project.model.test_time import mean_logits


class ProbabilityNetwork(nn.Module):
    """A network that takes bytes and returns probabilities, in float32 and on the CPU.

    Args:
        model: The model, which stays as it is.
    """

    def __init__(self, model: ImageClassifier) -> None:
        super().__init__()
        self.network = deepcopy(model.network).cpu().float().to(memory_format=torch.contiguous_format)
        self._probabilities, self._views = model.probabilities, model.test_time_augmentation
        self.mean = nn.Buffer(to_255_scale(model.preprocessing["mean"]))
        self.std = nn.Buffer(to_255_scale(model.preprocessing["std"]))

    def forward(self, images: Tensor) -> Tensor:
        """Normalises and classifies.

        Args:
            images: uint8 (N, 3, crop, crop), RGB.

        Returns:
            Probabilities, float32 (N, classes).
        """
        return self._probabilities(mean_logits(self._classify, images, self._views))

    def _classify(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network((images.float() - self.mean) / self.std)
        return logits


def trace(model: ImageClassifier) -> ExportedProgram:
    """Traces a model for images of its crop, in batches of any size.

    Args:
        model: The model, which stays as it is.
    """
    crop = model.preprocessing["crop"]
    two = torch.zeros(2, 3, crop, crop, dtype=torch.uint8)  # of one image the batch dimension would become a constant
    shapes = {"images": {0: Dim("batch", min=1)}}
    network = ProbabilityNetwork(model).eval().requires_grad_(False)  # or what it returns could not become an array
    with torch.no_grad():
        program = torch.export.export(network, (two,), dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names files of this machine
    return program


def metadata(class_names: list[str], preprocessing: Preprocessing) -> dict[str, str]:
    """What an exported file says of itself, as text.

    Args:
        class_names: The classes in the order of the probabilities.
        preprocessing: How an image becomes input.

    Returns:
        ``class_names`` and each part of the preprocessing by name, and how the image is scaled: text as it is, all else
        as JSON.
    """
    defaults = {"fit": "crop", "interpolation": "bilinear", "antialias": True}
    known = {**defaults, "class_names": class_names, **preprocessing}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}
