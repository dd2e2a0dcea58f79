"""What Lightning's finders search for before training, used as if the command had asked for it."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities.parsing import lightning_setattr

_FINDERS = (BatchSizeFinder, LearningRateFinder)


class Finders:
    """Lets ``LearningRateFinder`` and ``BatchSizeFinder`` decide on a run, and a resumed run keep their decision.

    They try steps before training and put everything back. Training then starts as if the command had given what they
    found: with an optimizer, a schedule and a plan of steps that are built anew. Lightning alone sets the learning rate
    of the first step, and a schedule would take the next from the rate before the search.

    Attributes:
        searching: Whether the steps that are taken now are tries.
    """

    def __init__(self) -> None:
        self.searching = False
        self._asked: tuple[type, ...] = ()
        self._batch_size: int | None = None

    def prepare(self, trainer: Trainer) -> None:
        """Looks what the command asks for, before a checkpoint is loaded."""
        self._asked, self.searching = tuple(type(finder) for finder in _finders(trainer)), False

    def begin(self, trainer: Trainer) -> None:
        """Knows from here on, as the optimizer is built, whether tries follow."""
        self.searching = bool(_finders(trainer))

    def conclude(self, model: Any) -> None:
        """Ends the search, so that the test does not search again, and leaves no trace of the tries.

        Args:
            model: An ``ImageClassifier`` with its trainer. After a search its optimizer is built anew.
        """
        trainer: Trainer = model.trainer
        searched, self.searching = self.searching, False
        if BatchSizeFinder in self._asked and searched:
            self._batch_size = trainer.datamodule.batch_size  # type: ignore[attr-defined]  # set by fit
        _remove_finders(trainer)
        if searched:
            trainer.fit_loop.restarting, trainer.ckpt_path = False, None  # of the file that the search put back
            model.results.clear()
            model.train_metrics.reset()
            trainer.strategy.setup_optimizers(trainer)

    def state(self, model: Any) -> dict[str, Any]:
        """What was found for a model, an ``ImageClassifier``, for a checkpoint."""
        return {"lr": model.lr, "batch_size": self._batch_size}

    def load(self, state: dict[str, Any], model: Any) -> None:
        """Takes over what was found before the run was resumed, where the command still asks for it.

        It is not searched for again. A search itself ends by loading what was there before it, which is ignored.

        Args:
            state: What :meth:`state` has returned, unchecked.
            model: An ``ImageClassifier`` with its trainer.
        """
        if self.searching:
            return
        _remove_finders(model.trainer)
        lr, batch_size = state.get("lr"), state.get("batch_size")
        if LearningRateFinder in self._asked and isinstance(lr, float):
            model.lr = lr
        if BatchSizeFinder in self._asked and isinstance(batch_size, int):
            self._batch_size = batch_size
            lightning_setattr(model, "batch_size", batch_size)


def _finders(trainer: Trainer) -> list[Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    return [callback for callback in callbacks if isinstance(callback, _FINDERS)]


def _remove_finders(trainer: Trainer) -> None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, _FINDERS)]
