"""Features of a frozen backbone, computed once: what training the head alone needs of each image."""

from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from project.engine.errors import UserError, listed, printable
from project.engine.run.progress import Progress, note
from project.model.networks import head
from project.model.test_time import exact_logits

_OPTION = "--model.cache_features"
_SPLITS = ("train", "val")  # test is measured once, as it is


class FeatureCache:
    """Keeps the head's input for each training and validation image in memory, float (images, features).

    It lives on the model's device, is no part of a checkpoint, and a resumed run computes it again.

    Args:
        arch: The network's name, for errors.
        frozen_backbone: Whether all but the head stays as it is.

    Raises:
        UserError: It does not.
    """

    def __init__(self, arch: str, frozen_backbone: bool) -> None:
        if not frozen_backbone:
            raise UserError(f"{_OPTION} needs --model.freeze_backbone true: else features change in training")
        self._arch = arch
        self._features: dict[str, Tensor] = {}

    def announce(self, trainer: Trainer) -> None:
        """Asks the data module for labels and indices alone, in this stage.

        Args:
            trainer: About to build its loaders.

        Raises:
            UserError: There are several processes, or images change from epoch to epoch.
        """
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        if trainer.world_size > 1:
            raise UserError(
                f"{_OPTION} takes one device, on which training the head takes seconds; add --trainer.devices 1"
            )
        if not hasattr(data, "serve_indices"):
            raise UserError(f"{_OPTION} needs one of the project's data modules, which number their images")
        if random := data.augmentation():
            raise UserError(
                f"{_OPTION}: each image must be the same in every epoch, but {listed(random)} would change it; switch off"
                " what changes images, as by --data.crop_scale null --data.flip false"
            )
        data.serve_indices(_SPLITS)

    def fill(self, model: Any) -> None:
        """Computes the features with the weights that the model has now, and says how far that is.

        Args:
            model: An ``ImageClassifier`` on its device, with its trainer.

        Raises:
            UserError: The head is not the network's last layer, or an image cannot be read.
        """
        mode, data = model.training, model.trainer.datamodule
        note("computing the features of each image, once for all epochs")
        progress = Progress(sum(len(data.splits[split]) for split in _SPLITS))
        model.eval()
        try:
            self._features = {split: self._of(model, data.whole_split(split), progress) for split in _SPLITS}
        finally:
            progress.close()
        model.train(mode)
        note(f"computed the features of {progress.summary()}")

    def has(self, batch: Any) -> bool:
        """Whether the batch is one that the data module was asked for: of labels and indices alone."""
        return bool(batch.images.shape[1:] == (0,))

    def logits(self, model: Any, split: str, batch: Any) -> Tensor:
        """The head's output, in the precision of evaluation, as the head is small.

        Args:
            model: Whose head it is.
            split: ``train`` or ``val``.
            batch: With ``indices``, int64 (N,), see ``project.engine.loading.batch.ImageBatch``.

        Returns:
            float (N, classes).
        """
        features = self._features[split]
        with torch.autocast(model.device.type, enabled=False):
            logits: Tensor = self._head(model)(features[batch.indices % len(features)])
        return logits

    def _of(self, model: Any, batches: Any, progress: Progress) -> Tensor:
        found: list[Tensor] = []
        layer = self._head(model)
        with torch.no_grad(), layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])):
            for batch in batches:
                if bool((batch.labels < 0).any()):
                    raise UserError(f"{_OPTION}: an image cannot be read any more; start again")
                logits = exact_logits(model, batch.images.to(model.device))
                found[-1] = found[-1][: len(logits)]  # where one image was computed as two
                progress.advance(len(logits))
        with torch.no_grad():
            again = layer(found[-1])
        if again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"{_OPTION}: in {printable(self._arch)}, more than the head comes after the features; leave it out"
            )
        return torch.cat(found)

    def _head(self, model: Any) -> nn.Module:
        network = cast(LightningModule, model).network
        layers = list(head(cast(nn.Module, network), len(model.class_names)).values())
        if len(layers) != 1:
            raise UserError(f"{_OPTION}: {printable(self._arch)} has {len(layers)} heads; leave it out")
        return layers[0]
