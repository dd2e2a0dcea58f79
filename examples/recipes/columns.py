"""Reads columns of a CSV that an example needs."""

import csv
from pathlib import Path

from lightkeeper.exact import UserError


def read_columns(file: str, option: str, *columns: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV; an error names the option that has named the file.

    Raises:
        UserError: There is no such file, or it lacks one of the columns.
    """
    if not Path(file).is_file():
        raise UserError(f"there is no file '{file}'", option)
    reader = csv.DictReader(Path(file).read_text("utf-8-sig").splitlines())
    names = reader.fieldnames or []
    if absent := [name for name in columns if name not in names]:
        raise UserError(f"'{file}' has no column {absent[0]}, but {', '.join(names)}", option)
    return list(reader)
