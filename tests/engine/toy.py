"""A classifier, data and a trainer of the engine's own terms, so that its tests need nothing else of the package."""

import copy
from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from project.engine import ArrayDataset, ClassifierModule, ImageDataModule, Preprocessing

PREPROCESSING: Preprocessing = {"resize": 8, "crop": 8, "mean": [0.5] * 3, "std": [0.25] * 3}


class Loss(MeanMetric):
    """The mean loss, of the argument that the engine gives by name."""

    higher_is_better = False  # type: ignore[assignment]  # torchmetrics says None

    def update(self, preds: Tensor, target: Tensor, losses: Tensor) -> None:  # type: ignore[override]
        super().update(losses)


class ToyClassifier(ClassifierModule):
    """Two layers on the pixels."""

    def __init__(self, class_names: list[str], preprocessing: Preprocessing) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.class_names, self.preprocessing = class_names, preprocessing
        self.arch, self.arch_args, self.compile_network = "toy", None, False
        self.criterion = nn.CrossEntropyLoss(ignore_index=-1, reduction="none")
        hidden = [nn.Linear(3 * 8 * 8, 16), nn.ReLU()]
        self.network = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(16, len(class_names)))
        self.add_metrics()

    def configure_metrics(self) -> dict[str, Metric]:
        accuracy = MulticlassAccuracy(len(self.class_names), average="micro")
        return {"loss": Loss(), "accuracy": accuracy}

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images / 255 - 0.5)
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = self.criterion(logits, labels)
        return losses

    def step(self, split, batch) -> tuple[Tensor, Tensor]:
        batch = self.as_batch(batch)
        logits = self(batch.images)
        losses = self.loss(logits, batch.labels)
        self.measure(split, logits, batch.labels, losses)
        return logits, losses

    def training_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("train", batch)[1].mean()

    def validation_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("val", batch)[0]

    def test_step(self, batch, batch_idx: int) -> Tensor:
        return self.step("test", batch)[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class ToyData(ImageDataModule):
    """Noise, brighter for each class."""

    def __init__(self, size: int = 24, **options) -> None:
        super().__init__(**{"batch_size": 8, **options})
        self.size = size

    @property
    def class_names(self) -> list[str]:
        return ["dark", "grey", "light"]

    @property
    def preprocessing(self) -> Preprocessing:
        return copy.deepcopy(PREPROCESSING)

    def load(self) -> Mapping[str, ArrayDataset]:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(self.size) % 3
        noise = torch.randint(64, (self.size, 3, 8, 8), generator=generator)
        images = (noise + 64 * labels[:, None, None, None]).to(torch.uint8)
        return {split: ArrayDataset(images, labels, split) for split in ("train", "val", "test")}


def toy(cls: type[ToyClassifier] = ToyClassifier) -> ToyClassifier:
    """A classifier with the same first weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(ToyData().class_names, copy.deepcopy(PREPROCESSING))


def toy_trainer(**options) -> Trainer:
    """A plain trainer that leaves nothing behind."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    quiet["enable_model_summary"] = False
    return Trainer(**{"accelerator": "cpu", "devices": 1, "max_epochs": 2, **quiet, **options})
