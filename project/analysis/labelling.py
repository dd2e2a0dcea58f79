"""Labelling any number of image files on any number of devices, as a stream: what is in memory does not grow."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import functional as F

from project.analysis.prediction import ranked
from project.engine.loading.path_batches import PathBatch, error_text
from project.engine.loading.scan import spelt
from project.engine.run.rows import Columns, Row
from project.model import ImageClassifier


class Labels(NamedTuple):
    """What a network says of a batch.

    Attributes:
        labels: int64 (N, top_k), the most probable first.
        confidences: float32 (N, top_k), their probabilities.
        errors: As in :class:`PathBatch`.
    """

    labels: Tensor
    confidences: Tensor
    errors: Tensor


def label_columns(top_k: int) -> Columns:
    """The columns of the rows of predictions.

    Args:
        top_k: How many classes of each image are named.
    """
    further = {name: kind for place in range(2, top_k + 1) for name, kind in _columns_of(f"_{place}").items()}
    return {"path": str, **_columns_of(""), **further, "error": str}


def _columns_of(place: str) -> dict[str, type]:
    return {f"label{place}": str, f"confidence{place}": float}


class Dealer:
    """Deals the paths that the first process reads out to all processes, a batch for each in turns.

    So the batches are the same on any number of devices, and only one process looks at folders and standard input.

    Args:
        trainer: Its strategy is what the processes talk through.
        paths: The paths; other processes than the first leave them alone.
        batch_size: The size of a batch.
    """

    def __init__(self, trainer: Trainer, paths: Iterator[str], batch_size: int) -> None:
        self._trainer, self._paths, self._batch_size = trainer, paths, batch_size
        self._dealt: deque[list[str]] = deque()

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the paths of this process's batches; the last may be empty, as another process has one then."""
        trainer, size = self._trainer, self._batch_size
        while True:
            mine = list(islice(self._paths, size * trainer.world_size)) if trainer.is_global_zero else []
            dealt = trainer.strategy.broadcast(mine)
            if not dealt:
                return
            if trainer.is_global_zero:
                self._dealt.append(dealt)
            yield dealt[trainer.global_rank * size :][:size]

    def take(self) -> list[str]:
        """The paths of one batch of all processes, in the first process, in the order in which they were dealt."""
        return self._dealt.popleft()


class Labeller(LightningModule):
    """Labels batches of image files.

    Args:
        model: The classifier.
        top_k: How many classes of each image are named.
    """

    def __init__(self, model: ImageClassifier, top_k: int = 1) -> None:
        super().__init__()
        self.model, self._top_k = model, top_k

    def predict_step(self, batch: PathBatch) -> Labels:
        """Labels a batch.

        Args:
            batch: May be empty.
        """
        if not len(batch.images):
            empty = torch.zeros((0, self._top_k), device=self.device)
            return Labels(empty.long(), empty, batch.errors)
        labels, confidences = ranked(self.model, batch.images)
        return Labels(labels[:, : self._top_k], confidences[:, : self._top_k], batch.errors)


class HandOver(Callback):
    """Hands the rows of all processes' batches over, in the order of the paths, in the first process.

    Args:
        dealer: Knows the paths.
        class_names: The classes in the order of their labels.
        batch_size: The size of a batch.
        take: Is called with rows and their paths.
    """

    def __init__(
        self,
        dealer: Dealer,
        class_names: Sequence[str],
        batch_size: int,
        take: Callable[[list[Row], list[str]], object],
    ) -> None:
        self._dealer, self._class_names, self._batch_size, self._take = dealer, class_names, batch_size, take

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collects what all processes found."""
        whole = (F.pad(field, (0, 0, 0, self._batch_size - len(field))) for field in outputs)
        found = Labels(*(trainer.strategy.all_gather(field).flatten(0, -2).cpu() for field in whole))
        if trainer.is_global_zero:
            paths = self._dealer.take()
            self._take(label_rows(paths, Labels(*(field[: len(paths)] for field in found)), self._class_names), paths)


def label_rows(paths: Sequence[str], found: Labels, class_names: Sequence[str]) -> list[Row]:
    """The rows of a batch, see :func:`label_columns`.

    Args:
        paths: The files.
        found: What the network says.
        class_names: The classes in the order of their labels.
    """
    columns = label_columns(found.labels.shape[1])
    rows: list[Row] = []
    for path, labels, confidences, error in zip(paths, *map(list, found), strict=True):
        text = error_text(error) or ("" if confidences.isfinite().all() else "the network's output is not finite")
        row = dict.fromkeys(columns) | {"path": spelt(path), "error": text or None}
        if not text:
            for place, (label, confidence) in enumerate(zip(labels.tolist(), confidences.tolist(), strict=True), 1):
                names = _columns_of("" if place == 1 else f"_{place}")
                row |= zip(names, (class_names[label], confidence), strict=True)
        rows.append(row)
    return rows
