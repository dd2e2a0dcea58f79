"""Training the head on features that the backbone computes once for each image: alone, or before all layers train."""

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

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
            raise UserError("CachedFeatures needs one of our data modules and one device; add --trainer.devices 1")
        if random := data.augmentation():
            raise UserError(
                f"CachedFeatures: each image must be the same in every epoch, but {listed(random)} would change it; switch"
                " it off, as by --data.crop_scale null --data.flip false"
            )
        of_head = {parameter for layer in _heads(pl_module) for parameter in layer.parameters()}
        if any(parameter.requires_grad for parameter in {*pl_module.network.parameters()} - of_head):
            raise UserError("CachedFeatures needs --model.freeze backbone: else features change in training")
        data.serve_indices(("train", "val"))  # test is measured once, as it is

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Computes the features, with a checkpoint's weights where a run is resumed."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        note("computing the features of each image, once for all epochs")
        progress = Progress(len(data.splits["train"]) + len(data.splits["val"]))
        pl_module.eval()
        for split in ("train", "val"):
            self._features[split] = image_features(pl_module, data.whole_split(split), progress)
        pl_module.train()
        progress.close()
        note(f"computed the features of {progress.summary()}")
        (layer,) = _heads(pl_module)

        def forward(images: Tensor) -> Tensor:
            with torch.autocast(images.device.type, enabled=False):  # as in evaluation, for the head is small
                logits: Tensor = layer(torch.cat([self._batch] * (len(images) // len(self._batch))))
            return logits

        pl_module.forward = forward

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Looks up the features of a training batch."""
        self._batch = self._features["train"][batch.indices % len(self._features["train"])]

    def on_validation_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, *_: Any) -> None:
        """Looks up the features of a validation batch."""
        if self._features:  # there are none outside of training
            self._batch = self._features["val"][batch.indices % len(self._features["val"])]

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Gives the model its own ``forward`` back."""
        self._features = {}
        vars(pl_module).pop("forward", None)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Does the same."""
        self.teardown(trainer, pl_module, "fit")


class HeadFirst(Callback):
    """Fits the head before the first step, so that training all layers distorts pretrained features less (LP-FT).

    Linear probing, then fine-tuning (Kumar et al., 2022, https://arxiv.org/abs/2202.10054): logistic regression on the
    features of each training image, not augmented. A resumed run has its result in the checkpoint.

    Args:
        strength: Of the fit; the smaller, the smaller the weights, as ``C`` of scikit-learn's ``LogisticRegression``.
    """

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Fits the head in the first process, and gives it to all."""
        if trainer.ckpt_path is not None:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        layer = _heads(pl_module)[0]
        weights = [parameter.detach() for parameter in layer.parameters()]
        if trainer.is_global_zero:
            note("fitting the head on the features of each training image")
            data.serve_indices(("train",))  # by which its images are not augmented
            pl_module.eval()
            features = image_features(pl_module, data.whole_split("train"), Progress(len(data.splits["train"])))
            pl_module.train()
            data.serve_indices(())
            labels = data.splits["train"].labels.cpu()
            found = logistic_regression(features.flatten(1).cpu().double(), labels, len(weights[0]), self.strength)
            weights = [value.view_as(parameter) for value, parameter in zip(found, weights, strict=True)]
        for parameter, value in zip(layer.parameters(), trainer.strategy.broadcast(weights), strict=True):
            parameter.data.copy_(value)


def logistic_regression(features: Tensor, labels: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Minimises cross entropy plus the squared weights, as scikit-learn does: weights (classes, features) and biases."""
    weights, biases = (
        features.new_zeros(*size, requires_grad=True) for size in ((classes, features.shape[1]), (classes,))
    )
    optimizer = torch.optim.LBFGS([weights, biases], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = weights.square().sum() / (2 * strength * len(labels))
        found = F.cross_entropy(F.linear(features, weights, biases), labels) + penalty
        found.backward()  # type: ignore[no-untyped-call]
        return found

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach(), biases.detach()


def image_features(model: Any, batches: Any, progress: Progress) -> Tensor:
    """Computes the input of the head for each image of some batches, float (N, features)."""
    found: list[Tensor] = []
    layer = _heads(model)[0]
    with torch.no_grad(), layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])):
        for batch in batches:
            batch = model.trainer.strategy.batch_to_device(batch, model.device)  # by the data module's hooks
            logits = exact_logits(model, batch.images)
            found[-1:] = [features[: len(logits)] for features in found[-1:]]  # where one image was computed as two
            progress.advance(len(logits))
    with torch.no_grad():
        again = layer(found[-1]) if found else logits[:0]
    if again.shape != logits.shape or not torch.allclose(again, logits, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"in {model.arch}, more than the head comes after the features; leave CachedFeatures and HeadFirst out"
        )
    return torch.cat(found)


def _heads(model: Any) -> list[nn.Module]:
    return list(head(model.network, len(model.class_names)).values())
