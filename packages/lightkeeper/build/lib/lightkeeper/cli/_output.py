"""Files that commands write."""

import os
from typing import Any

from ..exact._errors import UserError

CSV: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
"""Arguments of ``open`` for files of rows."""


def require_new(option: str, path: str | os.PathLike[str] | None, overwrite: bool) -> None:
    """Refuses the file of an option that is there already, unless it may be replaced."""
    if path is not None and os.path.exists(path) and not overwrite:
        raise UserError(f"{option}: '{path}' is there already; --overwrite replaces it")
