"""Files that commands write, whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

from lightkeeper.exact import UserError


def require_of_kind(path: Path, suffix: str) -> None:
    """Refuses to replace a file of another kind, such as an image or a run's metrics."""
    if path.exists() and path.suffix.lower() != suffix:
        raise UserError(
            f"'{path}' is there already, and no {suffix} file; name another", "--output"
        )


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file; an older one, or that which a link names, is replaced once this is whole."""
    with TemporaryDirectory(dir=path.resolve().parent, prefix=".partial_") as folder:
        Path(folder, path.name).write_bytes(content)
        Path(folder, path.name).replace(path.resolve())
