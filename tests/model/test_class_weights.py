"""Weights of the classes in the training loss: against scikit-learn, and on any number of devices."""

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model.class_weights import ClassWeights, balanced_weights
from tests.conftest import SLIM, TINY, evaluate, fit
from tests.model.test_classifier import Batch, Memory, classifier, linear, trainer
from tests.small import load

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


class Counted(Memory):
    """One class has most images; says how many each has."""

    def __init__(self, **options):
        super().__init__(**options)
        self.labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2] * (len(self.labels) // 8))

    def class_counts(self):
        return self.labels.bincount().tolist()


class Losses(Callback):
    """The loss of every step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(float(outputs["loss"]))


def trained(data, **options):
    """A model that has taken one step with a learning rate of zero, and its loss."""
    model = linear(optimizer=lambda params: torch.optim.SGD(params, lr=0.0), **options)
    losses = Losses()
    trainer(max_steps=1, callbacks=[losses], limit_val_batches=0, num_sanity_val_steps=0).fit(model, datamodule=data)
    return model, losses.seen[0]


@pytest.mark.parametrize("counts", [[5, 2, 1], [1, 1, 1], [1000, 3, 17, 1]])
def test_balanced_weights_are_scikit_learns_and_have_the_mean_one(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    found = balanced_weights(counts, [str(label) for label in range(len(counts))])
    assert found == pytest.approx(compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels))
    assert np.mean(np.array(found)[labels]) == pytest.approx(1)


def test_training_minimises_the_weighted_mean_and_validation_measures_as_ever():
    data = Counted(batch_size=32)
    model, loss = trained(data, class_weights="balanced", label_smoothing=0.0)
    weights = compute_class_weight("balanced", classes=np.arange(3), y=data.labels.numpy())
    (batch,) = data.batches()
    with torch.no_grad():
        logits = model(batch.images)
    costs = F.cross_entropy(logits.double(), batch.labels, reduction="none")
    assert loss == pytest.approx(float((torch.tensor(weights)[batch.labels] * costs).mean()), rel=1e-5)
    trainer().validate(model, datamodule=data, verbose=False)
    assert model.results["val"].loss == pytest.approx(float(costs.mean()), rel=1e-5)


def test_each_training_is_balanced_by_its_own_images():
    data, other = Counted(batch_size=32), Counted(batch_size=32)
    other.labels = 2 - other.labels
    model, _ = trained(data, class_weights="balanced")
    trainer(max_steps=1, limit_val_batches=0).fit(model, datamodule=other)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=other.labels.numpy())
    assert model.class_weights.summary()["class_weights"] == pytest.approx(expected)


@pytest.mark.parametrize("loss", [None, nn.MultiMarginLoss(reduction="none")])
def test_weights_go_with_any_loss_and_soft_labels_get_their_mean(loss):
    model, (batch,) = linear(loss=loss, class_weights=[1.0, 0.0, 4.0]), Memory(batch_size=32).batches()
    with torch.no_grad():
        losses = model.loss(model(batch.images), batch.labels)
        expected = torch.tensor([1.0, 0.0, 4.0])[batch.labels] * losses
        assert float(model.training_step(batch, 0)) == pytest.approx(float(expected.mean()))
    soft = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    found = ClassWeights([1.0, 0.0, 4.0], 3)(torch.tensor([2.0, 7.0]), soft)
    assert found.tolist() == pytest.approx([2 * 1.5, 0.0])


@pytest.mark.parametrize("parts", [2, 4])
def test_the_mean_over_devices_is_that_of_the_whole_batch(parts):
    weights, data = ClassWeights([0.5, 1.0, 3.0], 3), Counted(batch_size=32)
    (batch,) = data.batches()
    losses = torch.rand(32, generator=torch.Generator().manual_seed(0))
    means = [weights(*pair).mean() for pair in zip(losses.chunk(parts), batch.labels.chunk(parts), strict=True)]
    assert float(torch.stack(means).mean()) == pytest.approx(float(weights(losses, batch.labels).mean()))


def test_weights_are_no_part_of_the_networks_state():
    weighted, plain = classifier(class_weights=[1, 2, 3]), classifier()
    assert weighted.state_dict().keys() == plain.state_dict().keys()


def test_a_run_says_its_weights_in_the_checkpoint_which_evaluates_without_them(workplace):
    run = fit(*TINY, *SLIM, "--model.class_weights=balanced", "--name=run").run.path
    content = load(run / "checkpoints" / "best.ckpt")
    assert content[ABOUT]["loss"]["class_weights"] == pytest.approx([1.0] * 8)  # drawn flowers are balanced
    evaluate(f"--ckpt_path={run / 'checkpoints' / 'best.ckpt'}")


@pytest.mark.parametrize("given", [[1, 2], [1, 2, -1], [0, 0, 0], [1, 2, float("nan")], [1, 2, float("inf")]])
def test_other_weights_are_refused(given):
    with pytest.raises(UserError, match=r"--model\.class_weights must be 'balanced' or 3 numbers"):
        classifier(class_weights=given)


def test_what_cannot_be_balanced_is_refused():
    with pytest.raises(UserError, match="no weight for the class b, which has no training image"):
        balanced_weights([3, 0], ["a", "b"])
    with pytest.raises(UserError, match=r"class_counts\(\) of a data module, which Memory does not have"):
        trained(Memory(), class_weights="balanced")
    batch: Any = Batch(torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"computed when trainer\.fit starts"):
        linear(class_weights="balanced").training_step(batch, 0)
