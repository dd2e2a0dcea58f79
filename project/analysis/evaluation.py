"""Predictions for each image of a split, collected by a callback while a trainer evaluates it."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, distributed
from torch.nn import functional as F
from torchmetrics.functional.classification import multilabel_average_precision

from project.analysis.tables import named
from project.data import ImageDataModule
from project.engine.cli.entry import quiet_libraries
from project.engine.errors import UserError
from project.engine.loading.batch import BatchDataset
from project.engine.loading.scan import spelt
from project.engine.run.rows import Row
from project.model import ImageClassifier
from project.model.metrics import class_rates

EVALUATED = ["path", "label", "confidence", "error", "true_label", "correct"]
QUIET: Any = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
)
"""Options of a trainer that leaves nothing behind."""
_AT_ONCE = 2**12


@dataclass
class Predictions:
    """Predictions for the images of a split, each once, in the order of the dataset, on the CPU.

    The true label of a file that cannot be read is -1, and its prediction means nothing. If images may have several classes,
    labels are int64 (N, classes): 1 for each class, -1 for unknown ones.
    """

    indices: Tensor
    """Positions in the dataset, int64 (N,)."""
    labels: Tensor
    """The true labels."""
    predicted: Tensor
    """The predicted labels."""
    confidence: Tensor
    """The probability of each image's predicted class; of several, of the least probable decision."""
    logits: Tensor
    """float32 (N, classes), or (N, 0) where they were not kept."""

    @property
    def known(self) -> Tensor:
        """True where an image has a label."""
        return _known(self.labels)

    @property
    def correct(self) -> Tensor:
        """True where an image is classified correctly, in all classes that are known of it."""
        agreed = (self.predicted == self.labels) | (self.labels < 0)
        return agreed.view(len(agreed), -1).all(1) & self.known

    def confident(self, correct: bool, count: int) -> list[int]:
        """Finds the images classified correctly, or wrongly, with the greatest confidence."""
        positions = (self.known & (self.correct == correct)).nonzero().flatten()
        return positions[self.confidence[positions].argsort(descending=True, stable=True)][
            :count
        ].tolist()


def _known(labels: Tensor) -> Tensor:
    return (labels >= 0).view(len(labels), -1).any(1)


class CollectPredictions(Callback):
    """Collects the ``predictions`` of all processes while a model is tested or validated, on request with logits."""

    def __init__(self, with_logits: bool = False) -> None:
        self.with_logits = with_logits
        self.predictions: Predictions | None = None
        self._batches: list[list[Tensor]] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps a batch's predictions."""
        if not isinstance(outputs, Tensor):
            raise UserError(
                f"predictions of each image need a {type(pl_module).__name__} whose steps return logits"
            )
        logits = outputs.float()
        probabilities = pl_module.probabilities(logits)
        predicted = pl_module.predicted(probabilities, "test" if trainer.testing else "val")
        confidence = _probability(probabilities, predicted)
        kept = logits if self.with_logits else logits[:, :0]
        self._batches.append(
            [field.cpu() for field in (batch.indices, batch.labels, predicted, confidence, kept)]
        )

    on_validation_batch_end = on_test_batch_end

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Gathers the predictions of all processes, which have as many images each, in the first process."""
        if not self._batches:
            return
        mine, self._batches = [torch.cat(field) for field in zip(*self._batches, strict=True)], []
        if trainer.world_size > 1:
            mine = [_gathered(field.to(pl_module.device), trainer) for field in mine]
        if not trainer.is_global_zero:
            return
        indices, labels, *_ = mine
        # another process counts an image whose label is -1 here, unless nobody could read it
        order = (2 * indices + ~_known(labels)).argsort()
        first = indices[order].diff(prepend=torch.tensor([-1])) > 0
        self.predictions = Predictions(*(field[order][first] for field in mine))

    on_validation_epoch_end = on_test_epoch_end


def _gathered(mine: Tensor, trainer: Trainer) -> Tensor:
    """Joins tensors of all processes in the first one; Lightning's ``all_gather`` would send all of them to all."""
    parts = (
        [torch.empty_like(mine) for _ in range(trainer.world_size)]
        if trainer.is_global_zero
        else None
    )
    distributed.gather(mine, parts)
    return torch.cat(parts or [mine]).cpu()


def evaluated_rows(
    found: Predictions, dataset: BatchDataset, class_names: Sequence[str]
) -> Iterator[list[Row]]:
    """Makes a row for each image of the split, in blocks."""
    files = getattr(dataset, "files", None)
    fields = (
        found.indices,
        found.labels,
        found.predicted,
        found.confidence,
        found.known,
        found.correct,
    )
    for block in zip(*(torch.split(field, _AT_ONCE) for field in fields), strict=True):
        rows: list[Row] = []
        for index, target, label, confidence, known, correct in zip(
            *(part.tolist() for part in block), strict=True
        ):
            cells: list[Any] = [
                named(label, class_names),
                confidence,
                None,
                named(target, class_names),
                correct,
            ]
            if not known:
                cells = [None, None, "has no label, or cannot be read as an image", None, None]
            path = spelt(str(files[index])) if files is not None else dataset.name(index)
            rows.append(dict(zip(EVALUATED, [path, *cells], strict=True)))
        yield rows


