"""Lets every checkpoint explain itself."""

from typing import Any

from lightning.pytorch import Callback, Trainer

from project.run.checkpoint import ABOUT, About, versions


class AboutInCheckpoint(Callback):
    """Adds what :class:`project.run.checkpoint.About` lists to each checkpoint."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Adds them as plain data, so that the file loads with ``weights_only=True``."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        rates = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("train/")}
        measured = {split: metrics.as_dict() for split, metrics in pl_module.results.items()}
        checkpoint[ABOUT] = About(
            class_names=pl_module.class_names,
            preprocessing=pl_module.preprocessing,
            arch=pl_module.arch,
            stem=pl_module.stem,
            data={"class_path": type(data).__name__, "init_args": dict(data.hparams)},
            split_seed=data.split_seed,
            versions=versions(),
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            metrics={**rates, **measured},
        )
