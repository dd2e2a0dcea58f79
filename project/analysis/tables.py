"""Metrics as tables for a terminal, and as files that options name."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from project.engine.errors import UserError, printable
from project.engine.run.files import whole_file
from project.engine.run.folder import RunFolder

RATES = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "average_precision": "AP",
    "threshold": "threshold",
}
"""The rates of a class that tables and plots show, and their headings; most have only some of them."""


def summary(
    run: RunFolder,
    metrics: dict[str, Any],
    own_images: bool = False,
    own_modules: Sequence[str] = (),
) -> str:
    """Lists a run's metrics, its best checkpoint, and what to do next; with ``own_modules``, which commands import."""
    own = "  your own images   python -m project.fit --data FOLDER"
    best, chosen = shlex.quote(str(run.best)), metrics["selection"]
    sets = {"validation": "val", "test": "test"}
    modules = ",".join(own_modules)
    own_code, environment = (f" --import {modules}", f"IMPORT={modules} ") if modules else ("", "")
    choice = (
        f"epoch {metrics['epoch']}, by {chosen['monitor']}"
        if chosen
        else f"step {metrics['step']}, the last"
    )
    return "\n".join(
        [
            "",
            metrics_table({name: metrics[key] for name, key in sets.items() if metrics[key]}),
            "",
            f"  best checkpoint   {run.best} ({choice})",
            f"  curves, images    tensorboard --logdir {shlex.quote(str(run.path.parent))}",
            f"  class by class    python -m project.evaluate {best}{own_code}",
            f"  label images      python -m project.predict {best} PHOTOS{own_code}",
            f"  one page          python -m project.report {shlex.quote(str(run.path))}{own_code}",
            f"  explore           {environment}CHECKPOINT={best} make notebook",
            *([] if own_images else [own]),
        ]
    )


def metrics_table(columns: dict[str, dict[str, Any]]) -> str:
    """Formats metrics (as of ``Metrics.as_dict``) by their headings, with counts beside rates."""
    rows = {"": list(columns)}
    for name, count in (("accuracy", "correct"), ("top5", "top5_correct")):
        if all(count in metrics for metrics in columns.values()):
            rows[name] = [f"{f[name]:.2%} ({f[count]}/{f['total']})" for f in columns.values()]
    if any("thresholds" in metrics for metrics in columns.values()):
        rows["thresholds"] = [
            "of each class" if "thresholds" in metrics else "0.5" for metrics in columns.values()
        ]
    rows["macro F1"] = [f"{metrics['f1']:.4f}" for metrics in columns.values()]
    for name in own_metrics(columns):
        rows[name] = [f"{metrics[name]:.4f}" for metrics in columns.values()]
    rows["loss"] = [f"{metrics['loss']:.4f}" for metrics in columns.values()]
    width = max(10, *(len(name) + 2 for name in rows))
    return "\n".join(
        f"  {name:<{width}}" + "".join(f"{cell:>24}" for cell in cells)
        for name, cells in rows.items()
    )


def own_metrics(columns: dict[str, dict[str, Any]]) -> list[str]:
    """Names the metrics that a classifier of the user's adds, and that all columns have."""
    known = {"accuracy", "top5", "f1", "loss"}
    first, *others = columns.values()
    own = [name for name, value in first.items() if isinstance(value, float) and name not in known]
    return [name for name in own if all(name in metrics for metrics in others)]


def class_table(class_names: list[str], per_class: list[dict[str, Any]]) -> str:
    """Formats the rates of each class (as of ``Metrics.per_class``)."""
    shown = [printable(name) for name in class_names]
    width = max(len(name) for name in [*shown, "class"])
    rates = {name: heading for name, heading in RATES.items() if per_class and name in per_class[0]}
    rows = [
        f"  {'class':<{width}}  {''.join(f'{heading:>10}' for heading in rates.values())}{'images':>10}"
    ]
    for name, row in zip(shown, per_class, strict=True):
        cells = "".join(f"{row[rate]:>10.4f}" for rate in rates)
        rows.append(f"  {name:<{width}}  {cells}{row['total']:>10}")
    return "\n".join(rows)


def named(label: int | list[float], class_names: Sequence[str]) -> str:
    """Names the class of an image, or all classes that it has a share of."""
    if isinstance(label, list):
        return " ".join(name for name, share in zip(class_names, label, strict=True) if share > 0)
    return class_names[label]


def write_json(option: str, path: str | Path, found: dict[str, Any]) -> None:
    """Writes metrics for other programs."""
    with replacing(option, path) as target:
        target.write_text(json.dumps(found, indent=2) + "\n")


def require_writable(option: str, path: str | Path) -> None:
    """Checks, before minutes of work, that the file of an option can be written, and leaves it as it is."""
    there = Path(path).exists()
    with writing(option, path), open(path, "ab"):
        pass
    if not there:
        Path(path).resolve().unlink()  # what a link leads to


@contextmanager
def replacing(option: str, path: str | Path) -> Iterator[Path]:
    """Yields a path to write to: a file is replaced as a whole; a link is followed, a pipe or a terminal written to."""
    place = Path(path)
    in_place = place.is_symlink() or (place.exists() and not place.is_file())  # such as /dev/stdout
    with writing(option, path), nullcontext(place) if in_place else whole_file(place) as target:
        yield target


@contextmanager
def writing(option: str, path: str | Path) -> Iterator[None]:
    """Raises a UserError that names the option if its file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option}: '{path}' cannot be written ({error.strerror})") from error


def chosen_output(given: str | None, default: Path) -> Path:
    """Returns the output file that was given or else the default, which must not be a link, as it might come with a run."""
    if given is None and default.is_symlink():
        raise UserError(f"'{default}' is a link; remove it, or choose another file with --output")
    return Path(given or default)
