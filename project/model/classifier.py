"""The LightningModule: a network of ``uint8`` images, its loss, its metrics and its optimizer."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from lightkeeper.exact import UserError, is_logged
from lightkeeper.images import (
    Prediction,
    Predictions,
    Preprocessing,
    classifier_callbacks,
    load_model,
    predict_files,
)
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import ModelPruning
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torchmetrics import Metric

from project.model.freezing import freeze_layers, set_frozen_to_eval
from project.model.inference import Views, exact_logits, logits_and_features, mean_logits
from project.model.losses import CrossEntropy, Loss
from project.model.metrics import (
    Accuracy,
    MacroF1,
    MeanLoss,
    Results,
    SetMetrics,
    TopKAccuracy,
)
from project.model.networks import (
    build_for_images,
    head,
    prepare_network,
    set_memory_format,
)
from project.model.normalize import Normalization
from project.model.optimizers import Decay, build_optimizer
from project.model.pretrained import default_arch, start_from
from project.model.schedules import CosineWithWarmup, Interval, build_schedule

Split = Literal["train", "val", "test"]


class ImageClassifier(LightningModule):
    """Classifies images with any network.

    Train it with one of our data modules, ``trainer.fit(model, datamodule=data)``, or with any
    loader of pairs: images, uint8 (N, 3, height, width), and labels, int64 (N,). Such a loader
    decides on order and augmentation itself; on several devices, Lightning makes it repeat some
    images, so that each has as many. A subclass overrides ``loss``, or, for a loss on
    features, ``training_step`` (examples/center_loss.py). All its parameters are trained.

    Steps update torchmetrics. ``self.log`` gets the training metrics over the steps since the last
    logged one, and those of each whole evaluation, which are also in ``results``.

    Attributes:
        results: The newest metrics of ``val`` and ``test``, with counts, matrices and lists.
        predictions: Those of the newest evaluation outside ``fit``, in the first process.
        about: What the checkpoint that was loaded says of itself.
        thresholds: By class, the probability above which an image has it; with two exclusive
            classes, the one from which it is positive. None unless validation chooses them.

    Args:
        class_names: The classes in the order of their labels. The command line takes them from the
            data.
        preprocessing: Size, crop and normalisation of images. The command line takes it from the
            data.
        arch: The name of a torchvision network, ``timm/NAME``, ``resnet9`` or ``resnet9_slim`` for
            small images, or the path of a callable of your own that takes ``num_classes``, such as
            ``package.Net``. By default ``resnet9_slim`` for images below 64 pixels without weights,
            torchvision's or ours that a checkpoint of weights has, else ``resnet18``.
        arch_args: Advanced: Further arguments of the network, such as ``{"drop_path_rate": 0.2}``
            for those of timm; ``{"stem": "cifar"}`` gives torchvision's ResNets a first layer for
            images of about 32 pixels.
        weights: Pretrained weights: ``DEFAULT`` or another name, a file, a folder or an address.
            Names are torchvision's or timm's, which are downloaded once; files are torchvision's,
            ours or those of a hand-written script, also ``.safetensors``; folders are timm's. A head
            for other classes is left out.
        freeze: ``backbone`` trains the head alone; the name of a block, such as ``layer4``, trains
            that block and all after it. Frozen layers keep the running statistics of BatchNorm,
            too.
        loss: A loss that takes logits and labels and returns one for each image, or their mean.
            Validation and test always measure cross entropy, so that runs can be compared.
        optimizer: Any optimizer class.
        lr_scheduler: Any scheduler class; ``CosineWithWarmup`` and ``OneCycleLR`` last as long as
            training.
        lr_scheduler_interval: Advanced: ``epoch`` or optimizer ``step``; by default ``step`` for
            ``CosineWithWarmup`` alone.
        layer_decay: Advanced: The learning rate of each block as a share of the next block's, such
            as 0.75.
        decay: Advanced: What the optimizer's weight decay is for: ``weights``, which leaves out
            biases and normalisation layers, as timm does; ``not_norm``, which leaves out
            normalisation layers alone; or ``all``, as torch's optimizers by themselves.
        compile: If true, ``torch.compile`` prepares the network for training; it takes a while, and
            pays on GPUs. A step that calls ``logits_and_features`` runs uncompiled.
        test_time_augmentation: Averages logits of several views: ``flip`` or ``flip_and_shift``. In
            testing, predicting and exporting: of the image and its mirror image, and of both moved
            by a pixel.
        exact_evaluation: Advanced: True evaluates in float32, false in training's precision; by
            default false in GPUs' training.
    """

    has_one_class: ClassVar[bool] = True
    """True if each image has one class; otherwise any number: labels (N, classes) of 0 and 1."""
    not_saved: ClassVar = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]
    """Arguments that a checkpoint leaves out: classes, and files that may be gone."""

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
        decay: Decay = "weights",
        compile: bool = False,  # noqa: A002  # what torch calls it
        test_time_augmentation: Views | None = None,
        exact_evaluation: bool | None = None,
    ) -> None:
        super().__init__()
        arch = default_arch(preprocessing, weights) if arch is None else arch
        self.save_hyperparameters(ignore=self.not_saved, logger=False)
        self.class_names, self.preprocessing = list(class_names), preprocessing
        self.arch = arch
        self.criterion = copy.deepcopy(loss)
        self.optimizer, self.layer_decay, self.decay = optimizer, layer_decay, decay
        self.lr_scheduler, self.lr_scheduler_interval = lr_scheduler, lr_scheduler_interval
        self.compile_network = compile
        self.test_time_augmentation = test_time_augmentation
        self.exact_evaluation = exact_evaluation
        self.network, self.arch_args = build_for_images(
            arch, len(class_names), arch_args, preprocessing
        )
        chosen = {"arch": arch, "arch_args": self.arch_args}
        # a later default must not change what a checkpoint means; a subclass may have neither
        self.hparams.update({name: chosen[name] for name in chosen if name in self.hparams})
        self.memory_format = prepare_network(self.network, arch, len(class_names), preprocessing)
        if weights is not None:
            start_from(self.network, arch, weights, class_names)
        self.frozen = freeze
        if freeze is not None:
            freeze_layers(self.network, freeze, len(class_names))
        self.normalization = Normalization(preprocessing)
        metrics = self.configure_metrics()
        trained = {name: metrics[name] for name in metrics if name in ("loss", "accuracy")}
        self.train_metrics = SetMetrics(trained)
        self.val_metrics = SetMetrics(metrics)
        self.test_metrics = SetMetrics(metrics)
        self.results: dict[str, Results] = {}
        self.predictions: Predictions | None = None
        self.about: dict[str, Any] = {}
        self.thresholds: dict[str, float] | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Normalises images, (N, channels, height, width), and returns logits, (N, classes)."""
        if images.dtype != (pixels := self.normalization.pixels):
            raise TypeError(
                f"images must be {pixels}, got {images.dtype}; see torchvision's to_dtype"
            )
        x = self.normalization(images, like=next(self.network.parameters()))
        x = x.contiguous(memory_format=getattr(torch, self.memory_format))
        logits: Tensor = self.network(x)
        return logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's loss, (N,), or their mean, for labels (N,) or soft (N, classes)."""
        losses: Tensor = self.criterion(logits, labels)
        return losses

    def setup(self, stage: str) -> None:
        """Prepares the loss, which may need to know the data, and compiles the network."""
        if stage != "fit":
            return
        trainer: Any = self.trainer
        if any(isinstance(part, ModelPruning) for part in trainer.callbacks):  # flattens weights
            self.memory_format = set_memory_format(self.network, torch.contiguous_format)
        if prepare := getattr(self.criterion, "prepare", None):
            prepare(trainer.datamodule, self.class_names)
        if self.compile_network:
            self.network.compile()  # in place, so that the names of the weights stay

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Updates the metrics and returns the mean loss."""
        images, labels = batch[0], batch[1]
        logits = self(images)
        loss = self.loss(logits, labels)
        self.measure("train", logits, labels, loss)
        return loss.mean()

    def validation_step(
        self, batch: Sequence[Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> Tensor:
        """Updates the metrics and returns logits, float (N, classes), of one view."""
        images, labels = batch[0], batch[1]
        # exact results would take GPUs several times as long
        is_fast = images.device.type == "cuda" and self.trainer.state.fn == "fit"
        logits = self.evaluation_logits(images, exact=not is_fast)
        self.measure("val", logits, labels, self.evaluation_loss(logits, labels))
        return logits

    def test_step(self, batch: Sequence[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Updates the metrics and returns logits, float (N, classes), averaged over views."""
        images, labels = batch[0], batch[1]
        logits = self.evaluation_logits(images, self.test_time_augmentation)
        self.measure("test", logits, labels, self.evaluation_loss(logits, labels))
        return logits

    def predict_step(
        self, batch: Tensor | Sequence[Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> Tensor:
        """Returns each image's probabilities, float (N, classes); a batch needs no labels."""
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self.probabilities(self.evaluation_logits(images, self.test_time_augmentation))

    def configure_metrics(self) -> dict[str, Metric]:
        """Returns all metrics by name.

        To add one: ``return super().configure_metrics() | {"auroc": MulticlassAUROC(10)}``.

        Each takes probabilities, float32 (N, classes), and the data's labels, int64 (N,) if each
        image has one class; ``loss`` takes losses. Training computes loss and accuracy alone.
        ``compute`` may return a dict, of which fractions are logged and all else is only recorded.
        The constructor calls this after it has set ``class_names``.
        """
        num_classes = len(self.class_names)
        metrics = {
            "loss": MeanLoss(),
            "accuracy": Accuracy(num_classes),
            "f1": MacroF1(num_classes),
        }
        return metrics if num_classes <= 5 else metrics | {"top5": TopKAccuracy(5)}

    def measure(self, split: Split, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Updates the metrics of a set by a batch.

        In evaluation, images without a label, -1, are left out. Soft labels are rounded.

        Args:
            split: ``train``, ``val`` or ``test``.
            logits: float (N, classes).
            labels: int64 (N,) or (N, classes); in training perhaps soft, float (N, classes).
            loss: Each image's, float (N,), or the mean.
        """
        if loss.shape not in ((), (len(labels),)):
            raise UserError(
                f"must return each image's loss, of shape ({len(labels)},), or their mean, got"
                f" {tuple(loss.shape)}",
                "loss",
            )
        logits, losses = logits.detach().float(), loss.detach().expand(len(labels))
        if labels.is_floating_point():
            labels = labels.argmax(1) if self.has_one_class else labels.round().long()
        if split != "train":  # where looking would wait for the device
            known = labels.view(len(labels), -1).amax(1) >= 0
            logits, labels, losses = logits[known], labels[known], losses[known]
        metrics: SetMetrics = getattr(self, f"{split}_metrics")
        metrics.update(self.probabilities(logits), labels, losses)

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Logs the metrics over the steps since the last logged one; computing them waits."""
        if is_logged(self.trainer):
            scalars = self.train_metrics.scalars(self.train_metrics.compute_and_reset())
            # on the CPU, where a progress bar reads them in each step without waiting
            values = {f"train/{name}": torch.tensor(value) for name, value in scalars.items()}
            self.log_dict(values, prog_bar=True)

    @property
    def _evaluation_metrics(self) -> SetMetrics:
        return self.test_metrics if self.trainer.testing else self.val_metrics

    def on_validation_epoch_start(self) -> None:
        """Resets the metrics, which an evaluation that was stopped may have updated."""
        self._evaluation_metrics.compute_and_reset()

    def on_validation_batch_start(
        self, batch: object, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Computes the metrics of each loader separately, as Lightning logs them."""
        self._evaluation_metrics.start_loader(dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the whole evaluation, and keeps them in ``results``."""
        split = "test" if self.trainer.testing else "val"
        results = self._evaluation_metrics.compute_and_reset()
        monitors = [getattr(part, "monitor", None) for part in self.trainer.checkpoint_callbacks]
        for name, value in self._evaluation_metrics.scalars(results).items():
            self.log(
                f"{split}/{name}",
                value,
                prog_bar=f"{split}/{name}" in ("val/loss", "val/accuracy", *monitors),
                # all processes have the same results; "max" does not round, as a mean could
                sync_dist=True,
                rank_zero_only=True,
                add_dataloader_idx=False,
                reduce_fx="max",
            )
        if not results or self.trainer.sanity_checking:
            return
        chosen = results.pop("thresholds", None)
        if split == "val":
            self.thresholds = dict(zip(self.class_names, chosen, strict=True)) if chosen else None
        elif self.thresholds:
            results["thresholds"] = [*self.thresholds.values()]
        self.results[split] = results

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_start = on_validation_batch_start
    on_test_epoch_end = on_validation_epoch_end

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Builds the optimizer of all parameters that require gradients, and its schedule."""
        optimizer = build_optimizer(self.optimizer, self, self.layer_decay, self.decay)
        schedule = build_schedule(
            self.lr_scheduler, optimizer, self.trainer, self.lr_scheduler_interval
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def configure_callbacks(self) -> list[Callback]:
        """Adds what describes checkpoints, resumes runs and collects predictions, where absent."""
        return classifier_callbacks(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names the class in a file of weights alone, of which Lightning asks no callback."""
        checkpoint["model"] = type(self).__name__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes over what a checkpoint says of itself."""
        self.about = checkpoint.get("about", {})
        self.thresholds = self.about.get("thresholds")

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file could name what is imported
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | int | Callable[..., Any] | dict[str, str] | None = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: Literal[True] | None = None,  # noqa: ARG003  # as for Lightning's
        **kwargs: Any,
    ) -> Self:
        """Builds the model of a checkpoint, which imports and runs nothing: ``load_model``."""
        return load_model(cls, checkpoint_path, map_location, hparams_file, strict, **kwargs)

    def evaluation_logits(
        self, images: Tensor, views: Views | None = None, exact: bool = True
    ) -> Tensor:
        """Returns calibrated logits, averaged over views; ``exact_evaluation`` may say how exact.

        They are the network's, divided by the temperature of ``evaluate --calibrate``, if any.
        """
        exact = exact if self.exact_evaluation is None else self.exact_evaluation
        return mean_logits(partial(exact_logits, self, exact=exact), images, views).div(
            self.about.get("temperature", 1.0)
        )

    def evaluation_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's cross entropy, float32 (N,); 0 for labels of -1."""
        return F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities, float (N, classes), by default by softmax."""
        return logits.softmax(1)

    def predicted(self, probabilities: Tensor, split: Split = "test") -> Tensor:
        """Returns each image's most probable class, int64 (N,), or a 1 for each of its classes.

        A model that decides otherwise needs metrics that do, too, as in examples/binary.py.
        With any number of classes, int64 (N, classes). Validation counts a class above 0.5, the
        test and all use after training above ``thresholds``.
        """
        if self.has_one_class:
            return probabilities.argmax(1)
        chosen = self.thresholds if split == "test" else None
        thresholds = [chosen[name] if chosen else 0.5 for name in self.class_names]
        return (probabilities > torch.tensor(thresholds, device=probabilities.device)).long()

    def label_names(self, label: Tensor) -> str:
        """Names the class of an image, int64 (), or all classes that it has a share of."""
        positions = label[None] if label.dim() == 0 else (label > 0).nonzero().flatten()
        return " ".join(self.class_names[position] for position in positions)

    def predict_files(self, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
        """Labels image files, prepared as the preprocessing says, in their order."""
        return predict_files(self, paths, batch_size)

    @property
    def network_head(self) -> nn.Linear | nn.Conv2d:
        """The network's last layer, which maps features to logits: linear, or a 1x1 convolution."""
        return cast(nn.Linear, [*head(self.network, len(self.class_names)).values()][-1])

    def logits_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits and features, the head's input, of one uncompiled forward pass."""
        return logits_and_features(self, self.network_head, images)

    def train(self, mode: bool = True) -> Self:
        """Switches between training and evaluation mode; frozen layers stay in evaluation mode."""
        super().train(mode)
        # unless all has been unfrozen
        if mode and self.frozen is not None and not all(x.requires_grad for x in self.parameters()):
            set_frozen_to_eval(self.network, self.frozen, len(self.class_names))
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out default functions, which cannot be pickled, for ``ddp_spawn``."""
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in _DEFAULTS or value is not _DEFAULTS[name]
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores them."""
        super().__setstate__({**_DEFAULTS, **state})  # type: ignore[no-untyped-call]


_DEFAULTS: dict[str, Callable[..., Any]] = {
    name: signature(ImageClassifier).parameters[name].default
    for name in ("optimizer", "lr_scheduler")
}
