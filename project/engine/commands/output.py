"""Files that options name: checked before minutes of work, and replaced as a whole."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..run.files import whole_file


class OutputFile:
    """The file that an option names, or else a default.

    Args:
        option: The option's name.
        path: Its value.
        default: The file if there is no value. It must not be a link, as it may lie in a folder from elsewhere.
    """

    def __init__(self, option: str, path: str | None, default: Path | None = None) -> None:
        if path is None and default is not None and default.is_symlink():
            raise UserError(
                f"'{default}' is a link; remove it, or choose another file with {option}"
            )
        self.path = Path(path or str(default))
        self._option = option

    def require_writable(self) -> None:
        """Checks that the file can be written, and leaves it as it is."""
        is_new = not self.path.exists()
        with self.one_line_errors(), open(self.path, "ab"):
            pass
        if is_new:
            self.path.resolve().unlink()  # the target of a link

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Yields a path to write to; a link is followed, a pipe or a terminal written to."""
        is_special = self.path.is_symlink() or (self.path.exists() and not self.path.is_file())
        context = nullcontext(self.path) if is_special else whole_file(self.path)
        with self.one_line_errors(), context as target:
            yield target

    def write_text(self, text: str) -> None:
        """Replaces the file; characters outside Unicode are escaped."""
        with self.replaced() as target:
            target.write_text(text, "utf-8", "backslashreplace")

    def write_json(self, content: dict[str, Any]) -> None:
        """Writes results for other programs."""
        self.write_text(json.dumps(content, indent=2) + "\n")

    @contextmanager
    def one_line_errors(self) -> Iterator[None]:
        """Raises a UserError that names the option if the file cannot be written."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._option}: '{self.path}' cannot be written ({error.strerror})"
            ) from error
