"""Files that commands write, whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

from lightkeeper.exact import UserError


def require_of_kind(path: Path, suffix: str, option: str = "--output") -> None:
    """Refuses to replace a file of another kind, such as an image, or a run's metrics."""
    is_of_run = path.name == "metrics.json" and (path.parent / "checkpoints").is_dir()
    if path.exists() and (is_of_run or path.suffix.lower() != suffix):
        kind = "a run's own" if is_of_run else f"no {suffix} file"
        raise UserError(f"'{path}' is there already, and {kind}; name another", option)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file; an older one, or that which a link names, is replaced once this is whole."""
    with TemporaryDirectory(dir=path.resolve().parent, prefix=".partial_") as folder:
        Path(folder, path.name).write_bytes(content)
        Path(folder, path.name).replace(path.resolve())
