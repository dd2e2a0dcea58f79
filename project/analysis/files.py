"""Files that commands write, whole or not at all."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from lightkeeper.exact import UserError

_RUN_FILES = {"metrics.json", "metrics.csv", "run.json"}
_FORMATS = {
    *(".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".npy", ".html", ".gz", ".zip"),
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".svg", ".pdf"),
    *(".npz", ".onnx", ".pt", ".pt2", ".pth", ".ckpt", ".safetensors", ".yaml", ".yml", ".py"),
    *(".md", ".tex", ".xls", ".ods", ".feather", ".h5", ".db"),
}


def require_format(path: Path, suffix: str, option: str = "--output") -> None:
    """Refuses a name that ends as another format's, such as .csv for a page of HTML."""
    if path.suffix.lower() in _FORMATS - {suffix}:
        raise UserError(f"'{path}' would be a {suffix} file: name it so", option)


def require_replaceable(path: Path, suffix: str, option: str = "--output") -> None:
    """Refuses to replace a file of another format, or a run's own metrics, or where none may be."""
    require_format(path, suffix, option)
    file = path.resolve()
    is_of_run = file.name in _RUN_FILES and (file.parent / "checkpoints").is_dir()
    if file.exists() and (is_of_run or file.suffix.lower() != suffix):
        kind = "a run's own" if is_of_run else f"no {suffix} file"
        raise UserError(f"'{path}' is there already, and {kind}; name another", option)
    if not os.access(file.parent, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise UserError(f"'{path}' may not be written; name another", option)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically; a link is followed, and what it leads to is replaced."""
    target = path.resolve()
    try:
        with TemporaryDirectory(dir=target.parent, prefix=".partial_") as folder:
            (partial := Path(folder, path.name)).write_bytes(content)
            if target.exists():
                partial.chmod(target.stat().st_mode)
            partial.replace(target)
    except OSError as error:  # which names a hidden file, or none
        error.filename = str(path)
        raise
