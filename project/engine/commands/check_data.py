"""Workings of ``check_data``: a survey of every image, and whether training accepts the data."""

import json
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from ..cli.command_line import accepted
from ..errors import UserError
from ..loading.check import survey
from ..loading.image_files import ImageFilesDataModule
from .output import output_file


def check_images(
    options: Namespace,
    folder_class: type[ImageFilesDataModule],
    table_class: type[ImageFilesDataModule],
) -> dict[str, Any]:
    """Reads every image of a folder or a table once, and says whether ``fit`` can train on it.

    Args:
        options: ``data``; ``output``, a JSON file for all that was found; and arguments of the data
            module of a table.
        folder_class: The data module of a folder.
        table_class: The data module of a table.

    Returns:
        What :func:`..loading.check.survey` returns, ``layout``, and ``flags``, the options of
        ``fit`` for the data. ``refusal`` is None, or why ``fit`` would refuse the data.
    """
    warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
    output = options.output and output_file("--output", options.output)
    facts: dict[str, Any] = {"data": options.data, "refusal": None}
    try:
        _check(options, folder_class, table_class, facts)
    except UserError as error:  # whose options have shorter names here
        text = re.sub(r"^--data\.(root|file): ", "", str(error))
        facts["refusal"] = re.sub(r"--data\.(?!on_bad_image)", "--", text)
    facts["trains"] = facts["refusal"] is None
    if output:
        output.write_text(json.dumps(facts, indent=2) + "\n")
    return facts


def _check(
    options: Namespace,
    folder_class: type[ImageFilesDataModule],
    table_class: type[ImageFilesDataModule],
    facts: dict[str, Any],
) -> None:
    """Adds to the facts, and raises a UserError if training would refuse the data."""
    changed = {name: value for name, value in options.items() if value is not None}
    del changed["data"]
    changed.pop("output", None)
    path = Path(options.data).expanduser()
    if path.is_file() or path.suffix.lower() in (".csv", ".tsv"):
        data = table_class(file=options.data, **changed)
    elif others := changed.keys() - (accepted(folder_class).keys() - {"root"}):
        raise UserError(f"--{min(others)} requires a CSV, but '{options.data}' is none")
    else:
        data = folder_class(root=options.data, **changed)
    files = data.files()
    facts |= survey(data.images_root, files, data.bands) | {"layout": data.layout}
    if data.group is not None:
        facts["groups"] = len({file.group for file in files})
    images = sum(file.split == "train" for file in files)
    if images < data.batch_size:
        changed["batch_size"] = max(1, images // 2)
    flags = [f"--data.{name} {shlex.quote(str(value))}" for name, value in changed.items()]
    facts["flags"] = " ".join([f"--data {shlex.quote(options.data)}", *flags])
    if unreadable := facts["unreadable"]:
        raise UserError(
            f"{len(unreadable):,} of {facts['images']:,} files cannot be read as images; repair or"
            " remove them, or skip them with --data.on_bad_image skip"
        )
