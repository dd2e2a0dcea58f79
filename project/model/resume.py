"""What a resumed run may change of its optimizer and schedule."""

from typing import Any, TypedDict

from torch.optim import Optimizer


class Settings(TypedDict):
    """What a command asked of optimizer and schedule, as plain data.

    Attributes:
        optimizer: The optimizer's class.
        parameters: How many parameters each group has.
        groups: Each group's settings.
        scheduler: The state of the schedule before its first step.
    """

    optimizer: str
    parameters: list[int]
    groups: list[dict[str, Any]]
    scheduler: dict[str, Any]


def apply_changes(optimizer: Optimizer, scheduler: Any, before: Settings, now: Settings) -> None:
    """Changes what a resumed checkpoint restored where the command now asks for something else than it did before.

    What the command did not change stays as it was restored, so the same command continues exactly.

    Args:
        optimizer: With the restored state.
        scheduler: With the restored state; any that torch has.
        before: What was asked for when the checkpoint was made.
        now: What is asked for now.
    """
    for group, old, new in zip(optimizer.param_groups, before["groups"], now["groups"], strict=True):
        changed = {name: value for name, value in new.items() if value != old.get(name)}
        if "lr" in changed:
            ratio = changed.pop("lr") / old["lr"]
            group.update({name: group[name] * ratio for name in ("lr", "initial_lr") if name in group})
        group.update(changed)
    for name, value in now["scheduler"].items():
        if name not in _PROGRESS and value != before["scheduler"].get(name):
            setattr(scheduler, name, value)


_PROGRESS = ("last_epoch", "_step_count", "_last_lr")  # of a scheduler, not its settings
