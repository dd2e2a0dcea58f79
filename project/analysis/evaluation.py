"""All images of a split as a model sees them, for plots and tables that need more than metrics."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from project.data import ImageDataModule
from project.engine.errors import UserError
from project.engine.loading.batch import BatchDataset
from project.model import ImageClassifier
from project.model.metrics import Metrics


class Evaluation(NamedTuple):
    """What a model says of a split, in the order of its dataset.

    Attributes:
        images: The dataset.
        logits: float32 (N, classes), on the CPU; NaN where a file could not be read.
        probabilities: What the model makes of them, float32 (N, classes), on the CPU; NaN where a file could not be read.
        labels: int64 (N,); -1 where a file could not be read.
        metrics: Those that ``python -m project.evaluate`` reports, the model's own included.
    """

    images: BatchDataset
    logits: Tensor
    probabilities: Tensor
    labels: Tensor
    metrics: Metrics

    @property
    def confidence(self) -> Tensor:
        """The probability of each image's predicted class, float32 (N,)."""
        return self._probability_of(self.predicted)

    @property
    def predicted(self) -> Tensor:
        """The predicted labels, int64 (N,)."""
        return self.logits.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether each image is classified correctly, bool (N,)."""
        return self.predicted == self.labels

    def confident(self, correct: bool, count: int) -> list[int]:
        """The positions of the images that are right, or wrong, with the greatest confidence."""
        wanted = (self.labels >= 0) & (self.correct == correct)
        positions = wanted.nonzero().flatten()
        return positions[self.confidence[positions].argsort(descending=True, stable=True)][:count].tolist()

    def suspects(self, count: int) -> list[int]:
        """The positions of the wrongly classified images whose label the model believes least, perhaps label errors."""
        believed = self._probability_of(self.labels.clamp(min=0))
        wrong = ((self.labels >= 0) & ~self.correct).nonzero().flatten()
        return wrong[believed[wrong].argsort(stable=True)][:count].tolist()

    def _probability_of(self, labels: Tensor) -> Tensor:
        return self.probabilities.gather(1, labels[:, None])[:, 0]


def evaluate_split(
    model: ImageClassifier, data: ImageDataModule, split: str = "test", as_in_use: bool = False
) -> Evaluation:
    """Runs a model once over a split, with the preprocessing and the precision of ``python -m project.evaluate``.

    Args:
        model: On any device; it is put into evaluation mode.
        data: The data module, outside of a trainer.
        split: ``val`` or ``test``.
        as_in_use: Whether validation takes all views of test-time augmentation, too, as a temperature for test images needs.

    Raises:
        UserError: The images cannot be found or read, or may have several classes each.
    """
    if not model.has_one_class:
        raise UserError("images can be shown only where the model gives each image one class")
    data.prepare_data()
    data.device_cache = False  # one pass gains nothing from it
    data.setup("test")
    images = data.splits[split]
    logits = torch.full((len(images), len(model.class_names)), float("nan"))
    probabilities, labels = logits.clone(), torch.full((len(images),), -1)
    measured_as: Any = "test" if as_in_use else split
    model.eval()
    step = model.test_step if measured_as == "test" else model.validation_step
    model.conclude(measured_as)  # forgets what was counted before
    with torch.inference_mode():
        loader = data.test_dataloader() if split == "test" else data.val_dataloader()
        for number, batch in enumerate(loader):
            batch = data.transfer_batch_to_device(batch, model.device, 0)
            found = step(batch, number).float()
            there = batch.labels >= 0
            positions = batch.indices[there].cpu()
            for kept, values in ((logits, found), (probabilities, model.probabilities(found)), (labels, batch.labels)):
                kept[positions] = values[there].cpu()
    return Evaluation(images, logits, probabilities, labels, model.conclude(measured_as))
