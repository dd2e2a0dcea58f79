"""Lets every checkpoint explain itself."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from project.checkpoint import ABOUT, About, versions


class AboutInCheckpoint(Callback):
    """Adds class names, preprocessing, architecture, split seed, versions and the figures of the moment to each checkpoint."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds them as plain data, so that the file loads with ``weights_only=True``."""
        rates = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("train/")}
        measured = {split: figures.as_dict() for split, figures in pl_module.figures.items()}
        checkpoint[ABOUT] = About(
            class_names=pl_module.class_names,
            preprocessing=pl_module.preprocessing,
            arch=pl_module.arch,
            stem=pl_module.stem,
            split_seed=getattr(trainer.datamodule, "split_seed", None),
            versions=versions(),
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            figures={**rates, **measured},
        )
