"""Private names of torch and Lightning that image models need, and why; see ``exact/_upstream.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from lightning.pytorch import Trainer

# the first 12 digits of BLAKE2b of the sources in lightning 2.6.6 and torch 2.14.1
PRIVATE_NAMES = {
    # length_attributes: the schedule keeps its length under another name as well
    "torch.optim.lr_scheduler:OneCycleLR.__init__": "1271b0335061",
    # limited_tensors: a mode has no public name, but is what torch's notes on extending it show
    "torch.utils._python_dispatch:TorchDispatchMode.__enter__": "1987b267addc",
}

_LOGGED = ("results", "arguments", "steps", "validated")  # of an epoch loop, beside its counters


def progress_of(trainer: Trainer) -> dict[str, Any]:
    """Returns the counters that a trainer restores, as a checkpoint has them.

    Not what was logged, by as many processes as there were, which old files lack.
    """
    progress = trainer.fit_loop.state_dict()
    for name in _LOGGED:
        progress["epoch_loop.state_dict"].pop(name, None)
    return {"loops": {"fit_loop": progress}}


def loop_values(checkpoint: dict[str, Any]) -> dict[str, object]:
    """Returns what a checkpoint knows of what its loop has logged, and of its loaders' places."""
    loop = checkpoint["loops"]["fit_loop"]
    state = loop["epoch_loop.state_dict"] | loop["state_dict"]
    return {name: state[name] for name in (*_LOGGED, "combined_loader") if name in state}


def log_end_of_short_epoch(trainer: Trainer) -> None:
    """Hands loggers what steps have logged in an epoch that ends before Lightning does so."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    loop = trainer.fit_loop.epoch_loop
    if (
        loop.batch_idx < (every - 1) * trainer.accumulate_grad_batches  # fewer steps than every
        and trainer.is_last_batch
        and trainer.global_step % every
        and trainer.loggers
    ):
        # by Lightning's names of steps' values, without those that are not for loggers
        logged = loop._results.metrics(on_step=True)["log"]
        newest = {"epoch": trainer.current_epoch, **{n: x.item() for n, x in logged.items()}}
        step = int(newest.pop("step", loop._batches_that_stepped - 1))
        for logger in trainer.loggers:
            logger.log_metrics(newest, step)


def length_attributes(schedule: Mapping[str, Any]) -> list[str]:
    """Names the attributes in a schedule's state that follow from the length of training."""
    changed = schedule.get("lengths")
    others = changed if isinstance(changed, list) else []  # a file may say anything
    return [name for name in schedule if name in ("total_steps", "_schedule_phases", *others)]


def limited_tensors(most: int, refusal: Exception) -> AbstractContextManager[object]:
    """Raises an error before any tensor of more than so many numbers is made, as a buffer may be.

    Where the arguments of an operation could make one, its shape is found on the ``meta`` device.
    """
    from torch import Tensor, device
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map_only

    class Limited(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, operation: Any, types: object, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            is_new = not operation._schema.is_mutable  # else it changes a tensor that is there
            if is_new and _bound(tree_leaves((args, kwargs))) > most:
                like, options = tree_map_only(Tensor, lambda x: x.to("meta"), (args, kwargs))
                options |= {"device": device("meta")} if "device" in options else {}
                options.pop("generator", None)
                shapes: Any = ()
                with suppress(Exception):  # such as item(), which makes no tensor
                    shapes = operation(*like, **options)
                if any(x.numel() > most for x in tree_leaves(shapes) if isinstance(x, Tensor)):
                    raise refusal
            return operation(*args, **kwargs)

    def _bound(values: list[Any]) -> float:
        """Returns no less than the numbers that an operation on these could make."""
        sizes = (x.numel() if isinstance(x, Tensor) else x for x in values)
        numbers = [abs(x) for x in sizes if isinstance(x, int | float)]
        return math.prod(max(x, 1 / x) for x in numbers if x)

    return Limited()  # type: ignore[no-untyped-call]
