"""The LightningModule's part in the promises: metrics, checkpoints that explain themselves, and exact resuming."""

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins import DoublePrecision
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from ..errors import NonFiniteError, UserError, require
from ..preprocessing import Preprocessing
from ..run.checkpoint import ABOUT, explain
from ..run.settings import is_plain, plain_options
from ..upstream import trainer_of
from .bookkeeping import Bookkeeping, require_supported
from .fitting import require_fitting_weights
from .opening import opened

_TAKEN = {
    "loss",
    "accuracy",
    "top5",
    "f1",
    "correct",
    "total",
    "top5_correct",
    "confusion_matrix",
    "per_class",
    "step",
}


class PlainBatch(NamedTuple):
    """A batch of a plain ``DataLoader``: images, uint8 (N, 3, height, width), and labels, int64 (N,)."""

    images: Tensor
    labels: Tensor


class ResumableModule(LightningModule):
    """A LightningModule whose metrics are exact, whose checkpoints explain themselves, and whose runs resume exactly.

    A subclass's constructor sets the attributes up to ``compile_network`` and calls :meth:`add_metrics`.

    Attributes:
        class_names: The classes in the order of their labels.
        preprocessing: Size, crop and normalisation of images.
        arch: The network's name.
        arch_args: Further arguments of the network.
        network: The network.
        criterion: The training loss.
        compile_network: If true, the network is compiled for training.
        results: The newest metrics of ``val`` and ``test``.
        resumed_results: The metrics in the checkpoint from which the run was resumed, as plain data.
        validated_step: The step at which the newest metrics of ``val`` were measured.
        weights_step: The step at which the tested weights were validated; their test metrics are logged at that step, too.
    """

    not_saved: ClassVar = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]
    """Arguments that a checkpoint leaves out: classes cannot be loaded safely, and the file of weights may be gone."""

    class_names: list[str]
    preprocessing: Preprocessing
    arch: str
    arch_args: dict[str, Any] | None
    network: nn.Module
    criterion: Any
    compile_network: bool

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Runs these hooks beside those of a subclass, which need not call them: Lightning's own do nothing."""
        super().__init_subclass__(**kwargs)
        for name in ("configure_callbacks", "on_save_checkpoint", "on_load_checkpoint"):
            if name in vars(cls):
                setattr(cls, name, _beside(getattr(ResumableModule, name), vars(cls)[name]))

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}
        self.resumed_results: dict[str, Any] = {}
        self.validated_step: int | None = None
        self.weights_step: int | None = None
        self.settings: dict[str, dict[str, Any]] = {"optimizer": {}, "lr_scheduler": {}}
        self.resumed: Mapping[str, Any] | None = None

    def add_metrics(self, train: Any, val: Any, test: Any) -> None:
        """Registers the metrics of each set, and those of ``configure_metrics``."""
        self.train_metrics, self.val_metrics, self.test_metrics = train, val, test
        own = {}
        for split in ("val", "test"):
            metrics = self.configure_metrics()
            for name in metrics:
                require(
                    name not in _TAKEN,
                    "the name of a metric",
                    name,
                    f"none of {', '.join(sorted(_TAKEN))}",
                )
            # groups would merge metrics whose states agree after the first batch
            own[split] = MetricCollection(cast(Any, metrics), compute_groups=False)
        self.own_metrics = nn.ModuleDict(own)

    def configure_metrics(self) -> dict[str, Metric]:
        """Returns further metrics of validation and test by name."""
        return {}

    def monitors(self) -> dict[str, str | None]:
        """Returns the names of validation metrics and which is better, ``min`` or ``max``; None if a metric does not say."""
        modes = {True: "max", False: "min", None: None}
        rates = {
            name: "min" if name == "loss" else "max" for name in self.val_metrics.results().rates()
        }
        own = {name: modes[metric.higher_is_better] for name, metric in self._own("val").items()}
        return {f"val/{name}": mode for name, mode in {**rates, **own}.items()}

    @property
    def has_one_class(self) -> bool:
        """True if each image has one class; otherwise it may have any number of them."""
        return bool(self.train_metrics.has_one_class)

    @property
    def thresholds(self) -> dict[str, float] | None:
        """The probability above which an image has each class; validation chooses them if it may have several."""
        found = self.test_metrics.thresholds
        return None if found is None else dict(zip(self.class_names, found, strict=True))

    @thresholds.setter
    def thresholds(self, thresholds: Any) -> None:
        given = thresholds if isinstance(thresholds, dict) else {}  # it may come from a file
        found = None if thresholds is None else [given.get(name) for name in self.class_names]
        sound = all(isinstance(value, float) and 0 < value < 1 for value in found or ())
        require(sound, "thresholds", thresholds, "a number between 0 and 1 for each class")
        self.test_metrics.thresholds = found

    def as_batch(self, batch: Any) -> Any:
        """Returns a batch with ``images`` and ``labels``, which fit the metrics; a plain loader's pairs become one.

        Without their data module, nothing would augment a data module's batches, and several processes count the same.
        """
        trainer = trainer_of(self)
        if trainer is not None and trainer.datamodule is None and hasattr(batch, "indices"):  # type: ignore[attr-defined]
            fn = trainer.state.fn.value if trainer.state.fn else "fit"
            advice = f"call trainer.{fn}(model, datamodule=data)"
            raise UserError(
                f"a data module's loaders need their data module for order and augmentation; {advice}"
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
        images: Tensor = (
            batch[0]
            if isinstance(batch, Sequence) and len(batch) == 1
            else self.as_batch(batch).images
        )
        return images

    def measure(
        self, split: Literal["train", "val", "test"], logits: Tensor, labels: Tensor, losses: Tensor
    ) -> None:
        """Counts a batch in the metrics of a set; images of negative label are left out, as another process counts them.

        Args:
            split: The set.
            logits: float (N, classes).
            labels: The data's labels, int64 (N,) if each image has one class; soft ones in training, float (N, classes).
            losses: Each image's loss, float (N,).
        """
        if not isinstance(losses, Tensor) or losses.shape != (len(logits),):
            got = (
                f"a tensor of shape {tuple(losses.shape)}"
                if isinstance(losses, Tensor)
                else type(losses).__name__
            )
            raise UserError(
                f"--model.loss, or {type(self).__name__}.loss, must return each image's loss, of shape ({len(logits)},), got"
                f" {got}; with reduction='none', not a mean, which would depend on how many devices share a batch"
            )
        getattr(self, f"{split}_metrics").update(logits.detach(), labels, losses.detach())
        if split != "train" and (own := self._own(split)):
            counted = (labels if labels.dim() == 1 else labels.amax(1)) >= 0
            if counted.any():
                own.update(logits[counted], labels[counted])

    def conclude(self, split: Literal["val", "test"]) -> Any:
        """Computes the metrics of a set over all processes and resets them; None if nothing was measured."""
        own, metrics = self._own(split), getattr(self, f"{split}_metrics")
        if not self._everywhere(metrics.update_called, all_processes=False):
            return None
        for name, metric in own.items():
            if not self._everywhere(
                metric.update_called, all_processes=True
            ):  # torchmetrics would wait
                raise UserError(
                    f"the metric '{name}' needs an image on each device; evaluate on fewer devices"
                )
        values = {}
        for name, value in own.compute().items():
            if torch.as_tensor(value).numel() != 1:
                raise UserError(f"the metric '{name}' must be one number, got {tuple(value.shape)}")
            values[name] = float(value)
        results = metrics.compute()._replace(own=values)
        with torch.inference_mode(False):  # else training could not change the new counts in place
            metrics.reset()
            own.reset()
        return results

    def _everywhere(self, decision: bool, all_processes: bool) -> bool:
        trainer = trainer_of(self)
        return (
            decision
            if trainer is None
            else trainer.strategy.reduce_boolean_decision(decision, all=all_processes)
        )

    def _own(self, split: str) -> MetricCollection:
        return cast(MetricCollection, self.own_metrics[split])

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Adds the callback that logs metrics and resumes runs."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        if self.trainer.training:
            require_supported(callbacks, self.network)
        return [] if any(isinstance(one, Bookkeeping) for one in callbacks) else [Bookkeeping()]

    def training_summary(self) -> dict[str, dict[str, Any]]:
        """Returns name and settings of ``loss``, ``optimizer`` and ``lr_scheduler``, for people to read."""
        owner = next(cls for cls in type(self).__mro__ if "loss" in vars(cls))
        if owner.__base__ is not ResumableModule:
            loss = {"name": f"{owner.__name__}.loss"}
        else:
            names = signature(type(self.criterion)).parameters.keys() - {"reduction"}
            given = {
                name: value
                for name, value in vars(self.criterion).items()
                if name in names and is_plain(value)
            }
            own_name = getattr(self.criterion, "__name__", type(self.criterion).__name__)
            loss = {"name": own_name, **given}
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
        checkpoint[ABOUT] = explain(self.trainer, self)
        checkpoint["counts"] = self.train_metrics.counts()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks the weights that Lightning is about to load; a run that resumes also restores its open counts."""
        require_fitting_weights(self.state_dict(), checkpoint["state_dict"], self.trainer.ckpt_path)
        if isinstance(
            self.trainer.precision_plugin, DoublePrecision
        ):  # Lightning converts after weights were rounded
            self.trainer.precision_plugin.convert_module(self)
        self.thresholds = checkpoint[ABOUT].get("thresholds")
        if not self.trainer.training:
            return
        metrics = checkpoint[ABOUT]["metrics"]
        self.resumed_results = {"val": metrics["val"]} if "val" in metrics else {}
        self.resumed = checkpoint
        if self.trainer.is_global_zero:  # they are those of all processes
            self.train_metrics.set_counts(checkpoint["counts"])

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


def _beside(ours: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook that runs ours and then a subclass's own, which may run ours again; of callbacks, it returns both."""

    @functools.wraps(own)
    def hook(self: Any, *args: Any) -> Any:
        added, found = ours(self, *args), own(self, *args)
        if added is None:
            return found
        callbacks = [found] if isinstance(found, Callback) else found or []
        return [*added, *(one for one in callbacks if not isinstance(one, Bookkeeping))]

    return hook
