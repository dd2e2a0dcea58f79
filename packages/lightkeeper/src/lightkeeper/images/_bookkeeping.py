"""Callbacks of a classifier: what its checkpoints say, and resuming."""

from collections.abc import Sized
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..exact._checkpoint_io import Checkpoint, keep_plain_options
from ..exact._errors import UserError, listed, note
from ..exact._loader import TrainingSampler, behind_batches
from ..exact._plain import plain
from ..exact._training import ExactTraining, convert_to_double
from ..exact._upstream import callbacks_of, training_loaders
from ._batch import ArrayDataset
from ._best_checkpoint import BestCheckpoint
from ._checkpoint import ABOUT, CALIBRATION, About
from ._checkpoints import change_of_data, describe_run, measured
from ._class_names import require_class_names
from ._predictions import CollectPredictions
from ._resuming import require_optimizers, require_restorable
from ._settings import remembered
from ._unseen import seen_by_weights, trained_splits
from ._upstream import length_attributes, log_end_of_short_epoch

_LENGTH = "length"
_CHANGES = "changes_of_data"


def classifier_callbacks(trainer: Trainer) -> list[Callback]:
    """Returns the callbacks of a classifier that a trainer does not have, for its model to add.

    They describe each checkpoint under the key ``about``, keep a resumed run exact, and collect the
    predictions of an evaluation as the model's ``predictions``, see :class:`Predictions`. For that,
    the evaluation steps return logits, float (N, classes).
    """
    callbacks = callbacks_of(trainer)
    kinds = (DescribeCheckpoint, ExactTraining, CollectPredictions)
    return [kind() for kind in kinds if not any(isinstance(part, kind) for part in callbacks)]


