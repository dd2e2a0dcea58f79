"""A linear probe by scikit-learn: one logistic regression an epoch, each with a weaker penalty.

pip install scikit-learn
python -m project.fit --config configs/probe.yaml --data FOLDER

To compare with random weights, take those of a run without an epoch:

python -m project.fit --data FOLDER --model.arch resnet18 --trainer.max_epochs 0 --name random
python -m project.fit --config configs/probe.yaml --data FOLDER \
    --model.weights runs/random/checkpoints/best.ckpt
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from lightkeeper.exact import UserError, note
from lightkeeper.images import ArrayDataset
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.optim import SGD

from examples.recipes.cached_features import CachedFeatures, open_as_classifier

_MOST_ITERATIONS = 500
_NEIGHBOURS = (5, 10, 20, 50, 100, 200)
_TEMPERATURES = (0.03, 0.07, 0.2, 1.0)


class Probe(CachedFeatures):
    """Fits the head to features by logistic regression, and chooses its penalty on validation.

    Epoch ``e``, from 0, has scikit-learn's ``C = 10 ** (e / 4 - 4)``, of centred features with a
    mean square of 1. An epoch begins from the head of the one before. ``best.ckpt`` is the best of
    them by ``--monitor``, as in any run. ``knn_accuracy`` beside it is that of weighted nearest
    neighbours (Wu et al., 2018, section 3.4, https://arxiv.org/abs/1805.01978), whose number and
    temperature validation chooses, too; as no head computes them, no checkpoint holds them.

    ``loss``, ``optimizer`` and ``lr_scheduler`` decide nothing.
    """

    _neighbours: tuple[int, float] | None = None
    _knn: dict[str, float]

    def setup(self, stage: str) -> None:
        """Checks that the whole training set is fitted once, in one process."""
        super().setup(stage)
        self._knn = {}
        if stage != "fit":
            return
        self.automatic_optimization = False
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        if self.trainer.world_size > 1:
            raise UserError("Probe fits in one process; add --trainer.devices 1")
        if data.class_balance:
            raise UserError("Probe fits each image once; use --data.class_balance 0")
        present = {*data.splits["train"].labels.tolist()}
        if absent := [n for i, n in enumerate(self.class_names) if i not in present]:
            raise UserError(f"Probe needs training images of each class, got none of {absent[0]}")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns an optimizer that counts steps, as scikit-learn moves the weights."""
        return SGD(self.network_head.parameters(), lr=0.0)

    def on_fit_start(self) -> None:
        """Computes the features, and chooses the nearest neighbours."""
        super().on_fit_start()
        train, val = self._split("train"), self._split("val")
        # kept, as the test set is served with images
        self._index = NearestNeighbors(metric="cosine").fit(train.images.numpy())
        self._train_labels = train.labels
        grid = [*product(_NEIGHBOURS, _TEMPERATURES)]
        right = [votes.argmax(1) == val.labels for votes in self._votes(val.images, grid)]
        accuracy, best = max((rights.double().mean().item(), -i) for i, rights in enumerate(right))
        self._neighbours, self._knn["val"] = grid[-best], accuracy
        count, temperature = self._neighbours
        note(
            f"validation accuracy of {count} neighbours, temperature {temperature}: {accuracy:.2%}"
        )

    @property
    def strength(self) -> float:
        """The ``C`` of this epoch."""
        return float(10 ** (self.current_epoch / 4 - 4))

    def on_train_epoch_start(self) -> None:
        """Fits the head to all training features, with the penalty of this epoch."""
        data = self._split("train")
        head = self.network_head
        weight, bias = fit_head(data.images, data.labels, head, self.strength)
        head.load_state_dict({"weight": weight.view_as(head.weight), "bias": bias})

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Updates the metrics, and counts a step."""
        loss = super().training_step(batch, batch_idx)
        # in each step, so that a run that resumes within an epoch has it, too
        self.log("train/C", self.strength, on_step=False, on_epoch=True, prog_bar=True)
        optimizer: Any = self.optimizers()
        optimizer.step()
        return loss

    def on_validation_epoch_end(self) -> None:
        """Adds the nearest neighbours' accuracy to the results."""
        super().on_validation_epoch_end()
        self._add_knn("val")

    def on_test_epoch_start(self) -> None:
        """Forgets the images of a test that was stopped."""
        super().on_test_epoch_start()
        self._right: list[Tensor] = []

    def test_step(self, batch: Sequence[Tensor], batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Updates the metrics, and compares the features with the neighbours'."""
        inputs: list[Tensor] = []
        hook = self.network_head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with hook, torch.compiler.set_stance("force_eager"):  # a compiled network runs no hook
            logits = super().test_step(batch, batch_idx, dataloader_idx)
        if self._neighbours:
            features = inputs[0][: len(logits)].float().cpu()  # of the first view
            votes = self._votes(features, [self._neighbours])[0]
            self._right.append(votes.argmax(1) == batch[1].cpu())
        return logits

    def on_test_epoch_end(self) -> None:
        """Adds the nearest neighbours' accuracy to the results."""
        super().on_test_epoch_end()
        if self._right:
            self._knn["test"] = torch.cat(self._right).double().mean().item()
        self._add_knn("test")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Names the class that opens the checkpoint."""
        super().on_save_checkpoint(checkpoint)
        open_as_classifier(checkpoint)

    def _split(self, split: str) -> ArrayDataset:
        features: ArrayDataset = self.trainer.datamodule.splits[split]  # type: ignore[attr-defined]
        return features

    def _add_knn(self, split: str) -> None:
        if split in self._knn and split in self.results:
            self.results[split]["knn_accuracy"] = self._knn[split]

    def _votes(self, features: Tensor, grid: Sequence[tuple[int, float]]) -> list[Tensor]:
        """Returns each class's votes, (N, classes), for pairs of a number and a temperature."""
        most = min(max(count for count, _ in grid), len(self._train_labels))
        distances, indices = self._index.kneighbors(features.numpy(), most)
        similarities = torch.from_numpy(1 - distances)
        labels = self._train_labels[torch.from_numpy(indices)]
        empty = torch.zeros(len(features), len(self.class_names), dtype=similarities.dtype)
        return [
            empty.scatter_add(1, labels[:, :count], (similarities / heat).exp()[:, :count])
            for count, heat in grid
        ]


def fit_head(
    features: Tensor, labels: Tensor, head: nn.Module, strength: float
) -> tuple[Tensor, Tensor]:
    """Fits logistic regression, from a head's weights on.

    Args:
        features: The images' features, float32 (N, features).
        labels: Their classes, int64 (N,); each class has an image.
        head: A layer with a weight for each class, and a bias.
        strength: scikit-learn's ``C``, the inverse of the penalty's strength.

    Returns:
        The weights, (classes, features), and the biases, (classes,), of features as they are.
    """
    mean = features.mean(0)
    scale = (features - mean).square().mean().sqrt()
    start = head.state_dict()
    weight = start["weight"].cpu().flatten(1)
    bias = start["bias"].cpu() + weight @ mean
    if len(weight) == 2:  # scikit-learn has one row then, of the second class's log odds
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    model = LogisticRegression(C=strength, max_iter=_MOST_ITERATIONS, warm_start=True)
    model.coef_, model.intercept_ = (weight * scale).numpy(), bias.numpy()
    model.fit(((features - mean) / scale).numpy(), labels.numpy())
    weight, bias = (torch.from_numpy(part).double() for part in (model.coef_, model.intercept_))
    weight = weight / scale
    if len(weight) == 1:
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return weight, bias - weight @ mean.double()
