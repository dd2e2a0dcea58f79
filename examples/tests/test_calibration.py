"""A model's own ``probabilities``: what a temperature is fitted to, and where it is refused."""

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from examples.binary import BinaryClassifier
from examples.multilabel import MultilabelClassifier
from project.analysis.calibration import coverage_thresholds, fit_temperature
from project.analysis.evaluation import decisions, move_thresholds
from project.model import ImageClassifier
from tests.conftest import (
    BEST,
    FAST,
    RUN,
    SLIM,
    TINY,
    cases,
    classifier,
    evaluate,
    fit,
    load,
    one_line,
    opened,
    report_of,
    rows,
)
from tests.model.test_classifier import PREPROCESSING


class Likeliest(ImageClassifier):
    """Trains the probability of the label."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nll_loss(self.probabilities(logits).clamp(min=1e-9).log(), labels, reduction="none")


class Shares(Likeliest):
    """Each class's sigmoid, as a share of their sum, of float32 alone."""

    def __init__(self, class_names: list[str], preprocessing: Any, **options: Any) -> None:
        super().__init__(class_names, preprocessing, **options)
        self.register_buffer("mix", torch.eye(len(class_names)))

    def probabilities(self, logits: Tensor) -> Tensor:
        shares = (logits.sigmoid() / logits.sigmoid().sum(1, keepdim=True)).float()
        return shares @ self.get_buffer("mix").to(shares)


class Ranks(Likeliest):
    """Ordinal: a logit says whether the class is above its own, if it is not below (CORN)."""

    def probabilities(self, logits: Tensor) -> Tensor:
        above = logits[:, :-1].sigmoid().cumprod(1)
        ends = torch.ones_like(above[:, :1]), torch.zeros_like(above[:, :1])
        return torch.cat([ends[0], above], 1) - torch.cat([above, ends[1]], 1)


def logits_of(split: str) -> tuple[Tensor, Tensor]:
    """A split's logits without a temperature, float64, and its labels."""
    model, data = opened(RUN)
    images = torch.stack([data.splits[split].image(at) for at in range(len(data.splits[split]))])
    with torch.inference_mode():
        return model(images).double(), data.splits[split].labels


def error_of(logits: Tensor, labels: Tensor) -> str:
    """The calibration error of shares, by torchmetrics."""
    shares = torch.from_numpy(expit(logits.numpy()))
    shares /= shares.sum(1, keepdim=True)
    error = multiclass_calibration_error(shares, labels, num_classes=shares.shape[1], n_bins=15)
    return f"{100 * float(error):.2f}%"


def test_a_temperature_is_that_of_the_models_own_probabilities(workplace, capsys):
    fit(
        *TINY,
        *SLIM,
        *FAST[:3],
        "--trainer.max_epochs=8",
        f"--model={__name__}.Shares",
        "--name=run",
    )
    logits, labels = logits_of("val")

    def cost(temperature: float) -> float:
        shares = expit(logits.numpy() / temperature)
        true = torch.from_numpy(shares / shares.sum(1, keepdims=True))[range(len(labels)), labels]
        return -float(true.log().mean())

    best: Any = minimize_scalar(cost, bounds=(0.05, 20), method="bounded")
    evaluate(str(BEST), "--output_predictions=before.csv")
    finished = (RUN / "metrics.json").rename("finished.json")
    line = one_line(lambda: evaluate(str(BEST), "--calibrate"), capsys)
    assert "is not finished, and would be tested by that temperature" in line
    finished.rename(RUN / "metrics.json")
    evaluate(str(BEST), "--calibrate", "--output_predictions=after.csv")
    temperature = load(BEST)["about"]["temperature"]
    assert temperature == pytest.approx(best.x, rel=1e-3)
    said = f"was {error_of(logits, labels)} and is {error_of(logits / temperature, labels)}"
    assert said in capsys.readouterr().out
    assert [row["label"] for row in rows("after.csv")] == [
        row["label"] for row in rows("before.csv")
    ]
    shares = torch.from_numpy(expit(logits.numpy() / temperature))
    true = (shares / shares.sum(1, keepdim=True))[range(len(labels)), labels]
    expected = coverage_thresholds(true)
    assert load(BEST)["about"]["coverage"] == pytest.approx(expected, abs=1e-5)
    logits, labels = logits_of("test")
    errors = [error_of(logits / divisor, labels) for divisor in (temperature, 1.0)]
    said = f"error of the test set is {errors[0]}; it was {errors[1]} before validation chose"
    assert said in report_of(RUN).read_text()


