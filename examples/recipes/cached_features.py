"""Training the head alone on features that a frozen backbone computes once for each image.

python -m project.fit --data FOLDER --data.flip false --data.crop_scale null \
    --model examples.recipes.cached_features.CachedFeatures \
    --model.weights DEFAULT --model.freeze backbone
"""

from collections.abc import Iterable
from typing import Any

import torch
from lightkeeper.exact import UserError, note
from lightkeeper.images import ArrayDataset, ImageBatch
from torch import Tensor

from project.model import ImageClassifier

_RANDOM = ("crop_scale", "train_transforms", "flip", "crop_padding", "cutout", "batch_transforms")
"""Options of ``--data`` that change training images at random."""


class CachedFeatures(ImageClassifier):
    """Computes each training and validation image's features once: an epoch then takes a second.

    The data module serves features in place of images, float32 in memory. Needs ``freeze`` to be
    ``backbone``, and images that no augmentation changes. Only training differs, so checkpoints
    are those of an ``ImageClassifier``, which opens them without ``--import``.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Returns logits, (N, classes); features, (N, features), go through the head alone."""
        if images.dim() != 2:
            return super().forward(images)
        with torch.autocast(images.device.type, enabled=False):  # as in evaluation
            logits: Tensor = self.network_head(
                images.to(next(self.network_head.parameters()).dtype)
            )
        return logits

    def setup(self, stage: str) -> None:
        """Checks that features stay the same in training, before loaders are built."""
        super().setup(stage)
        if stage != "fit":
            return
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if changes := [f"--data.{name}" for name in _RANDOM if getattr(data, name, None)]:
            raise UserError(
                "CachedFeatures: each image must be the same in every epoch, but"
                f" {', '.join(changes)} would change it; switch it off, for example by"
                " --data.crop_scale null --data.flip false"
            )
        trained = {value for value in self.network.parameters() if value.requires_grad}
        if not trained <= set(self.network_head.parameters()):
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
    def on_fit_start(self) -> None:
        """Computes the features, with a checkpoint's weights if a run is resumed."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        self.eval()
        features = data.splits
        data.splits = self._images
        for split in ("train", "val"):
            if self.trainer.is_global_zero:
                note(f"computing the features of {len(data.splits[split]):,} {split} images, once")
            features[split].images = self._compute_features(data.whole_split(split)).cpu()
        data.splits = features
        self.train()

    def on_fit_end(self) -> None:
        """Serves images again."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        data.splits = self._images

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names the class that opens the checkpoint, unless a subclass has more to it."""
        super().on_save_checkpoint(checkpoint)
        if type(self) is CachedFeatures:
            open_as_classifier(checkpoint)

    def _compute_features(self, batches: Iterable[ImageBatch]) -> Tensor:
        features: list[Tensor] = []
        for batch in batches:
            batch = self.trainer.strategy.batch_to_device(batch, self.device)
            features.append(self.logits_and_features(batch.images)[1].float())
        self._require_head_last(batch.images)
        return torch.cat(features)

    def _require_head_last(self, images: Tensor) -> None:
        """Checks that the model returns what its head returns, and nothing that comes after it."""
        outputs: list[Tensor] = []
        hook = self.network_head.register_forward_hook(lambda *call: outputs.append(call[2]))
        with hook, torch.compiler.set_stance("force_eager"):  # a compiled network runs no hook
            logits = self(images)
        if logits is not outputs[-1]:
            raise UserError(f"CachedFeatures: the head of {self.arch} is not its last layer")


def open_as_classifier(checkpoint: dict[str, Any]) -> None:
    """Makes a checkpoint one of an ``ImageClassifier``, which opens it without ``--import``."""
    for facts in (checkpoint, checkpoint.get("about", {})):
        facts["model"] = ImageClassifier.__name__
