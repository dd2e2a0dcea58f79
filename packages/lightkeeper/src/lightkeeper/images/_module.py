"""The base of classifiers: exact metrics, safe checkpoints, and exact resuming."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from ..exact._errors import UserError, note
from ..exact._last_checkpoint import Checkpoint
from ..exact._loggers import is_logged
from ..exact._non_finite import require_finite
from ..exact._plain import plain
from ..exact._upstream import keep_average, trainer_of
from ._batch import ImageBatch
from ._bookkeeping import Bookkeeping
from ._checkpoint import ABOUT, About, read_weights
from ._checkpoints import change_of_data, describe_run, fitting, opened, remember_options
from ._class_names import require_class_names
from ._files import prepare
from ._predictions import Prediction, Predictions, fields_of
from ._preprocessing import Preprocessing
from ._resuming import require_restorable
from ._settings import allow_module

Split = Literal["train", "val", "test"]
Results = dict[str, Any]
"""Plain data by metric."""


class ClassifierModule(LightningModule):
    """A LightningModule with exact metrics, safe checkpoints, and runs that resume exactly.

    A subclass's constructor sets the attributes up to ``compile_network`` and calls
    :meth:`add_metrics`. One that overrides ``configure_callbacks``, ``on_save_checkpoint`` or
    ``on_load_checkpoint`` calls these.

    Attributes:
        class_names: The classes in the order of their labels.
        preprocessing: Size, crop and normalisation of images.
        arch: The network's name.
        arch_args: Further arguments of the network.
        network: The network.
        criterion: The training loss.
        compile_network: If true, the network is compiled for training.
        results: The newest metrics of ``val`` and ``test``, as plain data.
        predictions: Those of the newest evaluation outside ``fit``, and of its test, in the first
            process; None if its steps give :meth:`measure` no indices.
        keeps_logits: If true, predictions have logits, too.
        about: What the checkpoint that the model was loaded from says of itself.
        thresholds: The probability above which an image has each class, chosen in validation if it
            may have several.
        measured: The sets that steps have measured since the last :meth:`conclude`.
        collected: Fields of predictions for each batch of an evaluation.
        left_out: Hyperparameters that checkpoints cannot hold, as far as they were noted.
    """

    has_one_class: ClassVar[bool] = True
    """True if each image has one class; otherwise any number: labels (N, classes) of 0 and 1."""
    train_metric_names: ClassVar = ["loss", "accuracy"]
    """The metrics that training computes, too."""
    not_saved: ClassVar = ["loss", "optimizer", "lr_scheduler", "weights", "compile"]
    """Arguments that a checkpoint leaves out: classes, and files that may be gone."""

    read_weights = staticmethod(read_weights)

    class_names: list[str]
    preprocessing: Preprocessing
    arch: str
    arch_args: dict[str, object] | None
    network: nn.Module
    criterion: Callable[..., Tensor]
    compile_network: bool

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Results] = {}
        self.predictions: Predictions | None = None
        self.about: About = {}
        self.thresholds: dict[str, float] | None = None
        self.keeps_logits = False
        self.measured: set[Split] = set()
        self.collected: list[list[Tensor]] = []
        self.left_out: dict[str, None] = {}
        self._restored_from: object = None

    @abstractmethod
    def configure_metrics(self) -> dict[str, Metric]:
        """Returns the metrics by name; ``update`` takes what :meth:`measure` gives it.

        A number is logged under its metric's name. ``compute`` may also return a dict of a number
        under this name and of other plain data or tensors, which are only recorded.
        """

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities, float (N, classes)."""

    def add_metrics(self) -> None:
        """Builds the metrics of each set; checkpoints may name the model's network from then on."""
        allow_module(self.arch.rpartition(".")[0])
        require_class_names(self.class_names)
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

    def label_names(self, label: Tensor) -> str:
        """Names the class of an image, or all classes that it has a share of.

        Args:
            label: int64 (), or (classes,).
        """
        if label.dim() == 0:
            return self.class_names[label]
        positions = (label > 0).nonzero().flatten()
        return " ".join(self.class_names[position] for position in positions)

    def predict_files(self, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
        """Labels image files, prepared as the model's preprocessing says, in their order.

        Args:
            paths: The files.
            batch_size: The number of images that the model sees at a time; no result depends on it.

        Raises:
            UnreadableFileError: A file is no image.
        """
        self.eval()
        predictions: list[Prediction] = []
        for start in range(0, len(paths), batch_size):
            files = paths[start : start + batch_size]
            images = torch.stack([prepare(path, self.preprocessing) for path in files])
            with torch.inference_mode():
                probabilities = self.predict_step(images.to(self.device), 0).float()
            best = self.predicted(probabilities) if self.has_one_class else probabilities.argmax(1)
            for position, row in zip(best.tolist(), probabilities.tolist(), strict=True):
                by_name = dict(zip(self.class_names, row, strict=True))
                predictions.append(Prediction(self.class_names[position], row[position], by_name))
        return predictions

    @property
    def is_fitting(self) -> bool:
        """True while a trainer fits the model, also in its validation."""
        trainer = trainer_of(self)
        return trainer is not None and trainer.state.fn == "fit"

    @property
    def is_logging(self) -> bool:
        """True if the current batch concludes a step after which training is logged."""
        return is_logged(self.trainer)

    def as_batch(self, batch: Sequence[Tensor]) -> ImageBatch:
        """Returns a batch with images, labels and indices; a plain loader's pairs have no indices."""
        if not hasattr(batch, "indices"):
            images, labels = batch
            batch = ImageBatch(images, labels, indices=torch.empty(0))
        return cast(ImageBatch, batch)

    def measure(
        self,
        split: Split,
        logits: Tensor,
        labels: Tensor,
        losses: Tensor,
        indices: Tensor | None = None,
    ) -> None:
        """Updates the metrics of a set by a batch.

        They take the probabilities and labels, and by name ``logits``, ``losses`` and
        ``predicted``, the predicted labels. In evaluation, images without a label, -1,
        are left out. Soft labels are rounded.

        Args:
            split: The set.
            logits: float (N, classes).
            labels: The data's labels, int64 (N,) or (N, classes); in training perhaps soft, float
                (N, classes).
            losses: Each image's loss, float (N,).
            indices: The batch's, for :attr:`predictions` of an evaluation.
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
        if indices is not None and len(indices) == len(labels) and not self.is_fitting:
            self.collected.append(fields_of(self, split, logits, labels, indices))
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

    def conclude(self, split: Split) -> Results | None:
        """Computes the metrics of a set over all processes, and resets them.

        Returns:
            Plain data by metric; None if no step has called :meth:`measure`.
        """
        if split not in self.measured:
            return None
        metrics = self.metrics_of(split).compute()
        self.restart(split)
        return {name: _plain(value) for name, value in metrics.items()}

    def restart(self, split: Split) -> None:
        """Forgets what was measured of a set, also by an evaluation that did not reach its end."""
        self.measured.discard(split)
        self.collected = []
        with torch.inference_mode(False):  # else training could not change the new states in place
            self.metrics_of(split).reset()

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Adds the callback that logs metrics and resumes runs, once."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        added = any(isinstance(part, Bookkeeping) for part in callbacks)
        return [] if added else [Bookkeeping()]

    def on_save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Adds the model's options, the checkpoint's description, and open counts."""
        require_finite(checkpoint["state_dict"], self.global_step)
        remember_options(checkpoint, self.trainer, self)
        checkpoint[ABOUT] = plain(describe_run(self.trainer, self))
        checkpoint["counts"] = {
            name: _counts(metric) for name, metric in self.train_metrics.items()
        }

    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint's facts over; a resumed run also restores its counts."""
        self.about = checkpoint[ABOUT]
        self.thresholds = self.about.get("thresholds")
        trainer = trainer_of(self)
        if trainer is None:
            return
        self._restored_from = trainer.ckpt_path
        # Lightning converts after weights were rounded
        if isinstance(trainer.precision_plugin, DoublePrecision):
            trainer.precision_plugin.convert_module(self)
        if not trainer.training:
            keep_average(checkpoint)
            return
        require_restorable(trainer, self, checkpoint)
        if change := change_of_data(self.about, getattr(trainer, "datamodule", None)):
            rank_zero_only(note)(
                f"the data has changed since this run was stopped, {change}; what this epoch has left"
                " is drawn from these"
            )
        if "val" in self.about["metrics"]:
            self.results = {"val": self.about["metrics"]["val"]}
        if trainer.is_global_zero:  # they are those of all processes
            for name, metric in self.train_metrics.items():
                for key, value in checkpoint["counts"].get(name, {}).items():
                    cast(Tensor, metric.metric_state[key]).copy_(value)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads weights; those that a trainer restores and that do not fit are a user error."""
        path, self._restored_from = self._restored_from, None
        with fitting(path) if path is not None else nullcontext():
            return super().load_state_dict(state_dict, strict, assign)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file could name what is imported
        cls,
        checkpoint_path: str | Path,
        map_location: torch.device | str | None = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: Literal[True] | None = None,  # noqa: ARG003  # as callers of Lightning's give it
        **kwargs: Any,
    ) -> Self:
        """Builds the model that a checkpoint holds, and imports or runs nothing that the file says.

        As Lightning's, it calls ``configure_model`` and ``on_load_checkpoint`` before it loads the
        weights.

        Args:
            checkpoint_path: The checkpoint. If it is of a subclass that is imported, the model is
                of that.
            map_location: The device for the model, by default the CPU.
            hparams_file: A YAML or CSV file of hyperparameters in place of those in the file.
            strict: If true, the weights must be exactly those of the model; those of a loss need
                not be. By default the model's ``strict_loading``.
            weights_only: Always true.
            kwargs: Arguments of the constructor in place of those in the file.

        Raises:
            UserError: The file is missing or damaged, or does not hold such a model.
        """
        model = opened(cls, checkpoint_path, hparams_file, strict, kwargs)
        return model.to(map_location or "cpu")


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
