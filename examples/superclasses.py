"""Superclasses: accuracy and macro F1 of coarser classes, too, whose probability is the sum of their classes'.

They are a level of folders, as in animals/cat/1.jpg, or a column of a table:

python -m project.fit --model examples.superclasses.SuperclassClassifier --data FOLDER --data.label_from '([^/]+/[^/]+)/[^/]+$'
"""

from typing import Any

import torch
from lightkeeper.exact import UserError
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.wrappers.transformations import MetricInputTransformer

from examples.recipes.columns import read_columns
from project.model import ImageClassifier


class OfSuperclasses(MetricInputTransformer):
    """Has a metric see superclasses: the sums of their classes' probabilities, and their labels."""

    higher_is_better = True
    parents: Tensor

    def __init__(self, metric: MulticlassAccuracy | MulticlassF1Score, parents: list[int]) -> None:
        super().__init__(metric)
        self.register_buffer("parents", torch.tensor(parents), persistent=False)

    def transform_pred(self, pred: Tensor) -> Tensor:
        """Returns sums, float (N, superclasses)."""
        sums = pred.new_zeros(len(pred), int(self.parents.max()) + 1)
        return sums.index_add_(1, self.parents, pred)

    def transform_target(self, target: Tensor) -> Tensor:
        """Returns the superclass of each label, int64 (N,)."""
        return self.parents[target]


def superclasses_in(file: str) -> dict[str, str]:
    """Returns the superclass of each label in a CSV."""
    parents: dict[str, str] = {}
    for row in read_columns(file, "superclasses", "label", "superclass"):
        label, parent = row["label"], row["superclass"]
        if parents.setdefault(label, parent) != parent:
            raise UserError(
                f"'{file}' has two superclasses of '{label}': {parents[label]}, {parent}"
            )
    return parents


class SuperclassClassifier(ImageClassifier):
    """Learns the classes, and measures their superclasses as well.

    Args:
        superclasses: The superclass of each class, as in ``{cat: animal}``, or a CSV with columns
            ``label`` and ``superclass``, such as that of the images. By default, what stands before
            ``/`` in the name of the class.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(
        self,
        class_names: list[str],
        superclasses: dict[str, str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(superclasses, str):
            superclasses = superclasses_in(superclasses)
        parents = superclasses or {name: name.split("/")[0] for name in class_names}
        if absent := [name for name in class_names if name not in parents]:
            raise UserError(f"names no superclass of {absent[0]}", "superclasses")
        names = sorted({parents[name] for name in class_names})
        self.parents = [names.index(parents[name]) for name in class_names]
        super().__init__(class_names, **kwargs)
        self.hparams["superclasses"] = parents  # a checkpoint needs no file

    def configure_metrics(self) -> dict[str, Metric]:
        """Adds both metrics of superclasses."""
        count = max(self.parents) + 1
        accuracy = MulticlassAccuracy(count, average="micro")
        f1 = MulticlassF1Score(count, average="macro")
        return super().configure_metrics() | {
            "superclass_accuracy": OfSuperclasses(accuracy, self.parents),
            "superclass_f1": OfSuperclasses(f1, self.parents),
        }
