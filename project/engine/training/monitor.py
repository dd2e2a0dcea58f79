"""What ``best.ckpt`` is chosen by, and what other callbacks may watch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from lightning.pytorch.callbacks import Callback, EarlyStopping

from ..errors import UserError


class Monitor(NamedTuple):
    """A metric that training is judged by.

    Attributes:
        monitor: Its name in the logs.
        mode: ``min`` where less of it is better, ``max`` where more is.
    """

    monitor: str
    mode: str


def only_ours(*parts: object) -> bool:
    """Whether all that log are Lightning's or this project's, so that the names of all metrics are known."""
    return all(type(part).__module__.startswith(("lightning.", "project.")) for part in parts)


def chosen_monitor(metric: str, mode: str | None, known: dict[str, str | None], closed: bool) -> Monitor:
    """Finds what the best checkpoint is chosen by.

    Args:
        metric: The value of ``--monitor``.
        mode: The value of ``--mode``, if it is given.
        known: The mode of each metric of the validation set, None where a metric does not say what is better.
        closed: Whether there are no others.

    Raises:
        UserError: There is no such metric, or its mode must be given.
    """
    if metric not in known and closed:
        raise UserError(f"--monitor '{metric}' is no metric of the validation set; there are {', '.join(known)}")
    mode = mode or known.get(metric)
    if mode is None:
        raise UserError(f"--monitor {metric} does not say what is better; give --mode min or --mode max")
    return Monitor(metric, mode)


def settle_early_stopping(callbacks: list[Callback], specs: Sequence[Any], monitor: Monitor) -> None:
    """Lets ``EarlyStopping`` watch what the best checkpoint is chosen by, and look after each validation.

    Without a metric of its own it watches that one. Lightning's looks at the end of each training epoch, and fails where
    ``--trainer.max_steps`` ends the first one before a validation.

    Args:
        callbacks: The user's, some of which are replaced.
        specs: What the command line says of each.
        monitor: What to watch.
    """
    for at, (callback, spec) in enumerate(zip(callbacks, specs, strict=True)):
        if not isinstance(callback, EarlyStopping):
            continue
        options = spec.init_args.as_dict()
        changed: dict[str, Any] = monitor._asdict() if callback.monitor is None else {}
        watched = changed.get("monitor", callback.monitor)
        if watched.startswith("val/") and options.get("check_on_train_epoch_end", False) is None:
            changed["check_on_train_epoch_end"] = False
        if changed:
            callbacks[at] = type(callback)(**{**options, **changed})
