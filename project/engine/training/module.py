"""The base of classifiers: exact metrics, checkpoints that explain themselves, and exact resuming."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins import DoublePrecision
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from ..errors import NonFiniteError, UserError
from ..preprocessing import Preprocessing
from ..run.checkpoint import ABOUT, describe_run
from ..run.settings import is_plain, plain_options
from ..upstream import trainer_of
from .best_checkpoint import selection
from .bookkeeping import Bookkeeping, require_supported
from .fitting import require_fitting_weights
from .opening import opened

Split = Literal["train", "val", "test"]


class PlainBatch(NamedTuple):
    """A batch of a plain ``DataLoader``: images, uint8 (N, 3, height, width), and labels, int64 (N,)."""

    images: Tensor
    labels: Tensor


class ClassifierModule(LightningModule):
    """A LightningModule whose metrics are exact, whose checkpoints explain themselves, and whose runs resume exactly.

    A subclass's constructor sets the attributes up to ``compile_network`` and calls :meth:`add_metrics`. One that overrides
    ``configure_callbacks``, ``on_save_checkpoint`` or ``on_load_checkpoint`` calls these.

    Attributes:
        class_names: The classes in the order of their labels.
        preprocessing: Size, crop and normalisation of images.
        arch: The network's name.
        arch_args: Further arguments of the network.
        network: The network.
        criterion: The training loss.
        compile_network: If true, the network is compiled for training.
        results: The newest metrics of ``val`` and ``test``, as plain data.
        thresholds: The probability above which an image has each class, chosen in validation if it may have several.
        coverage: Thresholds of prediction sets by percent.
        validated_step: The step at which the newest metrics of ``val`` were measured.
        measured: The sets that steps have measured since the last :meth:`conclude`.
        weights_step: The step at which the tested weights were validated; their test metrics are logged at that step, too.
    """

    has_one_class: ClassVar[bool] = True
    """True if each image has one class; otherwise it may have any number of them: labels (N, classes) of 0 and 1."""
    train_metric_names: ClassVar = ["loss", "accuracy"]
    """The metrics that training computes, too."""
    not_saved: ClassVar = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]
    """Arguments that a checkpoint leaves out: classes cannot be loaded safely, and the file of weights may be gone."""

    class_names: list[str]
    preprocessing: Preprocessing
    arch: str
    arch_args: dict[str, Any] | None
    network: nn.Module
    criterion: Any
    compile_network: bool

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}
        self.thresholds: dict[str, float] | None = None
        self.coverage: dict[int, float] = {}
        self.validated_step: int | None = None
        self.weights_step: int | None = None
        self.measured: set[Split] = set()
        self.settings: dict[str, dict[str, Any]] = {"optimizer": {}, "lr_scheduler": {}}
        self.resumed: Mapping[str, Any] | None = None

    @abstractmethod
    def configure_metrics(self) -> dict[str, Metric]:
        """Returns the metrics by name, whose ``update`` takes probabilities and labels, see :meth:`measure`.

        A number is logged under its metric's name. ``compute`` may also return a dict of a number under this name and of
        other plain data or tensors, which are only recorded.
        """

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities, float (N, classes)."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's training loss, float (N,)."""

    def add_metrics(self) -> None:
        """Builds the metrics of each set."""
        # groups would merge metrics whose states agree after the first batch
        metrics = MetricCollection(cast(Any, self.configure_metrics()), compute_groups=False)
        trained = {name: metrics[name] for name in self.train_metric_names if name in metrics}
        self.train_metrics = MetricCollection(cast(Any, trained), compute_groups=False).clone()
        self.val_metrics = metrics
        self.test_metrics = metrics.clone()

    def monitors(self) -> dict[str, str | None]:
        """Returns the names of validation metrics and which is better, ``min`` or ``max``; None if a metric does not say."""
        modes = {True: "max", False: "min", None: None}
        return {
            f"val/{name}": modes[metric.higher_is_better]
            for name, metric in self.val_metrics.items()
        }

    def predicted(self, probabilities: Tensor, split: Split = "test") -> Tensor:
        """Returns each image's most probable class, int64 (N,), or 1 for each of its classes, int64 (N, classes).

        Training and validation count a class above 0.5, the test and all use after training above ``thresholds``.
        """
        if self.has_one_class:
            return probabilities.argmax(1)
        chosen = self.thresholds if split == "test" else None
        thresholds = [chosen[name] if chosen else 0.5 for name in self.class_names]
        return (probabilities > torch.tensor(thresholds, device=probabilities.device)).long()

    def as_batch(self, batch: Any) -> Any:
        """Returns a batch with ``images`` and ``labels``, which fit the metrics; a plain loader's pairs become one.

        Without their data module, nothing would augment a data module's batches.
        """
        trainer = trainer_of(self)
        if trainer is not None and trainer.datamodule is None and hasattr(batch, "indices"):  # type: ignore[attr-defined]
            fn = trainer.state.fn.value if trainer.state.fn else "fit"
            raise UserError(
                "a data module's loaders need their data module for order and augmentation; call"
                f" trainer.{fn}(model, datamodule=data)"
            )
        batch = batch if hasattr(batch, "images") else PlainBatch(*batch)
        several = batch.labels.dim() > 1 and not batch.labels.is_floating_point()
        if several and self.has_one_class:
            raise UserError(
                f"the labels are {tuple(batch.labels.shape)}, but this model gives each image one class; several take a"
                " subclass with metrics and a loss of its own"
            )
        if batch.labels.dim() == 1 and not self.has_one_class:
            raise UserError(
                "this model gives an image any number of classes, but the labels are of one class an image;"
                " choose data with several labels an image, or leave out --model"
            )
        return batch

    def images_of(self, batch: Any) -> Tensor:
        """Returns the images of a batch, with or without labels, uint8 (N, 3, height, width)."""
        if isinstance(batch, Tensor):
            return batch
        alone = isinstance(batch, Sequence) and len(batch) == 1
        images: Tensor = batch[0] if alone else self.as_batch(batch).images
        return images

    def measure(self, split: Split, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Updates the metrics of a set by a batch.

        They take the probabilities and labels, and by name ``logits``, ``losses`` and ``predicted``, the predicted labels. In
        evaluation, images without a label, -1, such as files that cannot be read, are left out. Soft labels are rounded.

        Args:
            split: The set.
            logits: float (N, classes).
            labels: The data's labels, int64 (N,) or (N, classes); in training perhaps soft, float (N, classes).
            losses: Each image's loss, float (N,).
        """
        if not isinstance(losses, Tensor) or losses.shape != (len(logits),):
            got = f"of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses)
            raise UserError(
                f"--model.loss, or {type(self).__name__}.loss, must return each image's loss, of shape ({len(logits)},), got"
                f" {got}; with reduction='none', not a mean, which would depend on how many devices share a batch"
            )
        logits, losses = logits.detach().float(), losses.detach()
        if labels.is_floating_point():
            labels = labels.argmax(1) if self.has_one_class else labels.round().long()
        if split != "train":
            known = (labels if labels.dim() == 1 else labels.amax(1)) >= 0
            if not known.all():
                logits, labels, losses = logits[known], labels[known], losses[known]
        self.measured.add(split)
        if not len(labels):  # torchmetrics' classes accept no empty batch
            return
        probabilities = self.probabilities(logits)
        predicted = self.predicted(probabilities, split)
        named = {"logits": logits, "losses": losses, "predicted": predicted}
        for metric in self.metrics_of(split).values():
            # a collection would give all of them to a wrapper such as ClasswiseWrapper
            wanted = _arguments(type(metric)) & named.keys()
            metric.update(probabilities, labels, **{name: named[name] for name in wanted})

    def metrics_of(self, split: Split) -> MetricCollection:
        """Returns the metrics of a set."""
        return cast(MetricCollection, getattr(self, f"{split}_metrics"))

    def conclude(self, split: Split) -> dict[str, Any] | None:
        """Computes the metrics of a set over all processes and resets them; None if no step calls :meth:`measure`."""
        if split not in self.measured:
            return None
        self.measured.remove(split)
        metrics = self.metrics_of(split)
        results = {name: _plain(value) for name, value in metrics.compute().items()}
        with torch.inference_mode(False):  # else training could not change the new states in place
            metrics.reset()
        return results

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Adds the callback that logs metrics and resumes runs."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        if self.trainer.training:
            require_supported(callbacks, self.network)
        added = any(isinstance(callback, Bookkeeping) for callback in callbacks)
        return [] if added else [Bookkeeping()]

    def training_summary(self) -> dict[str, dict[str, Any]]:
        """Returns name and settings of ``loss``, ``optimizer`` and ``lr_scheduler``, for people to read."""
        owner = next(cls for cls in type(self).__mro__ if "loss" in vars(cls))
        if owner.__base__ is not ClassifierModule:
            loss = {"name": f"{owner.__name__}.loss"}
        else:
            names = signature(type(self.criterion)).parameters.keys() - {"reduction"}
            settings = {
                name: value
                for name, value in vars(self.criterion).items()
                if name in names and is_plain(value)
            }
            name = getattr(self.criterion, "__name__", type(self.criterion).__name__)
            loss = {"name": name, **settings}
        return {"loss": loss, **self.settings}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the model's options, the checkpoint's description of itself, and open counts: plain data and tensors."""
        for name, value in checkpoint["state_dict"].items():
            if isinstance(value, Tensor) and not value.isfinite().all():
                raise NonFiniteError(
                    f"{name} has values that are not finite after step {self.global_step}; the checkpoints are from before;"
                    " try a lower --model.optimizer.lr, under another --name"
                )
        checkpoint["hyper_parameters"] = plain_options(self.hparams, type(self))
        checkpoint[ABOUT] = describe_run(self.trainer, self, selection(self.trainer))
        checkpoint["counts"] = {
            name: _counts(metric) for name, metric in self.train_metrics.items()
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks the weights that Lightning is about to load; a run that resumes also restores its open counts."""
        require_fitting_weights(self.state_dict(), checkpoint["state_dict"], self.trainer.ckpt_path)
        # Lightning converts after weights were rounded
        if isinstance(self.trainer.precision_plugin, DoublePrecision):
            self.trainer.precision_plugin.convert_module(self)
        self.thresholds = checkpoint[ABOUT].get("thresholds")
        if not self.trainer.training:
            return
        metrics = checkpoint[ABOUT]["metrics"]
        self.results = {"val": metrics["val"]} if "val" in metrics else {}
        self.resumed = checkpoint
        if self.trainer.is_global_zero:  # they are those of all processes
            for name, metric in self.train_metrics.items():
                _restore_counts(metric, checkpoint["counts"].get(name, {}))

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
            map_location: The device for the model.
            strict: If true, the weights must be exactly those of the model; those of a loss need not be.
            weights_only: Always true.
            kwargs: Arguments of the constructor in place of those in the file.

        Raises:
            UserError: The file is missing or damaged, or does not hold such a model.
        """
        return cast(Self, opened(cls, checkpoint_path, strict, kwargs).to(map_location))


@cache
def _arguments(metric: type[Metric]) -> Set[str]:
    """Returns the names of the arguments of ``update``."""
    return signature(metric.update).parameters.keys()


def _plain(value: Any) -> Any:
    """Returns a number or a list for a tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.numel() == 1 else value.tolist()


def _counts(metric: Metric) -> dict[str, Tensor]:
    """Returns the state of a metric over all processes, each of which must call this."""
    with metric.sync_context():
        states = metric.metric_state.items()
        return {name: state.cpu().clone() for name, state in states if isinstance(state, Tensor)}


def _restore_counts(metric: Metric, counts: Mapping[str, Any]) -> None:
    """Restores the state that :func:`_counts` returned; one of another shape begins anew."""
    for name, state in metric.metric_state.items():
        saved = counts.get(name)
        if isinstance(state, Tensor) and isinstance(saved, Tensor) and saved.shape == state.shape:
            state.copy_(saved)
