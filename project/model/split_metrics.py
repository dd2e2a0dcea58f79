"""Everything that is measured of the validation or the test set."""

from typing import Any

from torch import Tensor

from project.model.metrics import CountingMetrics
from project.model.own_metrics import OwnMetrics


class SplitMetrics:
    """The counts of one set and a subclass's own metrics, as one.

    It is no module: the model registers its parts, under the names by which checkpoints know them.

    Args:
        split: ``val`` or ``test``.
        counts: Counts what the classifier says.
        own: The further metrics.
    """

    def __init__(self, split: str, counts: CountingMetrics, own: OwnMetrics) -> None:
        self._split, self._counts, self._own = split, counts, own

    def modes(self) -> dict[str, str | None]:
        """Whether ``min`` or ``max`` of each metric is best; None where it does not say so."""
        rates = self._counts.results().rates()
        return {name: "min" if name == "loss" else "max" for name in rates} | self._own.modes()

    def update(self, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Counts a batch.

        Args:
            logits: float (N, classes).
            labels: int64 (N,) or (N, classes); images with negative ones are not counted.
            losses: float (N,), each image's loss in nats.
        """
        self._counts.update(logits, labels, losses)
        self._own.update(logits, labels)

    def conclude(self, model: Any) -> None:
        """Computes all over the images of all processes, forgets the images, and keeps and logs what was found.

        Args:
            model: An ``ImageClassifier`` with its trainer; its ``results`` get those of this set. Lightning's check of a
                few batches before training counts for nothing.

        Raises:
            UserError: One of the further metrics cannot be computed.
        """
        results = self._counts.compute()._replace(own=self._own.conclude(model.trainer))
        self._counts.reset()
        if model.trainer.sanity_checking:
            return
        model.results[self._split] = results
        for name, value in results.rates().items():
            # every process has the same results already; "max" leaves them so to the last bit, where a mean could round
            model.log(f"{self._split}/{name}", value, prog_bar=name == "accuracy", reduce_fx="max", sync_dist=True)
