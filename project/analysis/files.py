"""Files that commands write, whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file; an older one, or that which a link names, is replaced once this is whole."""
    with TemporaryDirectory(dir=path.resolve().parent, prefix=".partial_") as folder:
        Path(folder, path.name).write_bytes(content)
        Path(folder, path.name).replace(path.resolve())
