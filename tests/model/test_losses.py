"""The training loss: what may be given, and what a run with it keeps of the promises."""

import sys
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss
from torch import nn
from torch.nn import functional as F

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from project.model.losses import loss_summary
from tests.conftest import SLIM, TINY, evaluate, fit
from tests.model.test_classifier import Memory, classifier, logits_of, trainer
from tests.small import load, one_line

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)

SOURCE = '''
import torch
from torch import nn
from torch.nn import functional as F


class WeightedFocalLoss(nn.Module):
    """Focal loss with a weight for each class.

    Args:
        gamma: The exponent.
    """

    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("class_weights", torch.linspace(1, 2, 8))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = F.cross_entropy(logits, labels, reduction="none")
        return self.class_weights[labels] * (1 - torch.exp(-losses)) ** self.gamma * losses


class MeanLoss(nn.CrossEntropyLoss):
    """One that takes the mean and has no other way."""

    def __init__(self) -> None:
        super().__init__()


class TrainedLoss(nn.CrossEntropyLoss):
    """One with a parameter."""

    def __init__(self) -> None:
        super().__init__(reduction="none")
        self.scale = nn.Parameter(torch.ones(()))


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="none")
'''


@pytest.fixture
def own_losses(workplace, monkeypatch):
    """A module of losses in the folder in which the command runs."""
    (workplace / "own_losses.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    yield
    sys.modules.pop("own_losses", None)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.3, weight=torch.tensor([1.0, 2.0, 4.0]), reduction="none"),
        nn.MultiMarginLoss(reduction="none"),
        lambda logits, labels: F.cross_entropy(logits, labels, reduction="none") ** 2,
    ],
    ids=["CrossEntropyLoss", "MultiMarginLoss", "function"],
)
def test_training_minimises_the_loss_that_was_given(loss):
    model, data = classifier(loss=loss), Memory()
    value = model.train().training_step(data.batches()[0], 0)
    logits = classifier().double().train()(data.images[:16])
    expected = (loss.double() if isinstance(loss, nn.Module) else loss)(logits, data.labels[:16])
    assert value.item() == pytest.approx(expected.mean().item(), rel=1e-4)


def test_labels_may_be_soft():
    model, data = classifier(label_smoothing=0.2), Memory()
    (batch, *_), soft = data.batches(), torch.rand(16, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    logits = model(batch.images)
    targets = 0.8 * soft.double() + 0.2 / 3
    expected = -(targets * logits.double().log_softmax(1)).sum(1)
    torch.testing.assert_close(model.loss(logits, soft).double(), expected, rtol=1e-5, atol=1e-6)


def test_validation_and_test_measure_cross_entropy_whatever_trains():
    data = Memory()
    for model in (classifier(), classifier(loss=nn.MultiMarginLoss(reduction="none")), classifier(label_smoothing=0.5)):
        trainer().validate(model, datamodule=data, verbose=False)
        trainer().test(model, datamodule=data, verbose=False)
        expected = log_loss(data.labels, logits_of(model, data.images).double().softmax(1))
        assert [model.results[split].loss for split in ("val", "test")] == pytest.approx([expected] * 2, abs=1e-5)


class MeanOfBatch(ImageClassifier):
    """Makes the mistake that a subclass may make."""

    def loss(self, logits, labels):
        return super().loss(logits, labels).mean()


def test_a_mean_in_place_of_each_images_loss_is_refused():
    with pytest.raises(UserError, match=r"^--model\.loss: CrossEntropyLoss must return each image's loss.*reduction="):
        classifier(loss=nn.CrossEntropyLoss())
    model = MeanOfBatch(["red", "green", "blue"], classifier().preprocessing)
    with pytest.raises(UserError, match=r"^MeanOfBatch\.loss must return .* of shape \(16,\), got .* shape \(\)"):
        trainer(max_epochs=1).fit(model, datamodule=Memory())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.loss=CrossEntropyLoss", "--model.loss.reduction=mean"], "CrossEntropyLoss must return each image's"),
        (["--model.loss=own_losses.MeanLoss"], "--model.loss: MeanLoss must return each image's loss, of shape"),
        (["--model.loss=own_losses.TrainedLoss"], "TrainedLoss has parameters of its own"),
        (["--model.loss=own_losses.WeightedFocalLoss", "--model.loss.gama=1"], "did you mean --model.loss.gamma?"),
        (["--model.loss=own_losses.WeightedFocalLoss", "--model.loss.gamma=x"], "expected float, not 'x'"),
        (["--model.loss=own_losses.Missing"], "--model.loss: there is no loss 'own_losses.Missing'"),
        (["--model.loss=CrosEntropyLoss"], "did you mean CrossEntropyLoss"),
        (["--model.loss=MSELoss"], "MSELoss does not take logits and labels"),
        (["--model.loss=TripletMarginLoss"], "TripletMarginLoss does not take logits and labels"),
        (["--model.loss.label_smoothing=0.2"], "CrossEntropyLoss"),
        (
            ["--model.loss=CrossEntropyLoss", "--model.label_smoothing=0.2"],
            "--model.label_smoothing belongs to the default loss",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_loss_that_cannot_be_used_is_one_line(own_losses, capsys, flags, message):
    assert message in one_line(lambda: fit(*TINY, *flags), capsys)


def test_the_default_and_the_class_of_torch_are_one_loss(workplace):
    weights: list[Any] = []
    named = ["--model.loss=torch.nn.CrossEntropyLoss", "--model.loss.label_smoothing=0.3"]
    for flags in (["--model.label_smoothing=0.3"], named):
        cli = fit(*TINY, *SLIM, *flags, f"--name=run{len(weights)}")
        weights.append(load(cli.run.path / "checkpoints" / "last.ckpt"))
    first, second = weights
    assert first["state_dict"].keys() == second["state_dict"].keys()
    assert all(torch.equal(value, second["state_dict"][name]) for name, value in first["state_dict"].items())
    assert first[ABOUT]["loss"] == second[ABOUT]["loss"]
    assert first[ABOUT]["loss"] == {"name": "CrossEntropyLoss", "label_smoothing": 0.3, "ignore_index": -100}


def test_a_run_with_a_loss_of_ones_own_resumes_and_its_checkpoint_needs_the_loss_no_more(workplace, own_losses):
    flags = [*SLIM, "--model.loss=own_losses.WeightedFocalLoss", "--model.loss.gamma=1.5"]
    cli = fit(*TINY, *flags, "--name=own")
    best = cli.run.path / "checkpoints" / "best.ckpt"
    assert load(best)[ABOUT]["loss"] == {"name": "WeightedFocalLoss", "gamma": 1.5}
    (cli.run.path / "metrics.json").unlink()
    assert fit(*TINY, *flags, "--name=own", "--trainer.max_epochs=2").trainer.global_step == 8
    del sys.modules["own_losses"]
    evaluate(str(best))
    assert "own_losses" not in sys.modules
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    loaded = ImageClassifier.load_from_checkpoint(best)
    started = fit(*TINY, *SLIM, f"--model.weights={best}", "--trainer.fast_dev_run=true").model
    assert started.network.state_dict().keys() == loaded.network.state_dict().keys()
    assert logits_of(loaded, images).shape == (2, 8)


def test_a_function_is_a_loss_too(workplace, own_losses):
    model = fit(*TINY, *SLIM, "--model.loss=own_losses.plain_loss", "--trainer.fast_dev_run=true").model
    assert loss_summary(model.criterion) == {"name": "plain_loss"}
    assert model.results["test"].total == 16
