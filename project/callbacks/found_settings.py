"""Says what Lightning's finders have found."""

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities import rank_zero_only

from project.analysis.plots import lr_find_figure
from project.engine.run.progress import note


class FoundSettings(Callback):
    """Prints what finders have found, as the options that repeat the run without a search, and draws ``lr_find.png``.

    Args:
        finders: The run's.
        base_batch_size: The batch size that ``--model.optimizer.lr`` is meant for; None takes the rate as it is.
    """

    def __init__(self, finders: Sequence[Callback], base_batch_size: int | None = None) -> None:
        self._finders, self._base_batch_size = finders, base_batch_size

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints and draws; in a resumed run, which has not searched, nothing."""
        batch_size: int = trainer.datamodule.batch_size  # type: ignore[attr-defined]  # set by fit
        for finder in self._finders if trainer.ckpt_path is None else ():
            if isinstance(finder, BatchSizeFinder):
                note(f"batch size found: --data.batch_size {batch_size}")
            elif isinstance(finder, LearningRateFinder) and finder.optimal_lr is not None:
                results, lr = finder.optimal_lr.results, finder.optimal_lr.suggestion()
                if lr is None:
                    note("no learning rate found, as there were too few steps; it stays as it was")
                    continue
                path = Path(trainer.default_root_dir) / "lr_find.png"
                lr_find_figure(results["lr"], results["loss"], lr).savefig(path)
                scale = batch_size * trainer.accumulate_grad_batches / (self._base_batch_size or 1)
                given = lr / scale if self._base_batch_size else lr
                note(f"learning rate found: --model.optimizer.lr {given!r}; see {path}")
