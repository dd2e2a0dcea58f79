"""Rows of what evaluation says of each image."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from project.engine.loading.batch import BatchDataset
from project.engine.loading.scan import spelt
from project.engine.run.rows import Row

EVALUATED = ["path", "label", "confidence", "error", "true_label", "correct"]
_AT_ONCE = 2**12


class Predictions(NamedTuple):
    """What was said of the images of a split, each once, in the order of the dataset.

    Attributes:
        indices: int64 (N,), positions in the dataset.
        targets: int64 (N,), the true labels; -1 where a file cannot be read.
        labels: int64 (N,), the most probable ones.
        confidences: float32 (N,), their probabilities.
    """

    indices: Tensor
    targets: Tensor
    labels: Tensor
    confidences: Tensor


def evaluated_rows(found: Predictions, dataset: BatchDataset, class_names: Sequence[str]) -> Iterator[list[Row]]:
    """Makes a row for each image, in blocks.

    Args:
        found: What the model says.
        dataset: The split.
        class_names: The classes in the order of their labels.
    """
    files = getattr(dataset, "files", None)
    for start in range(0, len(found.indices), _AT_ONCE):
        block = [field[start : start + _AT_ONCE].tolist() for field in found]
        rows: list[Row] = []
        for index, target, label, confidence in zip(*block, strict=True):
            path = spelt(str(files[index])) if files is not None else dataset.name(index)
            if target < 0:
                row = {**dict.fromkeys(EVALUATED), "path": path, "error": "cannot be read as an image"}
            else:
                names = {"label": class_names[label], "true_label": class_names[target]}
                row = {"path": path, **names, "confidence": confidence, "error": None, "correct": label == target}
            rows.append({name: row[name] for name in EVALUATED})
        yield rows
