"""Files that options name."""

import os
from pathlib import Path
from typing import Any

from ..errors import UserError

CSV: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
"""Arguments of ``open`` for files of rows."""


def output_file(
    option: str, name: str | Path | None, default: Path = Path(), overwrite: bool = True
) -> Path:
    """Returns the file that an option names, which can be written.

    Args:
        option: The option's name.
        name: Its value.
        default: The file if there is no value. Its folder may be from elsewhere, so that it must
            not be a link.
        overwrite: If false, the file must be new.

    Raises:
        UserError: The file cannot be written, or is there already.
    """
    if name is None and default.is_symlink():
        raise UserError(f"'{default}' is a link; remove it, or choose another file with {option}")
    path = Path(name or default)
    if path.exists() and not overwrite:
        raise UserError(f"{option}: '{path}' is there already; --overwrite replaces it")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{option}: '{path}' cannot be written; is its folder there?")
    return path
