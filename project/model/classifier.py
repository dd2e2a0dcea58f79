"""The LightningModule: a network of ``uint8`` images, its loss, its metrics and its optimizer."""

import copy
from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from lightkeeper.images import ClassifierModule, Preprocessing
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torchmetrics import Metric

from project.model.freezing import freeze_layers, set_frozen_to_eval
from project.model.inference import Views, evaluation_logits, exact_logits
from project.model.losses import CrossEntropy, Loss
from project.model.metrics import Accuracy, MacroF1, MeanLoss, TopKAccuracy
from project.model.networks import (
    build_network,
    detect_memory_format,
    head,
    with_channels,
)
from project.model.normalize import Normalization, resized
from project.model.optimizers import build_optimizer
from project.model.pretrained import start_from
from project.model.schedules import CosineWithWarmup, Interval, build_schedule


class ImageClassifier(ClassifierModule):
    """Classifies images with any network.

    Train it with one of our data modules, ``trainer.fit(model, datamodule=data)``, or with any
    loader of pairs: images, uint8 (N, 3, height, width), and labels, int64 (N,). Such a loader
    decides on order and augmentation itself; on several devices, Lightning makes it repeat some
    images, so that each has as many. A subclass overrides ``loss``, or, for a loss on
    features, ``training_step`` (examples/center_loss.py). All its parameters are trained.

    Args:
        class_names: The classes in the order of their labels. The command line takes them from the
            data.
        preprocessing: Size, crop and normalisation of images. The command line takes it from the
            data.
        arch: The name of a torchvision network, ``timm/NAME``, ``resnet9`` or ``resnet9_slim`` for
            small images, or the path of a callable of your own that takes ``num_classes``, such as
            ``package.Net``. By default ``resnet9_slim`` for images below 64 pixels without weights,
            else ``resnet18``.
        arch_args: Advanced: Further arguments of the network, such as ``{"drop_path_rate": 0.2}``
            for those of timm; ``{"stem": "cifar"}`` gives torchvision's ResNets a first layer for
            images of about 32 pixels.
        weights: Pretrained weights: ``DEFAULT`` or another name, a file, a folder or an address.
            Names are torchvision's or timm's, which are downloaded once; files are torchvision's,
            ours or those of a hand-written script, also ``.safetensors``; folders are those of
            ``project.export`` or timm's. A head for other classes is left out.
        freeze: ``backbone`` trains the head alone; the name of a block, such as ``layer4``, trains
            that block and all after it. Frozen layers keep the running statistics of BatchNorm,
            too.
        loss: A loss that takes logits and labels and returns one for each image. Validation and
            test always measure cross entropy, so that runs can be compared.
        optimizer: Any optimizer class; weight decay is kept off normalisation layers and biases.
        lr_scheduler: Any scheduler class; ``CosineWithWarmup`` and ``OneCycleLR`` last as long as
            training.
        lr_scheduler_interval: Advanced: ``epoch`` or optimizer ``step``; by default ``step`` for
            ``CosineWithWarmup`` alone.
        layer_decay: Advanced: The learning rate of each block as a share of the next block's, such
            as 0.75.
        compile: If true, ``torch.compile`` prepares the network for training; it takes a while, and
            pays on GPUs. A step that calls ``logits_and_features`` runs uncompiled.
        test_time_augmentation: Averages logits of several views: ``flip`` or ``flip_and_shift``. In
            testing, predicting and exporting: of the image and its mirror image, and of both moved
            by a pixel.
        exact_evaluation: Advanced: True evaluates in float32, false in training's precision; by
            default false in GPUs' training.
    """

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        arch: str | None = None,
        arch_args: dict[str, Any] | None = None,
        weights: str | None = None,
        freeze: str | None = None,
        loss: Loss = CrossEntropy(label_smoothing=0.1),  # noqa: B008  # each model gets a copy
        optimizer: OptimizerCallable = lambda params: SGD(
            params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        ),
        lr_scheduler: LRSchedulerCallable = lambda optimizer: CosineWithWarmup(
            optimizer, lrf=0.01, warmup_epochs=1.0
        ),
        lr_scheduler_interval: Interval | None = None,
        layer_decay: float = 1.0,
        compile: bool = False,  # noqa: A002  # what torch calls it
        test_time_augmentation: Views | None = None,
        exact_evaluation: bool | None = None,
    ) -> None:
        super().__init__()
        if arch is None:
            arch = "resnet9_slim" if preprocessing["crop"] < 64 and weights is None else "resnet18"
        self.save_hyperparameters(ignore=self.not_saved, logger=False)
        if "arch" in self.hparams:  # not where a subclass decides on the network
            self.hparams["arch"] = arch  # a later default must not change what a checkpoint means
        self.class_names, self.preprocessing = list(class_names), preprocessing
        self.arch, self.arch_args = arch, arch_args
        self.criterion = copy.deepcopy(loss)
        self.optimizer, self.layer_decay = optimizer, layer_decay
        self.lr_scheduler, self.lr_scheduler_interval = lr_scheduler, lr_scheduler_interval
        self.compile_network = compile
        self.test_time_augmentation = test_time_augmentation
        self.exact_evaluation = exact_evaluation
        num_classes = len(class_names)
        channels = len(preprocessing["mean"])
        self.network = with_channels(build_network(arch, num_classes, arch_args), channels)
        black = torch.zeros(2, channels, preprocessing["crop"], preprocessing["crop"])
        self.memory_format = detect_memory_format(self.network, arch, num_classes, black)
        if weights is not None:
            start_from(self.network, arch, weights, class_names)
        self.frozen = freeze
        if freeze is not None:
            freeze_layers(self.network, freeze, num_classes)
        self.normalization = Normalization(preprocessing)
        self.add_metrics()
        self.train_image_size: int | None = None
        """Pixels that training images are resized to; None leaves them as they are."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalises images, (N, channels, height, width), and returns logits, (N, classes).

        Features, float (N, features), go through the head alone.
        """
        if images.dim() == 2:  # features, computed before
            layer = self.network_head
            with torch.autocast(images.device.type, enabled=False):  # as in evaluation
                return cast(Tensor, layer(images.to(layer.weight.dtype)))
        if images.dtype != (pixels := self.normalization.pixels):
            raise TypeError(
                f"images must be {pixels}, got {images.dtype}; see torchvision's to_dtype"
            )
        images = resized(images, self.train_image_size if self.training else None)
        x = self.normalization(images, like=next(self.network.parameters()))
        logits: Tensor = self.network(x.contiguous(memory_format=self.memory_format))
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, (N,), for labels (N,) or soft ones (N, classes)."""
        losses: Tensor = self.criterion(logits, labels)
        return losses

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Updates the metrics, which the base class logs, and returns the mean loss."""
        batch = self.as_batch(batch)
        logits = self(batch.images)
        losses = self.loss(logits, batch.labels)
        self.measure("train", logits, batch.labels, losses)
        return losses.mean()

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Updates the metrics and returns logits, float (N, classes), of one view."""
        batch = self.as_batch(batch)
        logits = exact_logits(self, batch.images)
        losses = self.evaluation_loss(logits, batch.labels)
        self.measure("val", logits, batch.labels, losses, batch.indices)
        return logits

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Updates the metrics and returns logits, float (N, classes), averaged over views."""
        batch = self.as_batch(batch)
        logits = evaluation_logits(self, batch.images)
        losses = self.evaluation_loss(logits, batch.labels)
        self.measure("test", logits, batch.labels, losses, batch.indices)
        return logits

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Returns each image's probabilities, float (N, classes); a batch needs no labels."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self.probabilities(evaluation_logits(self, images))

    def configure_metrics(self) -> dict[str, Metric]:
        """Returns all metrics by name.

        To add one: ``return super().configure_metrics() | {"auroc": MulticlassAUROC(10)}``.

        Each takes probabilities, float32 (N, classes), and the data's labels, int64 (N,) if each
        image has one class. Training computes loss and accuracy alone. The constructor calls this
        after it has set ``class_names``.
        """
        num_classes = len(self.class_names)
        metrics = {
            "loss": MeanLoss(),
            "accuracy": Accuracy(),
            "f1": MacroF1(num_classes),
        }
        return metrics if num_classes <= 5 else metrics | {"top5": TopKAccuracy(5)}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Builds the optimizer of all parameters that require gradients, and its schedule."""
        optimizer = build_optimizer(self.optimizer, self, self.layer_decay)
        schedule = build_schedule(
            self.lr_scheduler, optimizer, self.trainer, self.lr_scheduler_interval
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def evaluation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's cross entropy, float32 (N,); 0 for labels of -1."""
        return F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities, float (N, classes), by default by softmax."""
        return logits.softmax(1)

    @property
    def network_head(self) -> nn.Linear | nn.Conv2d:
        """The network's last layer, which maps features to logits: linear, or a 1x1 convolution."""
        *_, layer = head(self.network, len(self.class_names)).values()
        return cast(nn.Linear, layer)

    def logits_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits and features, the head's input, of one uncompiled forward pass."""
        features: list[Tensor] = []
        hook = self.network_head.register_forward_pre_hook(
            lambda _, inputs: features.append(inputs[0])
        )
        with hook, torch.compiler.set_stance("force_eager"):  # a compiled network runs no hook
            return self(images), features[-1]

    def train(self, mode: bool = True) -> Self:
        """Switches between training and evaluation mode; frozen layers stay in evaluation mode."""
        super().train(mode)
        if mode and self.frozen is not None:
            set_frozen_to_eval(self.network, self.frozen, len(self.class_names))
        return self
