"""The optimizer and learning-rate schedule of a run, as the command asks for them and as a resumed run finds them."""

import math
from typing import Any, Literal, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.optim import Optimizer

from project.engine.errors import require
from project.engine.training.fitting import require_fitting_state, require_fitting_values
from project.engine.training.steps import PlannedSteps
from project.model.finders import Finders
from project.model.optimizers import (
    LR_SCALE,
    build_optimizer,
    explained,
    require_averaged_at_own_rates,
    require_scaled,
    require_searchable,
)
from project.model.resume import (
    Settings,
    apply_changes,
    group_settings,
    optimizer_summary,
    require_changeable_rates,
    require_same_optimizer,
    restart_epoch,
    settings_of,
)
from project.model.schedules import build_cosine, of_length, require_long_enough


class Optimization:
    """Builds an optimizer and its schedule, and brings a resumed run's own in line with the command.

    Args:
        optimizer: Makes the optimizer from parameter groups.
        base_batch_size: The batch size that the learning rate is meant for; None takes the rate as it is.
        lrf: The final learning rate of the cosine schedule as a fraction of the first.
        warmup_epochs: How many epochs the warmup of the cosine schedule takes.
        lr_scheduler: Makes a schedule from the optimizer; None is the cosine schedule.
        interval: What a schedule other than the cosine is stepped after.
        layer_decay: As :func:`project.model.optimizers.parameter_groups` takes it.

    Attributes:
        interval: As given.
        finders: What Lightning's finders found, which counts instead of what the command gives.

    Raises:
        UserError: A number is out of its range.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable,
        base_batch_size: int | None,
        lrf: float,
        warmup_epochs: float,
        lr_scheduler: LRSchedulerCallable | None,
        interval: Literal["epoch", "step"],
        layer_decay: float = 1.0,
    ) -> None:
        require(0 <= lrf <= 1, "--model.lrf", lrf, "from 0 to 1")
        require(0 <= warmup_epochs < math.inf, "--model.warmup_epochs", warmup_epochs, "0 or more")
        require(base_batch_size is None or base_batch_size > 0, "--model.base_batch_size", base_batch_size, "above 0")
        require(0 < layer_decay <= 1, "--model.layer_decay", layer_decay, "above 0, at most 1")
        self.optimizer, self._base_batch_size, self._layer_decay = optimizer, base_batch_size, layer_decay
        self.lrf, self._warmup_epochs = lrf, warmup_epochs
        self._lr_scheduler, self.interval = lr_scheduler, interval
        self.finders = Finders()
        self._planned: PlannedSteps | None = None
        self._to_the_end: Any = None  # a schedule that ends where training does
        self._settings: Settings | None = None
        self._settings_before: Settings | None = None
        self._state_before: Any = None
        self._schedule_before: Any = None

    def require_sound(self, network: nn.Module, trainer: Trainer) -> Any:
        """Builds both, the cosine schedule apart, to see whether they can be.

        Returns:
            The schedule, of no use but to look at its settings; None for the cosine.

        Raises:
            UserError: Their classes or Lightning do not accept the settings.
        """
        optimizer = build_optimizer(self.optimizer, network, trainer, None, self._layer_decay)
        require_searchable(optimizer, trainer)
        require_averaged_at_own_rates(optimizer, trainer)
        if self._lr_scheduler is None:
            return None
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        with explained("--model.lr_scheduler"):
            # the data is not loaded to count its batches
            schedule = of_length(self._lr_scheduler, lambda: 1000)(optimizer)
        require_scaled(optimizer, rates)
        return schedule

    @staticmethod
    def watched_by(schedule: Any) -> str:
        """The metric by which a schedule such as ``ReduceLROnPlateau`` is stepped."""
        return str(getattr(schedule, "monitor", "val/loss"))

    def configure(self, model: Any) -> OptimizerLRScheduler:
        """Builds the optimizer over the groups that decay and do not, and its schedule.

        Args:
            model: An ``ImageClassifier`` with its trainer.

        Raises:
            UserError: Their classes or Lightning do not accept the settings, or a run is resumed with another
                optimizer.
        """
        trainer = model.trainer
        optimizer = build_optimizer(self.optimizer, model.network, trainer, self._base_batch_size, self._layer_decay)
        self.finders.begin(trainer)
        if model.lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = model.lr * group.get(LR_SCALE, 1.0)
        groups = group_settings(optimizer)
        self._planned = PlannedSteps(trainer)
        with explained("--model.lr_scheduler"):
            scheduler = self._build_schedule(optimizer, self._planned)
        self._settings = settings_of(optimizer, groups, scheduler)
        if trainer.ckpt_path is not None:
            self._require_same(trainer.ckpt_path)
            self._require_fitting_state(optimizer, model)
            self._require_fitting_schedule(scheduler, trainer.ckpt_path)
        schedule = {
            "scheduler": scheduler,
            "interval": "step" if self._lr_scheduler is None else self.interval,
            "monitor": self.watched_by(scheduler),
            "name": "learning_rate",
        }
        return cast(OptimizerLRScheduler, {"optimizer": optimizer, "lr_scheduler": schedule})

    def _build_schedule(self, optimizer: Optimizer, planned: PlannedSteps) -> Any:
        if self._lr_scheduler is None:
            scheduler: Any = build_cosine(optimizer, planned, self.lrf, self._warmup_epochs)
        else:
            length = planned.total if self.interval == "step" else planned.epochs
            make = of_length(self._lr_scheduler, length)
            scheduler = make(optimizer)
            if make is self._lr_scheduler:
                require_long_enough(scheduler, length)
                return scheduler
        self._to_the_end = scheduler
        return scheduler

    def require_planned(self, scheduler: Any, trainer: Trainer) -> None:
        """Checks before a schedule is stepped that it ends where training does.

        Raises:
            UserError: It was made for all of training, and would end elsewhere.
        """
        if self._planned is not None and scheduler is self._to_the_end and not self.finders.searching:
            self._planned.require_kept(trainer)

    def state(self, model: Any) -> dict[str, Any]:
        """What the command asked for, None before the optimizer is built, and what was found, for a checkpoint."""
        return {"settings": self._settings, "found": self.finders.state(model)}

    def load(self, checkpoint: dict[str, Any], model: Any) -> None:
        """Remembers what an earlier command asked for until the optimizer is built, and takes over what it found."""
        self._state_before = checkpoint.get("optimizer_states")
        self._schedule_before = checkpoint.get("lr_schedulers")
        self._settings_before = checkpoint.get("settings")
        self.finders.load(checkpoint.get("found", {}), model)

    def resume(self, model: LightningModule) -> None:
        """Lets what the command says now win over the settings that a checkpoint has just restored."""
        restart_epoch(model.trainer, model)
        resumed = model.trainer.ckpt_path is not None
        if resumed and self._settings_before is not None and self._settings is not None:
            apply_changes(model.trainer, self._settings_before, self._settings)

    def summary(self, trainer: Trainer) -> dict[str, dict[str, Any]]:
        """Names and settings of ``optimizer`` and ``lr_scheduler``, for people to read."""
        return {"optimizer": optimizer_summary(self._settings), "lr_scheduler": self._schedule(trainer)}

    def _schedule(self, trainer: Trainer) -> dict[str, Any]:
        if self._lr_scheduler is None:
            return {"name": "cosine", "lrf": self.lrf, "warmup_epochs": self._warmup_epochs}
        (config,) = trainer.lr_scheduler_configs or (None,)
        return {"name": type(config.scheduler).__name__, "interval": self.interval} if config else {}

    def _require_same(self, source: object) -> None:
        """Compares what an earlier command asked for, which comes from a file, with what this one does."""
        before, now = self._settings_before, self._settings
        if before is not None and now is not None:
            kinds: dict[str, Any] = {"optimizer": "", "scheduler": {}}
            require_fitting_values(kinds, before, "the settings", source)
            require_same_optimizer(before, now)
            kinds["groups"] = [{"lr": group["lr"]} for group in now["groups"]]
            kinds |= {"rates": now["rates"], "scheduled": [{} for _ in now["scheduled"]]}
            require_fitting_values(kinds, before, "the settings", source)
            require_changeable_rates(before, now)

    def _require_fitting_schedule(self, scheduler: Any, source: object) -> None:
        """Compares the numbers of the schedule, which Lightning is about to restore, with those of this command's.

        Lightning restores as many as there are in the file, and none where there is none.
        """
        require_fitting_values([None], self._schedule_before, "the state of schedules", source)
        (saved,) = self._schedule_before
        known = saved.keys() if isinstance(saved, dict) else ()
        own = scheduler.state_dict().items()
        numbers = {
            name: value for name, value in own if name in _STEPS or (name in known and isinstance(value, int | float))
        }
        require_fitting_values(numbers, saved, "the schedule", source)

    def _require_fitting_state(self, optimizer: Optimizer, model: LightningModule) -> None:
        """Compares the optimizer's state, which Lightning is about to restore, with the parameters."""
        states, self._state_before = self._state_before, None  # which would keep memory for nothing
        if states is not None:
            names = {parameter: name for name, parameter in model.named_parameters()}
            state = states[0] if isinstance(states, list) and len(states) == 1 else None
            require_fitting_state(optimizer, state, names, model.trainer.ckpt_path)


_STEPS = ("last_epoch", "_step_count")  # what every schedule counts
