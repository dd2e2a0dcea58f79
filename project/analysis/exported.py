"""An ONNX file in place of a network, to measure what is deployed: metrics, latency and size."""

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset, ImageBatch, ImageDataModule, Preprocessing
from torch import Tensor, nn

from project.model import ImageClassifier
from project.model.formats import open_onnx

_NUMBERS = ("crop", "resize", "mean", "std")


class OnnxNetwork(nn.Module):
    """Runs an ONNX file image by image, and returns the logarithms of its probabilities.

    Args:
        num_classes: The number of classes.
        path: A file of ``python -m project.export``, or made of one.

    Attributes:
        seconds: How long each image has taken.
        takes_photos: True if it takes photos of any size, and resizes them itself.
    """

    def __init__(self, num_classes: int, path: str) -> None:
        super().__init__()
        self.path = Path(path)
        self.session = open_onnx(self.path)
        images = self.session.get_inputs()[0]
        self.takes_photos = isinstance(images.shape[2], str)
        self.dtype = images.type.removeprefix("tensor(").removesuffix(")")
        self.seconds: list[float] = []
        self.like = nn.Parameter(torch.zeros(()), requires_grad=False)  # forward gets its dtype

    def forward(self, images: Tensor) -> Tensor:
        """Classifies images, float (N, channels, height, width), of whole numbers."""
        rows = []
        for image in images.cpu():
            pixels = image[None].round().numpy().astype(self.dtype)
            start = perf_counter()
            rows += self.session.run(["probabilities"], {"images": pixels})
            self.seconds.append(perf_counter() - start)
        # which are logits: softmax gives the probabilities back
        return torch.from_numpy(np.concatenate(rows)).clamp(min=1e-37).log().to(images.device)

    def photos_in(self, dataset: object) -> FileDataset:
        """Returns a dataset whose photos it takes as they are stored; refuses another."""
        if not isinstance(dataset, FileDataset) or "bits" in dataset.preprocessing:
            raise UserError(f"'{self.path}' takes RGB photos from files; export it with --prepared")
        return dataset

    def costs(self) -> dict[str, float]:
        """Returns the size of the file in MB, and the latency of an image in ms."""
        middle, slow = np.percentile(np.multiply(1000, self.seconds), [50, 95]).tolist()
        return {
            "megabytes": self.path.stat().st_size / 1e6,
            "latency_ms_p50": middle,
            "latency_ms_p95": slow,
        }


def describe_file(path: str) -> dict[str, Any]:
    """Returns what an ONNX file says of itself, as a checkpoint would; not of its training.

    Raises:
        UserError: It names no classes, or an answer depends on more than its probabilities.
    """
    texts = open_onnx(Path(path)).get_modelmeta().custom_metadata_map
    if not texts.keys() >= {"class_names", "has_one_class", *_NUMBERS}:
        raise UserError(
            f"'{path}' was not written by python -m project.export: it names no classes"
        )
    if "thresholds" in texts or texts["has_one_class"] == "false":
        raise UserError(
            f"'{path}' decides by thresholds, whose metrics only its checkpoint has; evaluate that"
        )
    try:
        preprocessing = {n: json.loads(texts[n]) for n in (*_NUMBERS, "bits") if n in texts}
        class_names = json.loads(texts["class_names"])
    except ValueError as error:
        raise UserError(f"the metadata of '{path}' are damaged: {error}") from error
    preprocessing |= {name: texts[name] for name in ("fit", "interpolation") if name in texts}
    return {
        "class_names": class_names,
        "preprocessing": preprocessing,
        "data": None,
        "step": None,
    }


def load_file(path: str) -> ImageClassifier:
    """Builds a classifier that runs an ONNX file, and so leaves normalising to it."""
    about = describe_file(path)
    preprocessing: Preprocessing = about["preprocessing"]
    channels = len(preprocessing["mean"])
    white = 2 ** preprocessing.get("bits", 8) - 1
    pixels: Preprocessing = {
        **preprocessing,
        "mean": [0.0] * channels,
        "std": [1 / white] * channels,
    }
    network = f"{OnnxNetwork.__module__}.{OnnxNetwork.__name__}"
    return ImageClassifier(
        about["class_names"], pixels, network, {"path": path}, exact_evaluation=False
    )


class PhotoDataset(FileDataset):
    """Photos as they are stored, one in a batch, for a file that resizes them itself."""

    def __getitems__(self, keys: Sequence[tuple[int, int]] | Sequence[int]) -> ImageBatch:
        """Returns a photo, uint8 (1, 3, height, width)."""
        batch = super().__getitems__(keys)
        return batch._replace(images=self.photo(int(batch.indices[0]))[None])


def serve(network: OnnxNetwork, data: ImageDataModule, split: str) -> None:
    """Serves a split so that a file can be timed, with its photos if it resizes these itself."""
    network.seconds.clear()  # of a trial
    data.num_workers = 0  # others would compete with it for the cores
    if network.takes_photos:
        data.setup("test")
        photos = network.photos_in(data.splits[split])
        files = [photos.path(index) for index in range(len(photos))]
        data.splits = {split: PhotoDataset(files, photos.labels, photos.preprocessing)}
        data.batch_size = 1