def _probability(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Returns the probability of each image's label, float (N,); of several classes, that of the least probable decision."""
    if labels.dim() == 1:
        return probabilities.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels > 0, probabilities, 1 - probabilities).where(labels >= 0, 1).amin(1)


@dataclass
class Evaluation(Predictions):
    """A model's predictions for all images of a split; where a file cannot be read, logits and probabilities are NaN."""

    probabilities: Tensor
    images: BatchDataset
    metrics: dict[str, Any]
    """As ``python -m project.evaluate`` reports them, the model's own included."""
    attributes: dict[str, dict[str, int]]
    """The model's."""

    @property
    def per_class(self) -> list[dict[str, float | int]]:
        """The rates of each class; where images may have several, also average precision."""
        if self.labels.dim() == 1:
            return class_rates(self.metrics)
        found = (self.probabilities[self.known], self.labels[self.known], self.labels.shape[1])
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="No positive samples"
            )  # of a class: the table says 0 images
            precisions = (
                multilabel_average_precision(*found, average=None, ignore_index=-1)
                .nan_to_num()
                .tolist()
            )
        return [
            {**row, "average_precision": p}
            for row, p in zip(class_rates(self.metrics), precisions, strict=True)
        ]

    @property
    def decisions(self) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, probabilities and labels of what is known; of several classes, each is a choice between 0 and 1.

        Of attributes, each is a choice among its classes, and those with fewer are filled up with impossible ones.
        """
        if self.labels.dim() == 1:
            return self.logits[self.known], self.probabilities[self.known], self.labels[self.known]
        if self.attributes:
            parts = map(self._decisions_of, self.attributes.values())
            logits, probabilities, labels = map(torch.cat, zip(*parts, strict=True))
            return logits, probabilities, labels
        chosen, p = self.labels >= 0, self.probabilities
        logits = torch.stack([torch.zeros_like(self.logits), self.logits], dim=2)
        return logits[chosen], torch.stack([1 - p, p], dim=2)[chosen], self.labels[chosen]

    def _decisions_of(self, attribute: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
        positions = [*attribute.values()]
        share, label = self.labels[:, positions].max(1)
        known, missing = share > 0, (0, max(map(len, self.attributes.values())) - len(positions))
        logits, probabilities = (
            values[known][:, positions] for values in (self.logits, self.probabilities)
        )
        return F.pad(logits, missing, value=-1e4), F.pad(probabilities, missing), label[known]

    def suspects(self, count: int) -> list[int]:
        """Finds the wrongly classified images whose label is least probable, perhaps label errors."""
        believed = _probability(self.probabilities, self.labels)
        wrong = (self.known & ~self.correct).nonzero().flatten()
        return wrong[believed[wrong].argsort(stable=True)][:count].tolist()


def evaluate_split(
    model: ImageClassifier, data: ImageDataModule, split: str = "test", as_in_use: bool = False
) -> Evaluation:
    """Evaluates a split with a trainer, as ``python -m project.evaluate`` does, and keeps what plots and tables need.

    Args:
        model: On any device, where it stays.
        data: The data module.
        split: ``val`` or ``test``.
        as_in_use: If true, validation uses all views of test-time augmentation, as a temperature for test images needs.
    """
    data.prepare_data()
    data.device_cache = False  # one pass gains nothing from it
    data.setup("test")
    images, device = data.splits[split], model.device
    measured = "test" if as_in_use else split
    collect = CollectPredictions(with_logits=True)
    data.test_on(split)
    try:
        with warnings.catch_warnings():
            quiet_libraries()
            trainer = Trainer(
                accelerator="gpu" if device.type == "cuda" else device.type,
                devices=1 if device.index is None else [device.index],
                callbacks=[collect],
                **QUIET,
            )
            evaluate = trainer.test if measured == "test" else trainer.validate
            evaluate(model, datamodule=data, verbose=False)
    finally:
        data.test_on("test")
        model.to(device).eval()
    found = collect.predictions
    if found is None or measured not in model.results:
        raise UserError(f"the {measured}_step of {type(model).__name__} measures nothing")
    found.logits = found.logits.masked_fill(~found.known[:, None], float("nan"))
    with torch.inference_mode():
        probabilities = model.probabilities(found.logits.to(device)).cpu()
    return Evaluation(
        **vars(found),
        probabilities=probabilities,
        images=images,
        metrics=model.results[measured],
        attributes=model.attributes,
    )
