"""The training loss: cross entropy with weights of the classes against scikit-learn, and any loss of the user's."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model.losses import CrossEntropy
from tests.conftest import SLIM, TINY, cases, evaluate, fit
from tests.model.test_classifier import Memory, classifier, linear, logits_of, trainer
from tests.small import load


class Counted(Memory):
    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(batch_size=32)
        self.labels = torch.tensor(numbers).repeat(len(self.labels) // 8)

    def class_counts(self) -> list[int]:
        return self.labels.bincount(minlength=3).tolist()


def test_labels_may_be_soft_and_are_smoothed():
    generator = torch.Generator().manual_seed(0)
    logits, soft = torch.randn(16, 3, generator=generator), torch.rand(16, 3, generator=generator).softmax(1)
    expected = -((0.8 * soft.double() + 0.2 / 3) * logits.double().log_softmax(1)).sum(1)
    torch.testing.assert_close(CrossEntropy(0.2)(logits, soft).double(), expected, rtol=1e-5, atol=1e-6)
    weighted = CrossEntropy(0.2, [1.0, 0.0, 4.0])(logits, soft).double()
    factor = soft.double() @ torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(weighted, factor * expected, rtol=1e-5, atol=1e-6)


def test_each_training_minimises_the_mean_weighted_by_its_own_images_and_validation_measures_as_ever():
    model = linear(optimizer=lambda params: torch.optim.SGD(params, lr=0.0), loss=CrossEntropy(0.0, "balanced"))
    for numbers in ([0, 0, 0, 0, 0, 1, 1, 2], [2, 2, 2, 2, 2, 1, 1, 0]):
        data, run = Counted(numbers), trainer(max_steps=1, num_sanity_val_steps=0)
        run.fit(model, datamodule=data)
        weights = torch.tensor(compute_class_weight("balanced", classes=np.arange(3), y=data.labels.numpy()))
        (batch,) = data.batches()
        costs = F.cross_entropy(logits_of(model, batch.images).double(), batch.labels, reduction="none")
        loss = model.train().training_step(batch, 0)
        assert loss.item() == pytest.approx(float((weights[batch.labels] * costs).mean()), rel=1e-5)
        assert model.results["val"].loss == pytest.approx(float(costs.mean()), rel=1e-5)


def test_weights_that_cannot_be_are_refused():
    for given in ([1.0, 2.0], [1.0, 2.0, -1.0], [0.0, 0.0, 0.0], [1.0, 2.0, float("nan")]):
        with pytest.raises(UserError, match=r"--model\.loss\.class_weights must be 'balanced' or 3 numbers"):
            CrossEntropy(class_weights=given).prepare(None, ["a", "b", "c"])
    balanced = CrossEntropy(class_weights="balanced")
    with pytest.raises(UserError, match="needs images of every class, got none of c"):
        balanced.prepare(Counted([0, 0, 0, 0, 0, 0, 1, 1]), ["a", "b", "c"])
    with pytest.raises(UserError, match=r"needs a data module with class_counts\(\)"):
        balanced.prepare(None, ["a", "b"])
    with pytest.raises(UserError, match=r"computed when trainer\.fit starts"):
        balanced(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"--model\.loss\.label_smoothing must be from 0 to 1"):
        CrossEntropy(1.5)
    assert not CrossEntropy(class_weights=[1, 2, 3]).state_dict()  # which an average would average


def test_training_minimises_any_loss_that_is_given():
    loss = nn.MultiMarginLoss(reduction="none")
    model, data = classifier(loss=loss), Memory()
    value = model.train().training_step(data.batches()[0], 0)
    logits = classifier().double().train()(data.images[:16])
    expected = loss(logits, data.labels[:16])
    assert value.item() == pytest.approx(expected.mean().item(), rel=1e-4)
    with pytest.raises(UserError, match=r"must return each image's loss, of shape \(16,\), got .* shape \(\)"):
        trainer(max_epochs=1).fit(classifier(loss=nn.CrossEntropyLoss()), datamodule=Memory())


SOURCE = """
import torch
from torch.nn.functional import cross_entropy
from examples.focal_loss import FocalLoss

class Focal(FocalLoss):
    def __init__(self, gamma: float = 2.0):
        super().__init__(gamma)
        self.register_buffer("weights", torch.linspace(1, gamma, 8))

def squared(logits, labels):
    return cross_entropy(logits, labels, reduction="none") ** 2
"""


@cases(
    "flags described",
    (["--model.loss=own_losses.Focal", "--model.loss.gamma=1.5"], {"name": "Focal", "gamma": 1.5}),
    (["--model.loss=own_losses.squared"], {"name": "squared"}),
)
def test_a_run_resumes_with_any_loss_and_its_checkpoint_needs_it_no_more(workplace, monkeypatch, flags, described):
    Path("own_losses.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    best = fit(*TINY, *SLIM, *flags, "--name=own").run.path / "checkpoints" / "best.ckpt"
    assert load(best)[ABOUT]["loss"] == described
    (best.parents[1] / "metrics.json").unlink()
    assert fit("--config=runs/own/config.yaml", "--trainer.max_epochs=2", "--name=own").trainer.global_step == 8
    del sys.modules["own_losses"]
    evaluate(str(best))
    assert "own_losses" not in sys.modules
