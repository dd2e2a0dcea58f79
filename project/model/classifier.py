"""The LightningModule: a network that takes ``uint8`` images, its loss, its metrics and its optimizer."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torchmetrics import Metric

from project.engine.errors import require
from project.engine.preprocessing import Preprocessing
from project.engine.run.loggers import log_settings
from project.engine.run.progress import note
from project.engine.run.tensorboard import is_logged
from project.engine.training.unsupported import require_supported
from project.engine.upstream import trainer_of
from project.model.batch import Batch, as_batch, images_of, require_fitting_labels
from project.model.freezing import Freezing
from project.model.losses import CrossEntropy, Loss, loss_summary, require_per_image
from project.model.metrics import ClassificationMetrics, CountingMetrics, Metrics
from project.model.nets.whitening import whiten
from project.model.networks import build_network, detect_memory_format
from project.model.normalize import Normalization, resized
from project.model.optimization import Optimization
from project.model.own_metrics import OwnMetrics
from project.model.pretrained import start_from
from project.model.saved import NOT_REMEMBERED, contents, load_model, restore
from project.model.split_metrics import SplitMetrics
from project.model.test_time import Views, evaluation_logits, exact_logits

_LOGGED_IF_GIVEN = ("arch_args", "test_time_augmentation")


class ImageClassifier(LightningModule):
    """Classifies images with any network.

    A trainer takes it with one of our data modules, ``trainer.fit(model, datamodule=data)``, or with any loader of pairs
    of images, uint8 (N, 3, height, width), and labels, int64 (N,); such a loader decides on order and augmentation itself.

    Args:
        class_names: The classes in the order of their labels. The command line takes them from the data.
        preprocessing: How an image becomes input. The command line takes it from the data.
        arch: A classification network of torchvision by name, or of timm as ``timm/NAME``; ``airbench``, ``resnet9`` or
            ``resnet9_slim``, which are ours, for small images; or the dotted path of a callable of your own, as in
            ``my_package.nets.TinyNet``, which takes ``num_classes``.
        arch_args: Further arguments of what builds the network, such as ``{"stochastic_depth_prob": 0.2}`` for
            torchvision's ConvNeXt and EfficientNet, or ``{"drop_path_rate": 0.2}`` for timm's networks; ``{"stem":
            "cifar"}`` gives torchvision's ResNets a first layer for images of about 32 pixels.
        weights: Pretrained weights to start from: ``DEFAULT`` or another name of torchvision's or timm's, which are
            downloaded once; a file of torchvision's, of ours or of a hand-written script; or an address. A head for
            other classes is left out.
        channels_last: Whether the network computes with channels as the fastest dimension, which is faster nearly
            everywhere; one that cannot computes in the usual layout.
        compile: Whether ``torch.compile`` prepares the network for training; it takes a while, and pays on GPUs.
        freeze_backbone: Whether all but the head stays as it is, the running statistics of BatchNorm too.
        freeze_until: The first block that is trained, such as ``layer4``; all before it stays as it is, the running
            statistics of BatchNorm too.
        loss: Any loss class, or a function, of logits and labels that returns each image's loss; by default cross
            entropy. Validation and test measure cross entropy whatever it is, so that runs compare.
        label_smoothing: The share of each label that the default loss spreads over all classes (Szegedy et al., 2016,
            https://arxiv.org/abs/1512.00567), by default 0.1.
        class_weights: What each image's loss is multiplied by in training: a number for each class, or ``balanced``,
            images / (classes * images of the class), by which small classes count as much as large ones.
        optimizer: Any optimizer class; weight decay is kept off normalisation layers and biases.
        base_batch_size: The batch size that the learning rate is meant for; another batch size scales the rate in
            proportion (Goyal et al., 2017, https://arxiv.org/abs/1706.02677). By default the rate is taken as it is.
        lrf: The last learning rate of the cosine schedule as a fraction of the first.
        warmup_epochs: How many epochs, or what part of one, the learning rate takes to rise at the start of the cosine
            schedule; at most half of the training.
        lr_scheduler: Any scheduler class, in place of the cosine schedule; ``OneCycleLR`` lasts as long as training.
        layer_decay: What the learning rate of each block is multiplied by for each block between it and the output, such
            as 0.75; by default all have the same.
        lr_scheduler_interval: What ``lr_scheduler`` is stepped after: every ``epoch`` or every optimizer ``step``.
        test_time_augmentation: Views of each image whose logits are averaged, in everything but training and its
            validation: ``flip``, it and its mirror image; ``flip_and_shift``, both moved by a pixel, too.

    Attributes:
        results: The newest metrics of ``val`` and ``test``.
        resumed_results: Those that the checkpoint says which a run was resumed from, as plain data.
        train_image_size: The size in pixels that training images are scaled to on the device, if not their own.
        lr: The learning rate that Lightning's finder has found, which sets it; None where the command's counts.
        weights_step: The optimizer step after which the weights were saved that are tested, where the trainer has moved
            past it; test metrics are logged at that step.
    """

    metrics_class: ClassVar[type[CountingMetrics]] = ClassificationMetrics
    """What counts results; ``MultilabelMetrics`` where labels are (N, classes), 1 for each class that an image has."""

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        arch: str = "resnet18",
        arch_args: dict[str, Any] | None = None,
        weights: str | None = None,
        channels_last: bool = True,
        compile: bool = False,  # noqa: A002  # what torch calls it
        freeze_backbone: bool = False,
        freeze_until: str | None = None,
        loss: Loss | None = None,
        label_smoothing: float | None = None,
        class_weights: Literal["balanced"] | list[float] | None = None,
        optimizer: OptimizerCallable = lambda params: SGD(
            params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        ),
        base_batch_size: int | None = None,
        lrf: float = 0.01,
        warmup_epochs: float = 1.0,
        lr_scheduler: LRSchedulerCallable | None = None,
        lr_scheduler_interval: Literal["epoch", "step"] = "epoch",
        layer_decay: float = 1.0,
        test_time_augmentation: Views | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=NOT_REMEMBERED, logger=False)
        self.class_names, self.preprocessing = list(class_names), preprocessing
        self.arch, self.arch_args, num_classes = arch, arch_args, len(self.class_names)
        smoothing = 0.1 if label_smoothing is None else label_smoothing
        self.criterion = CrossEntropy(smoothing, class_weights) if loss is None else loss
        self.optimization = Optimization(
            optimizer, base_batch_size, lrf, warmup_epochs, lr_scheduler, lr_scheduler_interval, layer_decay
        )
        self.freezing = Freezing("backbone" if freeze_backbone else freeze_until, num_classes)
        self.network = build_network(arch, num_classes, arch_args)
        views = self.test_time_augmentation = test_time_augmentation
        require(views in (None, *get_args(Views)), "--model.test_time_augmentation", views, "flip or flip_and_shift")
        self._layout = detect_memory_format(self.network, arch, num_classes, preprocessing["crop"], channels_last)
        self.channels_last, self.compile_network = self._layout is torch.channels_last, compile
        if weights is not None:
            start_from(self.network, arch, weights, num_classes)
        self.freezing.freeze(self.network)
        self.normalization = Normalization(preprocessing["mean"], preprocessing["std"])
        self.train_metrics, self.val_metrics, self.test_metrics = (self.metrics_class(num_classes) for _ in range(3))
        own = {split: OwnMetrics(self.configure_metrics()) for split in ("val", "test")}
        self.own_metrics = nn.ModuleDict(own)
        counts = {"val": self.val_metrics, "test": self.test_metrics}
        self._measured = {split: SplitMetrics(split, counts[split], own[split]) for split in own}
        self.results: dict[str, Metrics] = {}
        self.resumed_results: dict[str, Any] = {}
        self.train_image_size: int | None = None
        self.lr: float | None = None
        self.weights_step: int | None = None

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file of hyperparameters could name what is imported
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str = "cpu",
        strict: bool = True,
        weights_only: Literal[True] = True,  # noqa: ARG003  # as callers of Lightning's own give it
        **kwargs: Any,
    ) -> Self:
        """Builds the model that a checkpoint holds, and imports or runs nothing that the file says.

        Args:
            checkpoint_path: The checkpoint. If it is of a subclass that is imported, the model is of that.
            map_location: The device that the model shall be on.
            strict: Whether the weights must be exactly those of the network.
            weights_only: Always true.
            kwargs: Arguments of the constructor that are other than then.

        Raises:
            UserError: The file is missing or damaged, or does not hold such a model.
        """
        return load_model(cls, checkpoint_path, strict, kwargs).to(map_location)

    @property
    def has_one_class(self) -> bool:
        """Whether each image has one class; otherwise it may have any number of them."""
        return issubclass(self.metrics_class, ClassificationMetrics)

    def monitors(self) -> dict[str, str | None]:
        """What a run can be judged by: each metric of the validation set, and whether ``min`` or ``max`` is best."""
        return {f"val/{name}": mode for name, mode in self._measured["val"].modes().items()}

    def configure_metrics(self) -> dict[str, Metric]:
        """Names further metrics of validation and test, none by default; a subclass may override it.

        It is called before a subclass's own attributes are there; ``class_names`` are.

        Returns:
            New metrics by name. Each takes logits, float32 (N, classes), and labels as the data has them, int64 (N,) if
            each image has one class, and computes one number.
        """
        return {}

    def configure_callbacks(self) -> list[Callback]:
        """Adds none, and refuses those that cannot work here before they are set up.

        Raises:
            UserError: There is one.
        """
        if self.trainer.training:
            require_supported(self.trainer, self.network, self.channels_last)
            self.optimization.finders.prepare(self.trainer)
        return []

    def setup(self, stage: str) -> None:
        """Prepares loss and network for training."""
        if stage != "fit":
            return
        if hasattr(self.criterion, "prepare"):
            self.criterion.prepare(self.trainer.datamodule, self.class_names)  # type: ignore[operator, attr-defined]
        if self.compile_network:
            self.network.compile()  # in place, so that the names of the weights stay

    def on_fit_start(self) -> None:
        """Takes what Lightning's finders found."""
        self.optimization.finders.conclude(self)

    def train(self, mode: bool = True) -> "ImageClassifier":
        """Switches between training and evaluation; what is frozen stays in evaluation."""
        super().train(mode)
        if mode:
            self.freezing.evaluate(self.network)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Converts, normalises and classifies.

        Args:
            images: uint8 (N, 3, height, width) on the model's device.

        Returns:
            Logits, float (N, classes).

        Raises:
            TypeError: The images are of another type, and so perhaps on another scale.
        """
        if images.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, from 0 to 255, got {images.dtype}; see torchvision's to_dtype")
        images = resized(images, self.train_image_size if self.training else None)
        x = self.normalization(images, like=next(self.network.parameters()))
        logits: Tensor = self.network(x.contiguous(memory_format=self._layout))
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Says what each image costs in training, by ``--model.loss``; a subclass may override it.

        Args:
            logits: float (N, classes).
            labels: int64 (N,), or soft ones, float (N, classes).

        Returns:
            float (N,). Training takes the mean over the images of all devices.
        """
        losses: Tensor = self.criterion(logits, labels)
        return losses

    def evaluation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Says what each image costs in validation and test: its cross entropy, by which runs with any loss compare.

        Args:
            logits: float32 (N, classes).
            labels: int64 (N,); -1 where an image does not count.

        Returns:
            float32 (N,), in nats.
        """
        return F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Says what predictions and exported files contain: softmax; a subclass may override it.

        Args:
            logits: float (N, classes).

        Returns:
            float (N, classes), from 0 to 1; the order of an image's classes must be that of the logits.
        """
        return logits.softmax(1)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Sets what a new network takes from its first batch."""
        if self.trainer.global_step > 0:
            return
        images = as_batch(batch, trainer_of(self)).images
        whiten(self.network, lambda: self.normalization(images, like=next(self.network.parameters())), self.trainer)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the batch's mean loss; its metrics are counted, and logged by ``on_train_batch_end``."""
        batch = as_batch(batch, trainer_of(self))
        logits = self._logits(batch, "train", self)
        losses = self.loss(logits, batch.labels)
        require_per_image(losses, len(logits), f"{type(self).__name__}.loss")
        self.train_metrics.update(logits.detach(), batch.labels, losses.detach())
        return losses.mean()

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Logs the mean over the steps since the last time; a log on every step would cost more than the metrics do."""
        if is_logged(self.trainer):
            results = self.train_metrics.compute()
            self.train_metrics.reset()
            self.log_dict({"train/loss": results.loss, "train/accuracy": results.accuracy}, prog_bar=True)

    def on_validation_start(self) -> None:
        """Has DDP send the first process's statistics of BatchNorm, which it does not within a step of several batches."""
        wrapper = self.trainer.strategy.model
        if isinstance(wrapper, DistributedDataParallel):
            wrapper.require_forward_param_sync = True

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Counts the batch and returns its logits, float (N, classes)."""
        return self._evaluate(batch, "val")

    def on_test_start(self) -> None:
        """Says so where the metrics are not of each image as it is."""
        if self.test_time_augmentation is not None:
            rank_zero_only(note)(f"test: logits are means over views of each image: {self.test_time_augmentation}")

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Counts the batch and returns its logits, float (N, classes)."""
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Tensor | Batch | Sequence[Tensor], batch_idx: int) -> Tensor:
        """Returns each image's probabilities, float (N, classes), as the test takes them; labels are not looked at."""
        return self.probabilities(evaluation_logits(self, images_of(batch, trainer_of(self))))

    def _evaluate(self, batch: Batch, split: str) -> Tensor:
        batch = as_batch(batch, trainer_of(self))
        classify = evaluation_logits if split == "test" else exact_logits
        logits = self._logits(batch, split, partial(classify, self))
        self._measured[split].update(logits, batch.labels, self.evaluation_loss(logits, batch.labels))
        return logits

    def _logits(self, batch: Batch, split: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
        require_fitting_labels(batch.labels, self.has_one_class)
        return compute(batch.images)

    def on_validation_epoch_end(self) -> None:
        """Logs the validation metrics."""
        self._measured["val"].conclude(self)

    def on_test_epoch_end(self) -> None:
        """Logs the test metrics."""
        self._measured["test"].conclude(self)
        if self.weights_step is not None:
            self.log("step", float(self.weights_step), prog_bar=False)  # where Lightning's loggers put what is logged

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Builds the optimizer and its schedule."""
        return self.optimization.configure(self)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Steps a schedule."""
        self.optimization.require_planned(scheduler, self.trainer)
        super().lr_scheduler_step(scheduler, metric)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the checkpoint says of itself, what a resumed run compares its settings with, and open counts."""
        checkpoint.update(contents(self))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remembers what an earlier command asked of optimizer and schedule, and restores the open counts."""
        restore(self, checkpoint)

    def on_train_start(self) -> None:
        """Brings a resumed optimizer in line with the command; logs the settings of a new run."""
        self.optimization.resume(self)
        if self.trainer.ckpt_path is None:
            given = {name: self.hparams[name] for name in _LOGGED_IF_GIVEN if self.hparams.get(name)}
            settings = {"arch": self.arch, **given, **self.training_summary()}
            log_settings(self.trainer, settings, [name.removeprefix("val/") for name in self.monitors()])

    def training_summary(self) -> dict[str, dict[str, Any]]:
        """Name and settings of ``loss``, ``optimizer`` and ``lr_scheduler``, for people to read."""
        is_own = type(self).loss is not ImageClassifier.loss
        loss = {"name": f"{type(self).__name__}.loss"} if is_own else loss_summary(self.criterion)
        return {"loss": loss, **self.optimization.summary(self.trainer)}