def test_a_temperature_that_would_change_predictions_is_refused(workplace, capsys):
    fit(
        *TINY, *SLIM, *FAST[:3], "--trainer.max_epochs=8", f"--model={__name__}.Ranks", "--name=run"
    )
    line = one_line(lambda: evaluate(str(BEST), "--calibrate"), capsys)
    assert re.search(r"would change \d+ of 24 predictions, by the probabilities of Ranks; ", line)
    assert "temperature" not in load(BEST)["about"]


@cases("scale", 0.3, 3.0, 15.0)
@cases("cls", ImageClassifier, MultilabelClassifier)
def test_softmax_and_sigmoids_have_the_temperature_of_the_least_cross_entropy(cls, scale):
    """Also of logits whose probabilities are nearly 0 or 1; images without a label are NaN."""
    model, generator = classifier(cls), torch.Generator().manual_seed(0)
    logits = torch.randn(400, 8, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    margins = logits - logits.logsumexp(1, keepdim=True)
    if not cls.has_one_class:
        labels = (torch.rand(400, 8, generator=generator) < logits.sigmoid()).long()
        labels[5, 2] = -1
        margins = torch.stack([torch.zeros_like(logits), logits], 2)
    labels[:3] = -1
    known, logits[:3] = labels >= 0, torch.nan

    def cost(log: float) -> float:
        exact = scale * margins.double()[known] / math.exp(log)
        return cross_entropy(exact, labels[known]).item()

    best: Any = minimize_scalar(
        cost, bounds=(-2.99, 2.99), method="bounded", options={"xatol": 1e-9}
    )
    found = fit_temperature(scale * logits, partial(decisions, model, labels))
    assert found == pytest.approx(math.exp(best.x), rel=1e-3)  # by float32


@cases("threshold", 0.3, 0.5, "an image's", 1 + 2**-20)
@cases("temperature", 0.05, 0.7, 3.0, 20.0)
@cases("before", 1.0, 2.0)
def test_moved_thresholds_decide_of_other_probabilities_alike(threshold, temperature, before):
    """Also at an image's own probability, where rounding could decide, and where none is positive."""
    model = BinaryClassifier(["a", "b"], "b", preprocessing=PREPROCESSING, arch="resnet9_slim")
    logits = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    earlier = model.probabilities(logits / before)
    least = threshold
    if threshold == "an image's":
        least = earlier[(earlier[:, 1] - 0.4).abs().argmin(), 1].item()
    model.thresholds = {"a": max(1 - least, 0.0), "b": least}
    expected = model.predicted(earlier)
    move_thresholds(model, logits, before, temperature)
    assert torch.equal(model.predicted(model.probabilities(logits / temperature)), expected)
    if threshold == 0.5:
        assert model.thresholds == {"a": 0.5, "b": 0.5}


@cases("threshold margins", (1.0, [30, 20, -2, -9]), (1 + 2**-20, [30, 2, -3]), (0.0, [30, -150]))
@cases("temperature", 0.5, 5.0)
def test_a_threshold_at_the_end_of_float32_decides_alike(threshold, margins, temperature):
    """Of large logits, softmax is 1, from which validation may choose it."""
    model = BinaryClassifier(["a", "b"], "b", preprocessing=PREPROCESSING, arch="resnet9_slim")
    model.thresholds = {"a": max(1 - threshold, 0.0), "b": threshold}
    logits = torch.tensor([[0.0, margin] for margin in margins])
    expected = model.predicted(logits.softmax(1))
    move_thresholds(model, logits, 1.0, temperature)
    assert torch.equal(model.predicted((logits / temperature).softmax(1)), expected)
