"""Comparison of a checkpoint with the command that resumes from it."""

from pathlib import Path
from typing import Any

from ..errors import UserError, listed, printable
from .checkpoint import About, Selection

_OF_THE_MACHINE = ("root", "cache", "device_cache", "num_workers")


def require_match(about: About, path: str | Path, model: Any, chosen: Selection | None) -> None:
    """Refuses to resume with another model class, network, set of classes, or metric to choose the best checkpoint by."""
    kind = type(model).__name__
    if (found := about.get("model", kind)) != kind:
        raise UserError(
            f"'{path}' holds a {printable(found)}, but this command asks for {kind}; see --model, or use another --name"
        )
    before, now = (about["arch"], about.get("arch_args") or {}), (model.arch, model.arch_args or {})
    if before != now:
        options = " ".join([f"--model.arch {before[0]}", *(f"--model.arch_args.{n} {v}" for n, v in before[1].items())])
        raise UserError(
            f"'{path}' holds another network than this command asks for; use {printable(options)}, or another --name"
        )
    require_same_classes(about["class_names"], path, model.class_names)
    if (selected := about.get("selection")) != chosen:
        names = [f"{one['monitor']}, {one['mode']}" if one else "nothing" for one in (selected, chosen)]
        raise UserError(
            f"this run chooses best.ckpt by {printable(names[0])}, but the command by {names[1]}; keep --monitor, --mode"
            " and --callbacks.best_checkpoint, or use another --name"
        )


def changed_data(about: About, data: Any) -> str:
    """Names the options of the data that are not those of the checkpoint; returns nothing where all are."""
    before = {**(about["data"] or {"init_args": {}})["init_args"], **about.get("transforms", {})}
    now = {name: value for name, value in data.hparams.items() if name not in _OF_THE_MACHINE}
    now |= data.transforms_in_words()
    changes = [f"--data.{name} is {value}, not {before[name]}" for name, value in _differing(before, now)]
    return printable(f"; from here on {' and '.join(changes)}") if changes else ""


def changed_processes(about: About, now: int) -> str:
    """Names what another number of processes leaves exact, and what not; returns nothing where it is the same."""
    if (before := about.get("processes", now)) == now:
        return ""
    exact = "order and augmentation are exact, BatchNorm's shares of a batch and the last bits of weights are not"
    return f"; on {now} process{'es' * (now > 1)}, not {printable(before)}: {exact}"


def changed_images(about: About, data: Any) -> str:
    """Names the splits with another number of images than the checkpoint's; returns nothing where there is none."""
    before, now = about.get("images", {}), dict(getattr(data, "split_sizes", dict)())
    changes = [f"{size} {name} images, not {before[name]}" for name, size in _differing(before, now)]
    return f"the data has changed since this run was stopped: {listed(changes)}" if changes else ""


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any]]:
    """Compares as text, as tensors and arrays among the values are compared number by number."""
    return [(name, value) for name, value in now.items() if name in before and repr(before[name]) != repr(value)]


def require_same_classes(known: list[str], path: str | Path, class_names: list[str]) -> None:
    """Refuses data with other classes than a checkpoint knows, or in another order."""
    if known != class_names:
        pairs = zip(known, class_names, strict=False)
        first = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        before, now = (f"{'…, ' * bool(first)}{listed(names[first:], 4)}" for names in (known, class_names))
        raise UserError(
            f"'{path}' knows the {len(known)} classes {before}, but the data has the {len(class_names)} classes {now};"
            " use the data it was trained on"
        )
