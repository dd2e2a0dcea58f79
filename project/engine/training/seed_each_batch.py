"""Makes the randomness of a step a function of where it is, not of what came before."""

import functools
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..randomness import Purpose, derived_seed, seed_generators


class SeedEachBatch(Callback):
    """Seeds torch's generators, Python's and NumPy's for each training batch by (seed, epoch, batch, process).

    That is done before the batch is transferred to the device: whatever a hook draws that changes the batch there, and
    whatever the step draws, such as dropout, is the same after a resume. Lightning calls no callback at that point, but
    ``on_before_batch_transfer`` of the data module or the model, so that is wrapped while training lasts; a subclass may
    override it and need not call the one that it overrides. Evaluation is seeded once, by (seed, process), as it always
    runs as a whole: hooks that draw there show each validation the same.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._wrapped: list[Any] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wraps the hook of the data module and of the model, of which Lightning calls one."""
        data = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        self._wrapped = [owner for owner in (data, pl_module) if owner is not None]
        for owner in self._wrapped:
            owner.on_before_batch_transfer = self._seeding(owner.on_before_batch_transfer, trainer)

    def _seeding(self, hook: Callable[..., Any], trainer: Trainer) -> Callable[..., Any]:
        @functools.wraps(hook)  # by which Lightning finds out whether a subclass has overridden it
        def seed_before(batch: Any, dataloader_idx: int) -> Any:
            if trainer.training:
                # batches that were transferred before
                done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
                self._seed(trainer, Purpose.STEP, trainer.current_epoch, done)
            return hook(batch, dataloader_idx)

        return seed_before

    def _seed(self, trainer: Trainer, purpose: Purpose, *place: int) -> None:
        seed = derived_seed(purpose, self.seed, *place, trainer.global_rank)
        seed_generators(seed, trainer.strategy.root_device)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seeds the generators."""
        self._seed(trainer, Purpose.EVALUATION)

    on_test_epoch_start = on_validation_epoch_start

    def on_train_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Leaves the hooks as they were."""
        while self._wrapped:
            del self._wrapped.pop().on_before_batch_transfer

    on_exception = on_train_end
