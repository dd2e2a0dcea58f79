"""One line for a mistake of the user or an error of the environment; None for a bug, whose traceback says more."""

import errno
import re
import sys
import traceback
from types import FrameType

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
    """Puts an error that the user can fix, or the one that caused it, into one line.

    Args:
        error: Any error.

    Returns:
        The line; None for a bug, in this project or in the user's own code.
    """
    if error is None:
        return None
    if isinstance(error, UserError):
        # torch passes an error of a loader worker on with the worker's traceback in front of it
        return re.split(r"[\w.]+\.engine\.errors\.\w+: ", str(error))[-1].strip()
    if isinstance(error, OSError) and (text := _of_system(error)) is not None:
        return text
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != _PACKAGE:
        return f"the package '{error.name}' is not installed ({' '.join(str(error).split())})"
    if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
        return WORKER_DIED
    if isinstance(error, torch.OutOfMemoryError):
        return TOO_LARGE
    if isinstance(error, RuntimeError) and re.search("Connection (closed|reset) by peer", str(error)):
        return LOST
    return _of_lightning(error) or explain(_reason(error)) or _of_jsonargparse(error)


def _reason(error: BaseException) -> BaseException | None:
    """Returns the error that Python would show above this one and that explains it.

    A package that code had done without, as in ``except ImportError``, is no reason for what happened afterwards.
    """
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return None if isinstance(error.__context__, ImportError) else error.__context__


def _of_system(error: OSError) -> str | None:
    if error.errno in NO_ROOM:
        return f"cannot write: {error.strerror}; make room"
    if error.errno == errno.EFBIG:
        name = f" '{error.filename}'" if error.filename else ""
        return f"cannot write{name}: {error.strerror}; raise the limit (ulimit -f)"
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        return f"{error.strerror}; raise the limit (ulimit -n, ulimit -u), or give fewer --data.num_workers"
    return None


def _of_lightning(error: BaseException) -> str | None:
    """Explains what Lightning refuses by itself, not on behalf of code that is neither its own nor the engine's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = next((at for at, frame in enumerate(frames) if _name(frame).startswith("lightning.")), len(frames))
    frames = frames[first:]
    if not frames or not all(_is_of_library(_name(frame)) for frame in frames):
        return None
    restoring = (frame for frame in frames if _name(frame) == _RESTORES and "restore" in frame.f_code.co_name)
    if (restore := next(restoring, None)) is not None and isinstance(error, _ODD_STATE):
        path, reason = restore.f_locals["self"].trainer.ckpt_path, f"{type(error).__name__}: {first_sentence(error)}"
        return f"'{path}' cannot be resumed from: a state in it is missing or odd ({printable(reason)}); use another --name"
    text = " ".join(str(error).split()) or type(error).__name__
    raised_by_lightning = _name(frames[-1]).startswith("lightning.")
    while not _name(frames[-1]).startswith("lightning."):
        frames.pop()
    if _name(frames[-1]).startswith(_COMPONENTS) or (raised_by_lightning and isinstance(error, _REFUSALS)):
        return _with_component(text, frames[-1].f_locals.get("self"))
    return None


_PACKAGE = __name__.partition(".")[0]
_ENGINE = __name__.rsplit(".", 2)[0]
_RESTORES = "lightning.pytorch.trainer.connectors.checkpoint_connector"
_ODD_STATE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_REFUSALS = (MisconfigurationException, RuntimeError, ValueError)
_COMPONENTS = tuple(f"lightning.pytorch.{kind}." for kind in ("callbacks", "loggers", "profilers"))
_LIBRARIES = {"lightning", "torch", "fsspec", *sys.stdlib_module_names}


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_of_library(module: str) -> bool:
    return module.startswith(f"{_ENGINE}.") or (module != "__main__" and module.partition(".")[0] in _LIBRARIES)


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
