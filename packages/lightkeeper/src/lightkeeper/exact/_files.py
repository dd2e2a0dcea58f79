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
    """Yields a hidden path beside the target to write to, which replaces it at the end.

    Where the block raises, the target stays as it was. A link is replaced, not followed. Of several
    processes that write one target, the last to end decides what it is.
    """
    _remove_left(path)
    partial = path.with_name(f".{path.stem}.{node()}-{os.getpid()}.partial{path.suffix}")
    partial.unlink(missing_ok=True)  # perhaps a link to elsewhere that came with the folder
    try:
        yield partial
        _wait_for_disk(partial)
        partial.replace(path)
        _wait_for_disk(path.parent)  # a rename is on the disk when its folder is
    except OSError as error:
        error.filename = error.filename or str(path)  # of a full disk, the system names none
        raise
    finally:
        partial.unlink(missing_ok=True)


def _remove_left(path: Path) -> None:
    """Removes what killed processes of this machine have left of a target."""
    begin = f".{path.stem}.{node()}-"
    end = f".partial{path.suffix}"
    for left in path.parent.glob(f"{escape(begin)}*{escape(end)}"):
        # it is no process's, or that of another user's
        with suppress(ValueError, OverflowError, PermissionError):
            try:
                os.kill(int(left.name.removeprefix(begin).removesuffix(end)), 0)
            except ProcessLookupError:
                left.unlink(missing_ok=True)


def _wait_for_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file of text."""
    with whole_file(Path(path)) as partial:
        partial.write_text(text)
