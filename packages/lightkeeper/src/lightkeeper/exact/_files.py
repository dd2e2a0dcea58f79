"""Files that appear whole or not at all, and the names of those in a run's folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from platform import node

CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"


def resumable(folder: str | Path) -> list[Path]:
    """Returns the checkpoints that a run in a folder may resume from, the newest first."""
    paths = [Path(folder, CHECKPOINTS, name) for name in (LAST, PREVIOUS)]
    return [path for path in paths if path.exists()]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a hidden path beside the target, to be written, which then replaces it atomically.

    If the block raises an error, the target stays as it was. A link is replaced, not followed. If
    several processes write one target, the last to end wins.
    """
    _remove_abandoned(path)
    partial = path.with_name(f".{path.stem}.{node()}-{os.getpid()}.partial{path.suffix}")
    partial.unlink(missing_ok=True)  # perhaps a link to elsewhere that came with the folder
    try:
        yield partial
        _fsync(partial)
        partial.replace(path)
        _fsync(path.parent)  # or a power cut could undo the rename
    except (OSError, RuntimeError) as error:
        # torch raises another one while it handles that of a full disk, for which none is named
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            cause.filename = cause.filename or str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes partial files of a target that killed processes of this machine have left."""
    begin = f".{path.stem}.{node()}-"
    end = f".partial{path.suffix}"
    for partial in path.parent.glob(f"{escape(begin)}*{escape(end)}"):
        # no process's number, or one of another user's process
        with suppress(ValueError, OverflowError, PermissionError):
            try:
                os.kill(int(partial.name.removeprefix(begin).removesuffix(end)), 0)
            except ProcessLookupError:
                partial.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file of text."""
    with whole_file(Path(path)) as partial:
        partial.write_text(text)
