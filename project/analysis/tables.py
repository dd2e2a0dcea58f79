"""Metrics as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

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


def metrics_table(columns: Mapping[str, Metrics]) -> str:
    """Formats the metrics of several splits, a column each, with counts beside accuracies."""
    rows = {"": list(columns)}
    for name, count in (("accuracy", "correct"), ("top5", "top5_correct")):
        if all(count in metrics for metrics in columns.values()):
            rows[name] = [
                f"{metrics[name]:.2%} ({metrics[count]}/{metrics['total']})"
                for metrics in columns.values()
            ]
    for name in ("f1", *added_metrics(columns), "loss"):
        if all(name in metrics for metrics in columns.values()):
            heading = "macro F1" if name == "f1" else name
            rows[heading] = [f"{metrics[name]:.4f}" for metrics in columns.values()]
    width = max(10, *(len(name) + 2 for name in rows))
    return "\n".join(
        f"  {name:<{width}}" + "".join(f"{cell:>24}" for cell in cells)
        for name, cells in rows.items()
    )


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
        }
        for hits, true, predicted in counts.T.tolist()
    ]
    for row, threshold in zip(rows, metrics.get("thresholds", ()), strict=False):
        row["threshold"] = threshold
    return rows
