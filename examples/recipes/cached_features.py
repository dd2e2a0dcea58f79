"""Training the head alone on features that a frozen backbone computes once for each image.

python -m project.fit --data FOLDER --data.flip false --data.crop_scale null \
    --model.weights DEFAULT --model.freeze backbone \
    --trainer.callbacks+=examples.recipes.cached_features.CachedFeatures
"""

from collections.abc import Iterable
from typing import Any

import torch
from lightkeeper.exact import UserError, note
from lightkeeper.images import ArrayDataset, ImageBatch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from project.model import ImageClassifier

_RANDOM = ("crop_scale", "train_transforms", "flip", "crop_padding", "cutout", "batch_transforms")
"""Options of ``--data`` that change training images at random."""


class CachedFeatures(Callback):
    """Computes each training and validation image's features once: an epoch then takes a second.

    The data module serves features in place of images, float32 in memory. Needs
    ``--model.freeze backbone`` and images that no augmentation changes.
    """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Checks that features stay the same in training, before loaders are built."""
        if stage != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if changes := [f"--data.{name}" for name in _RANDOM if getattr(data, name, None)]:
            raise UserError(
                "CachedFeatures: each image must be the same in every epoch, but"
                f" {', '.join(changes)} would change it; switch it off, for example by"
                " --data.crop_scale null --data.flip false"
            )
        trained = {value for value in pl_module.network.parameters() if value.requires_grad}
        if not trained <= set(pl_module.network_head.parameters()):
            raise UserError(
                "CachedFeatures needs --model.freeze backbone: else features change in training"
            )
        self._images = data.splits
        # empty, as loaders may be built before the features are known; the test set stays images
        features = {
            split: ArrayDataset(torch.empty(0), data.splits[split].labels, split)
            for split in ("train", "val")
        }
        data.splits = {**data.splits, **features}

    @torch.no_grad()
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Computes the features, with a checkpoint's weights if a run is resumed."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        pl_module.eval()
        features = data.splits
        data.splits = self._images
        for split in ("train", "val"):
            if trainer.is_global_zero:
                note(f"computing the features of {len(data.splits[split]):,} {split} images, once")
            features[split].images = _compute_features(pl_module, data.whole_split(split)).cpu()
        data.splits = features
        pl_module.train()

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Serves images again."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.splits = self._images


def _compute_features(model: ImageClassifier, batches: Iterable[ImageBatch]) -> Tensor:
    features: list[Tensor] = []
    for batch in batches:
        batch = model.trainer.strategy.batch_to_device(batch, model.device)
        features.append(model.logits_and_features(batch.images)[1].float())
    _require_head_last(model, batch.images)
    return torch.cat(features)


def _require_head_last(model: ImageClassifier, images: Tensor) -> None:
    """Checks that the model returns what its head returns, and nothing that comes after it."""
    outputs: list[Tensor] = []
    hook = model.network_head.register_forward_hook(lambda *call: outputs.append(call[2]))
    with hook, torch.compiler.set_stance("force_eager"):  # a compiled network runs no hook
        logits = model(images)
    if logits is not outputs[-1]:
        raise UserError(f"CachedFeatures: the head of {model.arch} is not its last layer")
