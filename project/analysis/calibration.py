"""The calibration of a model's confidence: reliability, and accuracy by coverage."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from torch import Tensor

LOWEST, HIGHEST = 0.05, 20.0  # temperatures


class Reliability(NamedTuple):
    """Images in bins by confidence: int64 counts, float64 mean confidence and accuracy."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def ece(self) -> float:
        """Expected calibration error in [0, 1] (Guo et al., 2017, arXiv 1706.04599, eq. 3)."""
        gaps = (self.confidence - self.accuracy).abs() * self.counts
        return float(gaps.sum() / self.counts.sum().clamp(min=1))


def fit_temperature(
    logits: Tensor, decide: Callable[[Tensor, float], tuple[Tensor, Tensor]]
) -> float:
    """Finds the temperature T by whose ``logits / T`` the labels are likeliest (Guo, eq. 9).

    Fit it on the validation set and judge it on the test set. T is between 0.05 and 20, and above 1
    for an overconfident model.

    Args:
        logits: float (N, classes).
        decide: Takes logits and T; returns probabilities, float (M, classes), and the labels that
            are known, int64 (M,).
    """

    def cost(log_temperature: float) -> float:
        probabilities, labels = decide(logits, math.exp(log_temperature))
        likelihoods = probabilities.double()[range(len(labels)), labels]
        return -float(likelihoods.clamp(min=torch.finfo(torch.float32).tiny).log().mean())

    bounds = math.log(LOWEST), math.log(HIGHEST)
    best = minimize_scalar(cost, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    temperature = math.exp(best.x)
    ends = [end for end in (LOWEST, HIGHEST) if math.isclose(temperature, end, rel_tol=1e-3)]
    return ends[0] if ends else temperature


def coverage_thresholds(label_probability: Tensor) -> list[float]:
    """Returns the probability from which a class is in the set, for coverages of 1% to 99%.

    Split conformal prediction: of new images like these, at least that share has its class in the
    set (Sadinle et al., 2019, https://arxiv.org/abs/1609.00451; Angelopoulos and Bates, 2021,
    https://arxiv.org/abs/2107.07511, section 1).

    Args:
        label_probability: The probability of each calibration image's true class, float (N,).
    """
    ascending = [0.0, *label_probability.sort().values.tolist()]
    return [ascending[len(ascending) * (100 - percent) // 100] for percent in range(1, 100)]


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Bins images by the confidence of their prediction; an edge belongs to the bin below."""
    confidence, predicted = probabilities.double().max(1)
    indices = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    counts = torch.bincount(indices, minlength=bins)
    means = [
        torch.bincount(indices, weights=values, minlength=bins) / counts.clamp(min=1)
        for values in (confidence, (predicted == labels).double())
    ]
    return Reliability(counts, *means)


def reliability_figure(reliability: Reliability) -> Figure:
    """Draws the accuracy and the confidence of each bin, and below their number."""
    bins = len(reliability.counts)
    edges = [position / bins for position in range(bins)]
    filled = reliability.counts > 0
    figure = Figure(figsize=(4.6, 5), layout="constrained", dpi=110)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    above.bar(
        edges,
        reliability.accuracy.tolist(),
        width=1 / bins,
        align="edge",
        edgecolor="white",
        label="accuracy",
    )
    above.plot([0, 1], [0, 1], color="grey", linestyle="--", label="perfectly calibrated")
    above.plot(
        reliability.confidence[filled],
        reliability.accuracy[filled],
        "o",
        color="C1",
        markersize=4,
        label="mean confidence",
    )
    above.set(
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        title=f"expected calibration error {reliability.ece:.2%}",
    )
    above.legend(loc="upper left", fontsize=8)
    below.bar(
        edges,
        reliability.counts.tolist(),
        width=1 / bins,
        align="edge",
        edgecolor="white",
        color="grey",
    )
    below.set(xlabel="confidence", ylabel="count")
    return figure


def abstention_figure(confidence: Tensor, correct: Tensor) -> Figure:
    """Draws accuracy by coverage, the share of confident images (El-Yaniv, 2010)."""
    order = confidence.argsort(descending=True)
    answered = torch.arange(1, len(order) + 1)
    accuracy = correct[order].double().cumsum(0) / answered
    figure = Figure(figsize=(4.6, 3), layout="constrained", dpi=110)
    axes = figure.add_subplot(
        xlabel="share of images answered", ylabel="their accuracy", xlim=(0, 1)
    )
    # on top of the frame, where all are right
    axes.plot(
        answered / len(order), accuracy, label="most confident first", clip_on=False, zorder=3
    )
    for threshold in (0.5, 0.7, 0.9, 0.95):
        if count := int((confidence >= threshold).sum()):
            axes.plot(
                count / len(order),
                accuracy[count - 1],
                "o",
                markersize=4,
                label=f"confidence from {threshold}",
                clip_on=False,
                zorder=3,
            )
    axes.set_ylim(*torch.tensor(axes.get_ylim()).clamp(0, 1).tolist())  # a share, despite margins
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", fontsize=8)
    return figure
