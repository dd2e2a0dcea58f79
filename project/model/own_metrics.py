"""Further metrics of validation and test, which a subclass of the classifier names."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torchmetrics import Metric

from project.engine.errors import UserError, require
from project.model.batch import is_counted

_TAKEN = {"loss", "accuracy", "top5", "f1", "correct", "total", "top5_correct", "confusion_matrix", "per_class", "step"}


class OwnMetrics(nn.Module):
    """Metrics of one set, by name; torchmetrics synchronises them over the processes.

    Args:
        metrics: Each takes logits, float (N, classes), and labels as the data has them, and returns one number.

    Raises:
        UserError: A name is taken.
    """

    def __init__(self, metrics: dict[str, Metric]) -> None:
        super().__init__()
        for name in metrics:
            require(name not in _TAKEN, "the name of a metric", name, f"none of {', '.join(sorted(_TAKEN))}")
        self._by_name = nn.ModuleDict(metrics)

    def metrics(self) -> dict[str, Metric]:
        """The metrics by name."""
        return {name: metric for name, metric in self._by_name.items() if isinstance(metric, Metric)}

    def modes(self) -> dict[str, str | None]:
        """Whether ``min`` or ``max`` of each is best; None where it does not say so."""
        words = {True: "max", False: "min", None: None}
        return {name: words[metric.higher_is_better] for name, metric in self.metrics().items()}

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Shows a batch to each of the metrics.

        Args:
            logits: float (N, classes).
            labels: int64 (N,) or (N, classes); images with negative ones, which another process counts, are left out.
        """
        counted = is_counted(labels)
        if not self._by_name or not counted.any():
            return
        for metric in self.metrics().values():
            metric.update(logits[counted], labels[counted])

    def conclude(self, trainer: Trainer | None = None) -> dict[str, float]:
        """Computes each over the images of all processes, and forgets them.

        Args:
            trainer: The trainer, if there is one.

        Raises:
            UserError: A metric is no single number, or a process has seen no image, which torchmetrics cannot do with.
        """
        found: dict[str, float] = {}
        for name, metric in self.metrics().items():
            seen = metric.update_called
            if not (seen if trainer is None else trainer.strategy.reduce_boolean_decision(seen, all=True)):
                raise UserError(f"the metric '{name}' needs an image on each device; evaluate on fewer devices")
            value = metric.compute()
            if not isinstance(value, Tensor | float | int) or torch.as_tensor(value).numel() != 1:
                raise UserError(f"the metric '{name}' must be one number, got {type(value).__name__}")
            found[name] = float(value)
        self.reset()
        return found

    def reset(self) -> None:
        """Forgets all images."""
        for metric in self.metrics().values():
            metric.reset()
