"""Errors of other libraries, in the words that a user needs: what Lightning, torch or the system refuse, in one line."""

import errno
import re
import sys
import traceback

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler

from ..errors import UserError, first_sentence, printable
from ..loading.workers import WORKER_DIED

LOST = "another process of this run has ended; it says why, unless the system killed it"
TOO_LARGE = "the GPU has too little memory for this; a smaller --data.batch_size needs less"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def explain(error: BaseException | None) -> str | None:
    """Puts an error, or what led to it, into one line, if it is something that the user can fix.

    Args:
        error: Any error.

    Returns:
        The line; None for an error in this project or in code of the user's own, of which the traceback says more.
    """
    if error is None:
        return None
    if isinstance(error, UserError):
        # torch passes an error of a loader worker on with the worker's traceback in front of it
        return re.split(r"[\w.]+\.engine\.errors\.\w+: ", str(error))[-1].strip()
    if isinstance(error, OSError) and (text := _of_system(error)) is not None:
        return text
    if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
        return WORKER_DIED
    if isinstance(error, torch.OutOfMemoryError):
        return TOO_LARGE
    if isinstance(error, RuntimeError) and re.search("Connection (closed|reset) by peer", str(error)):
        return LOST
    if (text := _of_resuming(error)) is not None:
        return text
    if (text := _of_lightning(error)) is not None:
        return text
    return explain(error.__cause__ or error.__context__) or _of_jsonargparse(error)


def _of_system(error: OSError) -> str | None:
    if error.errno in NO_ROOM:
        return f"cannot write: {error.strerror}; make room"
    if error.errno == errno.EFBIG:
        name = f" '{error.filename}'" if error.filename else ""
        return f"cannot write{name}: {error.strerror}; raise the limit (ulimit -f)"
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        return f"{error.strerror}; raise the limit (ulimit -n, ulimit -u), or give fewer --data.num_workers"
    return None


def _of_resuming(error: BaseException) -> str | None:
    """What a run cannot be resumed from: a state in the checkpoint that is not what Lightning, torch or we restore."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    restoring = [
        at for at, frame in enumerate(frames) if modules[at] == _RESTORES and "restore" in frame.f_code.co_name
    ]
    ours = bool(modules) and modules[-1].startswith(("lightning.", "torch.", "project."))
    if not (restoring and ours and isinstance(error, _ODD_STATE)):
        return None
    path = frames[restoring[0]].f_locals["self"].trainer.ckpt_path
    reason = printable(f"{type(error).__name__}: {first_sentence(error)}")
    return f"'{path}' cannot be resumed from: a state in it is missing or odd ({reason}); use another --name"


_RESTORES = "lightning.pytorch.trainer.connectors.checkpoint_connector"
_ODD_STATE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


def _of_lightning(error: BaseException) -> str | None:
    """What Lightning refuses, or what fails within one of its callbacks, loggers or profilers, and in which."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MisconfigurationException):
        return text
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "project":
        return f"the package '{error.name}' is not installed ({text})" if error.name else text
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__")) for frame in frames]
    if _is_refusal(error, modules):
        return _with_component(text, frames[-1].f_locals.get("self"))
    while modules and modules[-1].partition(".")[0] in _CALLED_BY_COMPONENTS:
        modules.pop()
    if modules and modules[-1].startswith(_COMPONENTS):
        return _with_component(text, frames[len(modules) - 1].f_locals.get("self"))
    return None


_COMPONENTS = tuple(f"lightning.pytorch.{kind}." for kind in ("callbacks", "loggers", "profilers", "tuner"))
_CALLED_BY_COMPONENTS = {"torch", "fsspec", *sys.stdlib_module_names}


def _is_refusal(error: BaseException, modules: list[str]) -> bool:
    """Whether Lightning itself has raised an error of a kind that it raises where it refuses something.

    Its module ``core`` speaks to those who write a LightningModule, whom the traceback tells more.
    """
    refuses = isinstance(error, RuntimeError | ValueError | TypeError | NotImplementedError)
    raised_by = modules[-1] if modules else ""
    return refuses and raised_by.startswith("lightning.") and not raised_by.startswith("lightning.pytorch.core.")


def _of_jsonargparse(error: BaseException) -> str | None:
    """What it says of a class among those that an option takes, where its chain of errors follows another of them."""
    found = re.search(r"Problem with given class_path '(?:\w+\.)*(\w+)':\s*(.+)", str(error))
    if found is None:  # where it builds the callables that an option lists
        found = re.search(r"Errors:\s+- (?!Does not)(.+)[\s\S]+?class_path='(?:\w+\.)*(\w+)'", str(error))
        return f"{found[2]}: {found[1]}" if found else None
    return f"{found[1]}: {found[2]}"


def _with_component(text: str, component: object) -> str:
    name = type(component).__name__
    is_option = isinstance(component, Callback | Logger | Profiler)
    return f"{name}: {text}" if is_option and name not in text else text
