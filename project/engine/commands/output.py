"""Files that options name."""

import os
from pathlib import Path
from typing import Any

from ..errors import UserError

CSV: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
"""Arguments of ``open`` for files of rows."""


def output_file(option: str, name: str | Path, overwrite: bool = True) -> Path:
    """Returns the file that an option names, which can be written.

    Raises:
        UserError: It cannot be written, or is there already and may not be replaced.
    """
    path = Path(name)
    if path.exists() and not overwrite:
        raise UserError(f"{option}: '{path}' is there already; --overwrite replaces it")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option}: '{path}' cannot be written; is its folder there?")
    return path


def default_file(path: Path) -> Path:
    """Returns a file in a folder that may be from elsewhere, which must not lead out of it."""
    if path.is_symlink():
        raise UserError(f"'{path}' is a link; remove it, or choose another file with --output")
    return path
