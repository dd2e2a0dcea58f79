"""The base of classifiers: exact metrics, safe checkpoints, and exact resuming."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, cast

import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from ..errors import NonFiniteError, UserError
from ..run.checkpoint import ABOUT, Checkpoint, describe_run, read_weights, sizes_of
from ..run.progress import note
from ..run.settings import allow_module, plain_options
from .best_checkpoint import selection
from .bookkeeping import Bookkeeping, require_supported_callbacks
from .labels import LabelModule
from .opening import opened, restore_weights
from .predictions import CollectPredictions, Predictions

Split = Literal["train", "val", "test"]


class LabelledBatch(Protocol):
    """What a step needs of a batch."""

    @property
    def images(self) -> Tensor:
        """The images, (N, channels, height, width)."""

    @property
    def labels(self) -> Tensor:
        """The labels, int64 (N,) or (N, classes); in training perhaps soft, float (N, classes)."""


class PlainBatch(NamedTuple):
    """A batch of a plain ``DataLoader``.

    Attributes:
        images: uint8 (N, 3, height, width).
        labels: int64 (N,).
    """

    images: Tensor
    labels: Tensor


class ClassifierModule(LabelModule):
    """A LightningModule with exact metrics, safe checkpoints, and runs that resume exactly.

    A subclass's constructor sets the attributes up to ``compile_network`` and calls
    :meth:`add_metrics`. One that overrides ``configure_callbacks``, ``on_save_checkpoint`` or
    ``on_load_checkpoint`` calls these.

    Attributes:
        arch: The network's name.
        arch_args: Further arguments of the network.
        network: The network.
        criterion: The training loss.
        compile_network: If true, the network is compiled for training.
        results: The newest metrics of ``val`` and ``test``, as plain data.
        predictions: Those of the newest evaluation outside ``fit``, and of its test, in the first
            process; None if its steps do not return logits.
        thresholds: The probability above which an image has each class, chosen in validation if it
            may have several.
        coverage: Thresholds of prediction sets by percent.
        validated_step: The step at which the newest metrics of ``val`` were measured.
        measured: The sets that steps have measured since the last :meth:`conclude`.
        weights_step: The step at which the tested weights were validated; their test metrics are
            logged at that step, too.
    """

    train_metric_names: ClassVar = ["loss", "accuracy"]
    """The metrics that training computes, too."""
    not_saved: ClassVar = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]
    """Arguments that a checkpoint leaves out: classes, and files that may be gone."""

    read_weights = staticmethod(read_weights)

    arch: str
    arch_args: dict[str, object] | None
    network: nn.Module
    criterion: Any  # a module or a function, with whatever it has
    compile_network: bool

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}
        self.predictions: Predictions | None = None
        self.thresholds: dict[str, float] | None = None
        self.coverage: dict[int, float] = {}
        self.validated_step: int | None = None
        self.weights_step: int | None = None
        self.measured: set[Split] = set()

    @abstractmethod
    def configure_metrics(self) -> dict[str, Metric]:
        """Returns the metrics by name; ``update`` takes what :meth:`measure` gives it.

        A number is logged under its metric's name. ``compute`` may also return a dict of a number
        under this name and of other plain data or tensors, which are only recorded.
        """

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities, float (N, classes)."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns each image's training loss, float (N,)."""

    def add_metrics(self) -> None:
        """Builds the metrics of each set; checkpoints may name the model's network from then on."""
        allow_module(self.arch.rpartition(".")[0])
        # groups would merge metrics whose states agree after the first batch
        metrics = MetricCollection({**self.configure_metrics()}, compute_groups=False)
        trained = {name: metrics[name] for name in self.train_metric_names if name in metrics}
        self.train_metrics = MetricCollection({**trained}, compute_groups=False).clone()
        self.val_metrics = metrics
        self.test_metrics = metrics.clone()

    def monitors(self) -> dict[str, str | None]:
        """Returns the validation metrics' better direction, ``min`` or ``max``; None if unknown."""
        modes = {True: "max", False: "min", None: None}
        return {
            f"val/{name}": modes[metric.higher_is_better]
            for name, metric in self.val_metrics.items()
        }

    def predicted(self, probabilities: Tensor, split: Split = "test") -> Tensor:
        """Returns each image's most probable class, int64 (N,), or a 1 for each of its classes.

        With any number of classes, int64 (N, classes). Training and validation count a class above
        0.5, the test and all use after training above ``thresholds``.
        """
        if self.has_one_class:
            return probabilities.argmax(1)
        chosen = self.thresholds if split == "test" else None
        thresholds = [chosen[name] if chosen else 0.5 for name in self.class_names]
        return (probabilities > torch.tensor(thresholds, device=probabilities.device)).long()

    def as_batch(self, batch: LabelledBatch | Sequence[Tensor]) -> LabelledBatch:
        """Returns a batch with ``images`` and ``labels``; a plain loader's pairs become one.

        Raises:
            UserError: The images have several classes and the model gives them one, or the reverse.
        """
        if isinstance(batch, Sequence) and not hasattr(batch, "labels"):
            batch = PlainBatch(*batch)
        labels = cast(LabelledBatch, batch).labels
        if not labels.is_floating_point() and (labels.dim() == 1) != self.has_one_class:
            raise UserError(
                f"the labels have the shape {tuple(labels.shape)}, but {type(self).__name__} gives"
                f" each image {'one class' if self.has_one_class else 'any number of classes'};"
                " choose other data or another --model"
            )
        return cast(LabelledBatch, batch)

    def images_of(self, batch: Tensor | Sequence[Tensor]) -> Tensor:
        """Returns the images of a batch, with or without labels, uint8 (N, 3, height, width)."""
        return batch if isinstance(batch, Tensor) else batch[0]

    def measure(self, split: Split, logits: Tensor, labels: Tensor, losses: Tensor) -> None:
        """Updates the metrics of a set by a batch.

        They take the probabilities and labels, and by name ``logits``, ``losses`` and
        ``predicted``, the predicted labels. In evaluation, images without a label, -1, such as
        files that cannot be read, are left out. Soft labels are rounded.

        Args:
            split: The set.
            logits: float (N, classes).
            labels: The data's labels, int64 (N,) or (N, classes); in training perhaps soft, float
                (N, classes).
            losses: Each image's loss, float (N,).
        """
        if losses.shape != (len(logits),):
            raise UserError(
                f"--model.loss, or {type(self).__name__}.loss, must return each image's loss, of"
                f" shape ({len(logits)},), got {tuple(losses.shape)}; with reduction='none', not a"
                " mean, which would depend on how many devices share a batch"
            )
        logits = logits.detach().float()
        losses = losses.detach()
        if labels.is_floating_point():
            labels = labels.argmax(1) if self.has_one_class else labels.round().long()
        if split != "train":
            known = (labels if labels.dim() == 1 else labels.amax(1)) >= 0
            if not known.all():
                logits = logits[known]
                labels = labels[known]
                losses = losses[known]
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
        """Computes the metrics of a set over all processes, and resets them.

        Returns:
            Plain data by metric; None if no step has called :meth:`measure`.
        """
        if split not in self.measured:
            return None
        self.measured.remove(split)
        metrics = self.metrics_of(split)
        results = {name: _plain(value) for name, value in metrics.compute().items()}
        with torch.inference_mode(False):  # else training could not change the new states in place
            metrics.reset()
        return results

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Adds the callbacks that log metrics, resume runs and collect predictions."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        if self.trainer.training:
            require_supported_callbacks(callbacks)
        added = [part for part in callbacks if isinstance(part, Bookkeeping)]
        if any(part.model is self for part in added):
            return []
        collects = any(isinstance(part, CollectPredictions) for part in callbacks)
        return [Bookkeeping(self)] if collects else [Bookkeeping(self), CollectPredictions()]

    def on_save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Adds the model's options, the checkpoint's description, and open counts."""
        for name, value in checkpoint["state_dict"].items():
            if isinstance(value, Tensor) and not value.isfinite().all():
                raise NonFiniteError(
                    f"{name} has values that are not finite after step {self.global_step}; the"
                    " checkpoints are from before; try a lower --model.optimizer.lr, under another"
                    " --name"
                )
        checkpoint["hyper_parameters"] = plain_options(self.hparams, type(self))
        checkpoint[ABOUT] = describe_run(self.trainer, self, selection(self.trainer))
        checkpoint["counts"] = {
            name: _counts(metric) for name, metric in self.train_metrics.items()
        }

    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Checks weights before Lightning loads them; a resumed run also restores its counts."""
        # Lightning converts after weights were rounded
        if isinstance(self.trainer.precision_plugin, DoublePrecision):
            self.trainer.precision_plugin.convert_module(self)
        restore_weights(self, checkpoint["state_dict"], self.trainer.ckpt_path)
        about = checkpoint[ABOUT]
        self.thresholds = about.get("thresholds")
        if not self.trainer.training:
            return
        if (sizes := sizes_of(self.trainer)) != about["images"]:
            rank_zero_only(note)(
                f"the data has changed since this run was stopped, from {about['images']} images to"
                f" {sizes}; what this epoch has left is drawn from these"
            )
        if "val" in about["metrics"]:
            self.results = {"val": about["metrics"]["val"]}
        if self.trainer.is_global_zero:  # they are those of all processes
            for name, metric in self.train_metrics.items():
                _restore_counts(metric, checkpoint["counts"].get(name, {}))

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file could name what is imported
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str = "cpu",
        strict: bool = True,
        weights_only: Literal[True] = True,  # noqa: ARG003  # as callers of Lightning's give it
        **kwargs: object,
    ) -> Self:
        """Builds the model that a checkpoint holds, and imports or runs nothing that the file says.

        Args:
            checkpoint_path: The checkpoint. If it is of a subclass that is imported, the model is
                of that.
            map_location: The device for the model.
            strict: If true, the weights must be exactly those of the model; those of a loss need
                not be.
            weights_only: Always true.
            kwargs: Arguments of the constructor in place of those in the file.

        Raises:
            UserError: The file is missing or damaged, or does not hold such a model.
        """
        return opened(cls, checkpoint_path, strict, kwargs).to(map_location)


@cache
def _arguments(metric: type[Metric]) -> Set[str]:
    """Returns the names of the arguments of ``update``."""
    return signature(metric.update).parameters.keys()


def _plain(value: object) -> object:
    """Returns a number or a list for a tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.item() if value.numel() == 1 else value.tolist()


def _counts(metric: Metric) -> dict[str, Tensor]:
    """Returns the state of a metric over all processes, each of which must call this."""
    with metric.sync_context():
        states = metric.metric_state.items()
        return {name: state.cpu().clone() for name, state in states if isinstance(state, Tensor)}


def _restore_counts(metric: Metric, counts: Mapping[str, object]) -> None:
    """Restores the state that :func:`_counts` returned; one of another shape begins anew."""
    for name, state in metric.metric_state.items():
        saved = counts.get(name)
        if isinstance(state, Tensor) and isinstance(saved, Tensor) and saved.shape == state.shape:
            state.copy_(saved)
