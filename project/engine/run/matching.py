"""Compares a checkpoint with the command that resumes from it."""

from pathlib import Path
from typing import Any

from ..errors import UserError, listed, printable
from .checkpoint import About, Selection

_OF_THE_MACHINE = ("root", "cache", "device_cache", "num_workers")


def require_match(
    about: About, path: str | Path, model: str, class_names: list[str], arch: str, arch_args: Any
) -> None:
    """Compares a checkpoint with the model that is to continue from it.

    Raises:
        UserError: The checkpoint is of another class, of another architecture or of other classes of images.
    """
    holds = about.get("model", model)
    if holds != model:
        raise UserError(
            f"'{path}' holds a {printable(holds)}, but this command asks for {model}; see --model, or use another --name"
        )
    before, now = (about["arch"], about.get("arch_args") or {}), (arch, arch_args or {})
    if before != now:
        options = " ".join([f"--model.arch {before[0]}", *(f"--model.arch_args.{n} {v}" for n, v in before[1].items())])
        raise UserError(
            f"'{path}' holds another network than this command asks for; use {printable(options)}, or another --name"
        )
    require_same_classes(about["class_names"], path, class_names)


def require_same_selection(about: About, now: Selection | None) -> None:
    """Compares how the best checkpoint was chosen with how it is to be chosen now.

    Raises:
        UserError: They differ.
    """
    before = about.get("selection")
    if before != now:
        names = [f"{chosen['monitor']}, {chosen['mode']}" if chosen else "nothing" for chosen in (before, now)]
        raise UserError(
            f"this run chooses best.ckpt by {printable(names[0])}, but the command by {names[1]}; keep --monitor, --mode"
            " and --callbacks.best_checkpoint, or use another --name"
        )


def changed_data(about: About, data: Any) -> str:
    """Names the options of the data that are not those of the checkpoint; returns nothing where all are."""
    remembered = about["data"]
    before = {**remembered["init_args"], **about.get("transforms", {})} if remembered is not None else {}
    now = {**data.hparams, **data.transforms_in_words()}
    names = [
        name for name in now if name in before and name not in _OF_THE_MACHINE and _differ(before[name], now[name])
    ]
    changes = [f"--data.{name} is {now[name]}, not {before[name]}" for name in names]
    return printable(f"; from here on {' and '.join(changes)}") if changes else ""


def changed_images(about: About, data: Any) -> str:
    """Says where a resumed run has another number of images than its checkpoint had; nothing where it has not."""
    before, now = about.get("images", {}), dict(getattr(data, "split_sizes", dict)())
    names = [name for name in now if name in before and _differ(before[name], now[name])]
    changes = [f"{now[name]} {name} images, not {before[name]}" for name in names]
    return f"the data has changed since this run was stopped: {listed(changes)}" if changes else ""


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):  # of tensors or arrays, which are compared number by number
        return repr(one) != repr(other)


def require_same_classes(known: list[str], path: str | Path, class_names: list[str]) -> None:
    """Compares the classes that a checkpoint knows with those of the data.

    Raises:
        UserError: They differ, or stand in another order.
    """
    if known != class_names:
        pairs = zip(known, class_names, strict=False)
        first = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
        start = first if first >= 4 else 0
        before, now = (f"{'…, ' * bool(start)}{listed(names[start:], 4)}" for names in (known, class_names))
        raise UserError(
            f"'{path}' knows the {len(known)} classes {before}, but the data has the {len(class_names)} classes {now};"
            " use the data it was trained on"
        )