class DescribeCheckpoint(Callback):
    """Describes each checkpoint under ``about``, and checks one that a run resumes from.

    It checks before Lightning and torch restore values, so it must precede callbacks that do. It
    also keeps the lengths of schedules, and logs epochs that are shorter than Lightning's interval.

    Attributes:
        about: What the checkpoint that was loaded last says of itself.
        changes_of_data: Why the test may have images that the model was trained on: how the data
            has changed while the run was stopped, each time, or what its first weights have seen.
    """

    def __init__(self) -> None:
        self.about: About = {}
        self.changes_of_data: list[str] = []
        self._resumed_metrics: dict[str, object] = {}  # until there are newer ones
        self._left_out: dict[str, None] = {}
        self._length = ""
        self._states: Checkpoint = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Requires that each class has a name of its own, by which a checkpoint knows it."""
        require_class_names(getattr(pl_module, "class_names", []))
        convert_to_double(trainer, pl_module)
        if stage == "fit":
            self._length = _length_options(trainer)

    @rank_zero_only
    def note_weights(self, source: object, data: object) -> None:
        """Notes validation and test images that the weights which training begins with have seen."""
        if seen := seen_by_weights(source, data):
            self.changes_of_data.append(seen)
            note(f"{seen}, or take other weights: metrics on these images would be too good")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Adds the description, and notes once which options are left out."""
        others = dict.fromkeys(keep_plain_options(checkpoint, remembered))
        if not others.keys() <= self._left_out.keys():
            self._left_out |= others
            rank_zero_only(note)(
                "checkpoints hold numbers, text, tensors, and lists and dicts of these, so they"
                f" leave out {listed(self._left_out)}; load_from_checkpoint takes them from you"
            )
        metrics = measured(trainer, pl_module)
        checkpoint[ABOUT] = plain(describe_run(trainer, pl_module, metrics | self._resumed_metrics))
        if self.changes_of_data:
            checkpoint[ABOUT][_CHANGES] = self.changes_of_data
        checkpoint[_LENGTH] = self._length

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Checks what a resumed run restores, and notes other data.

        Leaves out the lengths of schedules where options have changed that decide them. Otherwise
        they stay, although a callback may have changed the batch size since. Keeps the states of
        optimizers until there are any to compare them with.
        """
        self.about = checkpoint.get(ABOUT, {})
        if not trainer.training:
            return
        if self.about:
            require_restorable(trainer, pl_module, checkpoint)
            data = getattr(trainer, "datamodule", None)
            self.changes_of_data = [*self.about.get(_CHANGES, [])]
            if data is not None and (change := change_of_data(self.about, data)):
                if trained := trained_splits(self.about, data.digests()):
                    raise UserError(
                        f"{listed(trained)} has the images that this run was trained on; put them"
                        " back, or start another run with --name"
                    )
                self.changes_of_data.append(f"after step {checkpoint['global_step']}, {change}")
                rank_zero_only(note)(
                    f"the data has changed since this run was stopped, {change}; what this epoch"
                    " has left is drawn from these, and images that it was trained on may be in"
                    " other splits"
                )
            metrics = self.about["metrics"]
            self._resumed_metrics = {"val": metrics["val"]} if "val" in metrics else {}
        if checkpoint.get(_LENGTH) != self._length:
            for state in checkpoint.get("lr_schedulers", ()):
                for name in length_attributes(state):
                    del state[name]
        self._states = {key: checkpoint[key] for key in ("optimizer_states", "lr_schedulers")}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops the metrics of the checkpoint that was resumed from: there are newer ones."""
        if not trainer.sanity_checking:
            self._resumed_metrics = {}

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuses to watch a metric that validation does not log, before an epoch is lost.

        Raises:
            UserError: A callback or a schedule watches such a metric.
        """
        known = {*trainer.callback_metrics}
        callbacks = callbacks_of(trainer)
        for part in (*callbacks, *trainer.lr_scheduler_configs):
            monitor = getattr(part, "monitor", None)
            # of others, the sanity check may know nothing yet
            is_of_validation = (
                isinstance(monitor, str)
                and monitor.startswith("val/")
                and any(trainer.num_sanity_val_batches)  # a data module may have no loader
            )
            if is_of_validation and monitor not in known and getattr(part, "strict", True):
                raise UserError(
                    f"validation does not log {monitor}, but {listed(sorted(known))}; if something"
                    " logs it in whole validations alone, set num_sanity_val_steps to 0",
                    _monitor_option(part),
                )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks what the optimizers and schedules of a resumed run will get.

        Forgets a calibration, which is not of the weights that training ends with.
        """
        abouts: list[About] = [self.about, getattr(pl_module, "about", {})]
        for about in abouts:
            for name in CALIBRATION:
                about.pop(name, None)
        if self._states:
            require_optimizers(trainer, self._states)
        self._states = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notes the batches of a fractional ``limit_train_batches``, which Lightning rounds down.

        Also notes the user's own loaders that do not tell a dataset the epoch: each image would be
        cropped alike in each epoch.
        """
        share = trainer.limit_train_batches
        loader = trainer.train_dataloader
        if isinstance(share, float) and 0 < share < 1 and isinstance(loader, Sized):
            rank_zero_only(note)(
                f"each epoch has {trainer.num_training_batches} of the {len(loader)} training"
                f" batches, a share of {share:g} rounded down"
            )
        if any(map(_augments_alike, training_loaders(trainer))):
            rank_zero_only(note)(
                "the order of this training set is your loader's, which does not tell it the epoch:"
                " each image gets the same crop and transforms in each epoch; override the data"
                " module's order, or set its class_balance instead"
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Refuses loaders that lack their data module.

        Raises:
            UserError: A data module's loaders came without it, which knows order and augmentation.
        """
        # one of another class may hand the hook on
        if hasattr(batch, "indices") and not is_overridden(
            "on_after_batch_transfer",
            trainer.datamodule,  # type: ignore[attr-defined]  # by a loop
        ):
            raise UserError("a data module's loaders need it: trainer.fit(model, datamodule=data)")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hands loggers what steps have logged in an epoch too short for Lightning's interval."""
        log_end_of_short_epoch(trainer)


def _augments_alike(loader: object) -> bool:
    """Returns True if a loader does not tell its dataset the epoch, by which that crops images."""
    dataset = behind_batches(getattr(loader, "dataset", None))
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    # images in memory are augmented on the device, where the epoch is known
    draws = dataset is not None and not isinstance(dataset, ArrayDataset)
    return draws and not isinstance(sampler, TrainingSampler)


def _length_options(trainer: Trainer) -> str:
    """Returns what decides a run's number of steps, as text: options and the number of images."""
    data = getattr(trainer, "datamodule", None)
    limits: Any = trainer.limit_train_batches, trainer.overfit_batches  # type: ignore[attr-defined]
    batches = trainer.accumulate_grad_batches, dict(getattr(data, "hparams", {})).get("batch_size")
    images = dict(getattr(data, "split_sizes", dict)()).get("train")
    return str([trainer.max_epochs, trainer.max_steps, *limits, *batches, images])


def _monitor_option(part: object) -> str:
    """Returns the option that names the metric which a callback or a schedule monitors."""
    if isinstance(part, BestCheckpoint):
        return "monitor"
    is_callback = isinstance(part, Callback)
    return f"{type(part).__name__} monitor" if is_callback else "lr_scheduler.monitor"
