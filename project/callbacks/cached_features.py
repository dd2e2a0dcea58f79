"""Training the head alone on features that a frozen backbone computes once for each image."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from project.data.augmentation import AugmentedDataModule
from project.engine import ArrayDataset, ImageBatch, UserError, note
from project.model import ImageClassifier
from project.model.inference import exact_logits
from project.model.networks import head


class CachedFeatures(Callback):
    """Computes each training and validation image's features once: an epoch then takes a second.

    The data module serves them in place of images, from memory, 4 bytes a number. Needs
    ``--model.freeze backbone`` and images that no augmentation changes.
    """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Checks that features stay the same in training, before loaders are built."""
        if stage != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if trainer.world_size > 1 or not isinstance(data, AugmentedDataModule):
            raise UserError(
                "CachedFeatures needs one of our data modules and one device;"
                " add --trainer.devices 1"
            )
        if random := data.random_changes():
            raise UserError(
                "CachedFeatures: each image must be the same in every epoch, but"
                f" {', '.join(random)} would change it; switch it off, as by"
                " --data.crop_scale null --data.flip false"
            )
        (layer, *others) = head(pl_module.network, len(pl_module.class_names)).values()
        if others or not isinstance(layer, nn.Linear):
            raise UserError(f"CachedFeatures: {pl_module.arch} does not end in one linear layer")
        trained = {value for value in pl_module.network.parameters() if value.requires_grad}
        if not trained <= set(layer.parameters()):
            raise UserError(
                "CachedFeatures needs --model.freeze backbone: else features change in training"
            )
        self._images = data.splits
        # loaders may be built before the features are known; test is measured once, as it is
        nothing = torch.empty(0)
        features = {
            split: ArrayDataset(nothing, data.splits[split].labels, split)
            for split in ("train", "val")
        }
        data.splits = {**data.splits, **features}

    @torch.no_grad()
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Computes the features, with a checkpoint's weights if a run is resumed."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        pl_module.eval()
        served = data.splits
        data.splits = self._images
        for split in ("train", "val"):
            note(f"computing the features of {len(data.splits[split]):,} {split} images, once")
            served[split].images = _compute(pl_module, data.whole_split(split)).cpu()
        data.splits = served
        pl_module.train()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Serves images again."""
        data: AugmentedDataModule = trainer.datamodule  # type: ignore[attr-defined]
        data.splits = self._images


def _compute(model: ImageClassifier, batches: Iterable[ImageBatch]) -> Tensor:
    features: list[Tensor] = []
    with model.network_head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0])):
        for batch in batches:
            if (batch.labels < 0).any():
                raise UserError("CachedFeatures: an image cannot be read any more; start again")
            batch = model.trainer.strategy.batch_to_device(batch, model.device)
            exact_logits(model, batch.images)
            features[-1] = features[-1][: len(batch.images)]  # one image is computed as two
    _require_head_last(model, batch.images)
    return torch.cat(features)


def _require_head_last(model: ImageClassifier, images: Tensor) -> None:
    """Checks that logits are those of the head, with random weights: a new head's are all zero."""
    generator = torch.Generator().manual_seed(0)
    weights = {value: value.clone() for value in model.network_head.parameters()}
    for value in weights:
        value.copy_(torch.randn(value.shape, generator=generator))
    logits, features = model.logits_and_features(images)
    again = model(features)
    for value, before in weights.items():
        value.copy_(before)
    if not torch.allclose(again, logits.float(), rtol=1e-3, atol=1e-3 * float(again.abs().max())):
        raise UserError(
            f"CachedFeatures: in {model.arch}, more than the head comes after the features;"
            " leave the callback out"
        )
