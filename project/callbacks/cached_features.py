"""Training the head alone on features that a frozen backbone computes once for each image."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from project.engine.errors import UserError, listed
from project.engine.run.progress import Progress, note
from project.model.networks import head
from project.model.test_time import exact_logits


class CachedFeatures(Callback):
    """Computes the features of each training and validation image once, so that an epoch of the head takes a second.

    While it trains, the model's ``forward`` is its head. Features stay in memory on the model's device, 4 bytes each; a
    resumed run computes them again. It needs ``--model.freeze backbone`` and images that no augmentation changes.
    """

    def __init__(self) -> None:
        self._features: dict[str, Tensor] = {}
        self._batch = torch.empty(0)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Requests labels and indices alone from the data module, and refuses what would change features in training."""
        if stage != "fit":
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        if trainer.world_size > 1 or not hasattr(data, "serve_indices"):
            raise UserError(
                "CachedFeatures needs one of our data modules and one device; add --trainer.devices 1"
            )
        if random := data.augmentation():
            raise UserError(
                f"CachedFeatures: each image must be the same in every epoch, but {listed(random)} would change it; switch"
                " it off, as by --data.crop_scale null --data.flip false"
            )
        of_head = {parameter for layer in _heads(pl_module) for parameter in layer.parameters()}
        if any(
            parameter.requires_grad for parameter in {*pl_module.network.parameters()} - of_head
        ):
            raise UserError(
                "CachedFeatures needs --model.freeze backbone: else features change in training"
            )
        data.serve_indices(("train", "val"))  # test is measured once, as it is

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Computes the features, with a checkpoint's weights where a run is resumed."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        note("computing the features of each image, once for all epochs")
        progress = Progress(len(data.splits["train"]) + len(data.splits["val"]))
        pl_module.eval()
        for split in ("train", "val"):
            self._features[split] = self._compute(pl_module, data.whole_split(split), progress)
        pl_module.train()
        progress.close()
        note(f"computed the features of {progress.summary()}")
        (layer,) = _heads(pl_module)

        def forward(images: Tensor) -> Tensor:
            with torch.autocast(
                images.device.type, enabled=False
            ):  # as in evaluation, for the head is small
                logits: Tensor = layer(torch.cat([self._batch] * (len(images) // len(self._batch))))
            return logits

        pl_module.forward = forward

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Looks up the features of a training batch."""
        self._batch = self._features["train"][batch.indices % len(self._features["train"])]

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, *_: Any
    ) -> None:
        """Looks up the features of a validation batch."""
        if self._features:  # there are none outside of training
            self._batch = self._features["val"][batch.indices % len(self._features["val"])]

    def teardown(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Gives the model its own ``forward`` back."""
        self._features = {}
        vars(pl_module).pop("forward", None)

    on_exception = teardown

    def _compute(self, model: Any, batches: Any, progress: Progress) -> Tensor:
        found: list[Tensor] = []
        layer = _heads(model)[0]
        with (
            torch.no_grad(),
            layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])),
        ):
            for batch in batches:
                if bool((batch.labels < 0).any()):
                    raise UserError("CachedFeatures: an image cannot be read any more; start again")
                batch = model.trainer.strategy.batch_to_device(
                    batch, model.device
                )  # by the data module's hooks
                logits = exact_logits(model, batch.images)
                found[-1:] = [
                    features[: len(logits)] for features in found[-1:]
                ]  # where one image was computed as two
                progress.advance(len(logits))
        with torch.no_grad():
            again = layer(found[-1]) if found else logits[:0]
        if again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"CachedFeatures: in {model.arch}, more than the head comes after the features; leave the callback out"
            )
        return torch.cat(found)


def _heads(model: Any) -> list[nn.Module]:
    return list(head(model.network, len(model.class_names)).values())
