"""Metrics as tables for a terminal."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from lightkeeper.exact import UserError

from project.model.metrics import class_counts

Metrics = Mapping[str, Any]
"""The metrics of a split by name: numbers, counts, and plain data such as a confusion matrix."""

RATES = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "threshold": "threshold",
}
"""The rates of a class that tables and plots show, if known, and their headings."""


def wilson_interval(hits: int, total: int) -> tuple[float, float]:
    """Returns the 95% interval of a share (Wilson, 1927, https://doi.org/10.2307/2276774).

    It is (0, 1) of nothing.

    Raises:
        UserError: There are more hits than images, as in a damaged file.
    """
    if not 0 <= hits <= total:
        raise UserError(f"metrics.json is damaged: it says {hits} of {total} images")
    z = NormalDist().inv_cdf(0.975)
    centre = (hits + z * z / 2) / (total + z * z)
    half = z * math.sqrt(hits * (total - hits) / max(total, 1) + z * z / 4) / (total + z * z)
    return max(0.0, centre - half), min(1.0, centre + half)


def interval_in_words(hits: int, total: int) -> str:
    """Returns counts and the 95% interval of a share, as in ``3/4, 30.1 to 95.4%``."""
    low, high = wilson_interval(hits, total)
    return f"{hits}/{total}, {100 * low:.1f} to {100 * high:.1f}%"


def escaped(text: str) -> str:
    """Escapes the characters of names that would control a terminal; lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def metrics_table(
    columns: Mapping[str, Metrics], intervals: bool = False, has_groups: bool = False
) -> str:
    """Formats the metrics of several splits, a column each, with counts beside accuracies.

    ``intervals`` adds 95% intervals to accuracies; other metrics show the ``NAME_interval`` that
    they recorded. If ``has_groups``, a line says that intervals do not know of them.
    """
    if not columns:
        return "  nothing was measured"
    rows = {"": list(columns)}
    brackets = interval_in_words if intervals else "{}/{}".format
    for name, count in (("accuracy", "correct"), ("top5", "top5_correct")):
        is_counted = all(is_share(metrics, name, count) for metrics in columns.values())
        if all(name in metrics for metrics in columns.values()):
            rows[name] = [
                f"{metrics[name]:.2%}"
                + (f" ({brackets(metrics[count], metrics['total'])})" if is_counted else "")
                for metrics in columns.values()
            ]
    for name in ("f1", *added_metrics(columns), "loss"):
        if all(name in metrics for metrics in columns.values()):
            heading = "macro F1" if name == "f1" else name
            rows[heading] = [
                f"{metrics[name]:.4f}{_own_interval(metrics, name)}" for metrics in columns.values()
            ]
    width = max(10, *(len(name) + 2 for name in rows))
    cell_width = max(24, *(len(cell) + 2 for cells in rows.values() for cell in cells))
    table = "\n".join(
        f"  {name:<{width}}" + "".join(f"{cell:>{cell_width}}" for cell in cells)
        for name, cells in rows.items()
    )
    has_intervals = any(" to " in cell for cells in rows.values() for cell in cells)
    over_images = "\n  intervals take images as independent, which those of a group are not"
    return table + over_images if has_groups and has_intervals else table


def is_share(metrics: Metrics, name: str, count: str) -> bool:
    """Returns True if ``name`` is ``count`` / ``total``, and no metric of your own of that name."""
    if not {name, count, "total"} <= metrics.keys():
        return False
    share = metrics[count] / max(metrics["total"], 1)
    return math.isclose(metrics[name], share, abs_tol=1e-6)  # torchmetrics' own are float32


def _own_interval(metrics: Metrics, name: str) -> str:
    """Returns the interval that a metric has recorded beside its value, if it has."""
    if f"{name}_interval" not in metrics:
        return ""
    low, high = metrics[f"{name}_interval"]
    return f" ({low:.4f} to {high:.4f})"


def added_metrics(columns: Mapping[str, Metrics]) -> list[str]:
    """Names the metrics that a user's classifier adds and that all splits have."""
    known = {"accuracy", "top5", "f1", "loss"}
    return [
        name
        for name, value in next(iter(columns.values()), {}).items()
        if isinstance(value, float)
        and name not in known
        and all(name in metrics for metrics in columns.values())
    ]


def class_table(class_names: list[str], per_class: Sequence[Metrics]) -> str:
    """Formats precision, recall and F1 of each class, and its number of images."""
    names = [repr(name)[1:-1] for name in class_names]  # repr escapes control characters
    width = max(len(name) for name in [*names, "class"])
    rates = {name: heading for name, heading in RATES.items() if per_class and name in per_class[0]}
    rows = [
        f"  {'class':<{width}} "
        f" {''.join(f'{heading:>10}' for heading in rates.values())}{'images':>10}"
    ]
    for name, row in zip(names, per_class, strict=True):
        cells = "".join(f"{row[rate]:>10.4f}" for rate in rates)
        rows.append(f"  {name:<{width}}  {cells}{row['total']:>10}")
    return "\n".join(rows)


def class_rates(metrics: Metrics) -> list[dict[str, float]]:
    """Lists precision, recall and F1 of each class, its number of images, and its threshold.

    Takes the metrics of a set, with a ``confusion_matrix`` and perhaps ``thresholds``. A rate that
    is undefined is 0.
    """
    counts = class_counts(torch.tensor(metrics["confusion_matrix"]))
    rows: list[dict[str, float]] = [
        {
            "precision": hits / max(predicted, 1),
            "recall": hits / max(true, 1),
            "f1": 2 * hits / max(true + predicted, 1),
            "total": true,
            "hits": hits,
            "predicted": predicted,
        }
        for hits, true, predicted in counts.T.tolist()
    ]
    for row, threshold in zip(rows, metrics.get("thresholds", ()), strict=False):
        row["threshold"] = threshold
    return rows
