"""Files that commands write, whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

from lightkeeper.exact import UserError

_OF_RUN = {"metrics.json", "metrics.csv", "run.json"}
_FORMATS = {
    *(".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".npy", ".html", ".gz", ".zip"),
    *(".jpg", ".jpeg", ".png"),
}


def require_format(path: Path, suffix: str, option: str = "--output") -> None:
    """Refuses the name of a file of another format, which would not be written."""
    if path.suffix.lower() in _FORMATS - {suffix}:
        raise UserError(f"'{path}' would be a {suffix} file: name it so", option)


def require_of_kind(path: Path, suffix: str, option: str = "--output") -> None:
    """Refuses to replace a file of another kind, such as an image, or a run's metrics."""
    require_format(path, suffix, option)
    file = path.resolve()
    is_of_run = file.name in _OF_RUN and (file.parent / "checkpoints").is_dir()
    if file.exists() and (is_of_run or file.suffix.lower() != suffix):
        kind = "a run's own" if is_of_run else f"no {suffix} file"
        raise UserError(f"'{path}' is there already, and {kind}; name another", option)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file; an older one, or that which a link names, is replaced once this is whole."""
    with TemporaryDirectory(dir=path.resolve().parent, prefix=".partial_") as folder:
        Path(folder, path.name).write_bytes(content)
        Path(folder, path.name).replace(path.resolve())
