"""The training loss: cross entropy with weights of the classes against scikit-learn, and any loss of the user's."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn
from torch.nn import functional as F

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from project.model.losses import CrossEntropy, balanced_weights
from tests.conftest import SLIM, TINY, evaluate, fit
from tests.model.test_classifier import Memory, classifier, linear, logits_of, trainer
from tests.small import load

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


class Counted(Memory):
    """One class has most images; says how many each has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2] * (len(self.labels) // 8))

    def class_counts(self) -> list[int]:
        return self.labels.bincount().tolist()


class Losses(Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(float(outputs["loss"]))


def trained(data: Any, loss: Any) -> tuple[Any, float]:
    """A model that has taken one step with a learning rate of zero, and its loss."""
    model, losses = linear(optimizer=lambda params: torch.optim.SGD(params, lr=0.0), loss=loss), Losses()
    trainer(max_steps=1, callbacks=[losses], limit_val_batches=0, num_sanity_val_steps=0).fit(model, datamodule=data)
    return model, losses.seen[0]


def test_labels_may_be_soft_and_are_smoothed():
    generator = torch.Generator().manual_seed(0)
    logits, soft = torch.randn(16, 3, generator=generator), torch.rand(16, 3, generator=generator).softmax(1)
    expected = -((0.8 * soft.double() + 0.2 / 3) * logits.double().log_softmax(1)).sum(1)
    torch.testing.assert_close(CrossEntropy(0.2)(logits, soft).double(), expected, rtol=1e-5, atol=1e-6)
    weighted = CrossEntropy(0.2, [1.0, 0.0, 4.0])(logits, soft).double()
    factor = soft.double() @ torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(weighted, factor * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("counts", [[5, 2, 1], [1, 1, 1], [1000, 3, 17, 1]])
def test_balanced_weights_are_scikit_learns_and_have_the_mean_one(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    found = balanced_weights(counts, [str(label) for label in range(len(counts))])
    assert found == pytest.approx(compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels))
    assert np.mean(np.array(found)[labels]) == pytest.approx(1)


def test_training_minimises_the_weighted_mean_and_validation_measures_as_ever():
    data = Counted(batch_size=32)
    model, loss = trained(data, CrossEntropy(0.0, "balanced"))
    weights = compute_class_weight("balanced", classes=np.arange(3), y=data.labels.numpy())
    (batch,) = data.batches()
    with torch.no_grad():
        logits = model(batch.images)
    costs = F.cross_entropy(logits.double(), batch.labels, reduction="none")
    assert loss == pytest.approx(float((torch.tensor(weights)[batch.labels] * costs).mean()), rel=1e-5)
    trainer().validate(model, datamodule=data, verbose=False)
    assert model.results["val"].loss == pytest.approx(float(costs.mean()), rel=1e-5)
    other = Counted(batch_size=32)  # each training is balanced by its own images
    other.labels = 2 - other.labels
    trainer(max_steps=1, limit_val_batches=0).fit(model, datamodule=other)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=other.labels.numpy())
    ones = model.criterion(torch.zeros(3, 3), torch.arange(3)) / np.log(3)
    assert ones.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("parts", [2, 4])
def test_the_mean_over_devices_is_that_of_the_whole_batch(parts):
    loss, (batch,) = CrossEntropy(0.1, [0.5, 1.0, 3.0]), Counted(batch_size=32).batches()
    logits = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    means = [loss(*pair).mean() for pair in zip(logits.chunk(parts), batch.labels.chunk(parts), strict=True)]
    assert float(torch.stack(means).mean()) == pytest.approx(float(loss(logits, batch.labels).mean()))


@pytest.mark.parametrize("given", [[1, 2], [1, 2, -1], [0, 0, 0], [1, 2, float("nan")], [1, 2, float("inf")]])
def test_weights_that_do_not_fit_the_classes_are_refused(given):
    with pytest.raises(UserError, match=r"--model\.loss\.class_weights must be 'balanced' or 3 numbers"):
        CrossEntropy(class_weights=given).prepare(None, ["a", "b", "c"])


def test_what_cannot_be_balanced_is_refused():
    balanced = CrossEntropy(class_weights="balanced")
    with pytest.raises(UserError, match="no weight for the class b, which has no training image"):
        balanced_weights([3, 0], ["a", "b"])
    with pytest.raises(UserError, match=r"needs a data module with class_counts\(\)"):
        balanced.prepare(None, ["a", "b"])
    with pytest.raises(UserError, match=r"computed when trainer\.fit starts"):
        balanced(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"--model\.loss\.label_smoothing must be from 0 to 1"):
        CrossEntropy(1.5)
    assert not CrossEntropy(class_weights=[1, 2, 3]).state_dict()  # which an average would average


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.3, weight=torch.tensor([1.0, 2.0, 4.0]), reduction="none"),
        nn.MultiMarginLoss(reduction="none"),
        lambda logits, labels: F.cross_entropy(logits, labels, reduction="none") ** 2,
    ],
    ids=["CrossEntropyLoss", "MultiMarginLoss", "function"],
)
def test_training_minimises_any_loss_that_is_given_and_evaluation_measures_cross_entropy(loss):
    model, data = classifier(loss=loss), Memory()
    value = model.train().training_step(data.batches()[0], 0)
    logits = classifier().double().train()(data.images[:16])
    expected = (loss.double() if isinstance(loss, nn.Module) else loss)(logits, data.labels[:16])
    assert value.item() == pytest.approx(expected.mean().item(), rel=1e-4)
    trainer().test(model, datamodule=data, verbose=False)
    measured = log_loss(data.labels, logits_of(model, data.images).double().softmax(1))
    assert model.results["test"].loss == pytest.approx(measured, abs=1e-5)


class MeanOfBatch(ImageClassifier):
    """Makes the mistake that a subclass may make."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits, labels).mean()


def test_a_mean_in_place_of_each_images_loss_is_refused():
    model = MeanOfBatch(["red", "green", "blue"], classifier().preprocessing)
    for wrong in (model, classifier(loss=nn.CrossEntropyLoss())):
        with pytest.raises(UserError, match=r"must return each image's loss, of shape \(16,\), got .* shape \(\)"):
            trainer(max_epochs=1).fit(wrong, datamodule=Memory())


SOURCE = '''
import torch
from torch import nn
from torch.nn import functional as F


class FocalLoss(nn.Module):
    """Focal loss with a weight for each class.

    Args:
        gamma: The exponent.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weights", torch.linspace(1, 2, 8))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none")
        return self.weights[labels] * (1 - torch.exp(-losses)) ** self.gamma * losses
'''


def test_a_run_with_a_loss_of_ones_own_resumes_and_its_checkpoint_needs_the_loss_no_more(workplace, monkeypatch):
    Path("own_losses.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    flags = [*TINY, *SLIM, "--model.loss=own_losses.FocalLoss", "--model.loss.gamma=1.5", "--name=own"]
    best = fit(*flags).run.path / "checkpoints" / "best.ckpt"
    assert load(best)[ABOUT]["loss"] == {"name": "FocalLoss", "gamma": 1.5}
    (best.parents[1] / "metrics.json").unlink()
    assert fit(*flags, "--trainer.max_epochs=2").trainer.global_step == 8
    del sys.modules["own_losses"]
    evaluate(str(best))
    loaded = ImageClassifier.load_from_checkpoint(best)
    assert "own_losses" not in sys.modules
    started = fit(*TINY, *SLIM, f"--model.weights={best}", "--trainer.fast_dev_run=true").model
    assert started.network.state_dict().keys() == loaded.network.state_dict().keys()
