"""Writing a file so that it appears whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a path beside the target to write to; at the end, waits for the disk and renames.

    Args:
        path: The target, which is replaced. Where the block raises, it stays what it was.

    Yields:
        A hidden path in the same folder, with the same ending. What is there at the end of the block becomes the target.

    Raises:
        OSError: The file cannot be written, as on a full disk.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    partial.unlink(missing_ok=True)  # of a killed process, or a link to elsewhere that came with the folder
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
