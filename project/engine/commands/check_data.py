"""Workings of ``check_data``: a survey of every image, and whether training accepts the data."""

import re
import shlex
import warnings
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import Namespace

from ..cli.command_line import accepted
from ..cli.parser import CommandParser
from ..errors import UserError
from ..loading.check import leave_out, survey
from ..loading.image_files import ImageFilesDataModule
from ..run.progress import note
from .command import FileCommand, OutputFile

_OPTIONS = (
    "val_fraction",
    "test_fraction",
    "split_seed",
    "group",
    "label_from",
    "channels",
    "bits",
)
_OF_CSV = ("root", "path_column", "label_column", "split_column")


class CheckDataCommand(FileCommand):
    """Reads every image of a folder or a CSV once, and says whether ``fit`` can train on it.

    A subclass has the data modules of both, and prints.
    """

    folder_class: ClassVar[type[ImageFilesDataModule]]
    csv_class: ClassVar[type[ImageFilesDataModule]]

    def show_survey(self, layout: str, survey: dict[str, Any]) -> None:
        """Prints what is there."""

    def show_commands(self, flags: str) -> None:
        """Prints commands that train on the data, which the flags name."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the options, those of the data module of a CSV among them."""
        option = parser.add_argument
        option("data", type=str, help="A folder or a CSV, as --data of fit takes it.")
        output = "A JSON file for everything that was found."
        option("--output", type=str | None, default=None, help=output)
        others = accepted(self.csv_class).keys() - {*_OPTIONS, *_OF_CSV}
        parser.add_method_arguments(self.csv_class, "__init__", as_group=False, skip=others)

    def run(self, options: Namespace) -> int:
        """Checks, prints, and writes the JSON file; returns 1 if ``fit`` would refuse the data."""
        warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
        arguments = self._arguments(options)
        output = OutputFile("--output", options.output)
        if options.output is not None:
            output.require_writable()
        facts: dict[str, Any] = {"data": options.data}
        refusal = None
        try:
            self._check(arguments, facts)
        except UserError as error:  # whose options have shorter names here
            refusal = re.sub(r"^--data\.(root|file): ", "", str(error))
            refusal = re.sub(r"--data\.(?!on_bad_image)", "--", refusal)
        if options.output is not None:
            output.write_json(facts | {"trains": refusal is None, "refusal": refusal})
        if refusal is not None:
            note(f"error: {refusal}")
            return 1
        self.show_commands(self._flags(arguments, facts))
        return 0

    def _arguments(self, options: Namespace) -> dict[str, Any]:
        """Returns the arguments of the data module, the folder or file first."""
        defaults = accepted(self.csv_class)
        names = (*_OF_CSV, *_OPTIONS)
        changed = {name: options[name] for name in names if options[name] != defaults[name]}
        path = Path(options.data).expanduser()
        if path.is_file() or path.suffix.lower() in (".csv", ".tsv"):
            return {"file": options.data} | changed
        for name in changed:
            if name in _OF_CSV:
                raise UserError(f"--{name} requires a CSV, but '{options.data}' is none")
        return {"root": options.data} | changed

    def _check(self, arguments: dict[str, Any], facts: dict[str, Any]) -> None:
        """Adds to the facts, prints them, and raises a UserError if training would."""
        data_class = self.csv_class if "file" in arguments else self.folder_class
        data = data_class(**arguments)
        files = data.files()
        facts |= survey(data.images_root, files, data.bands)
        if "group" in arguments:
            facts["groups"] = len(data.splits_of_groups(files))
        self.show_survey(data.layout, facts)
        unreadable = {
            str(data.images_root / entry["file"]): entry["reason"] for entry in facts["unreadable"]
        }
        if unreadable:
            leave_out(files, unreadable)
            raise UserError(
                f"{len(unreadable):,} of {facts['images']:,} files cannot be read as images; repair"
                " or remove them, or skip them with --data.on_bad_image skip"
            )

    def _flags(self, arguments: dict[str, Any], facts: dict[str, Any]) -> str:
        """Returns the options of ``fit`` for this data, with a batch size that fits its images."""
        (_, path), *others = arguments.items()
        flags = [f"--data {shlex.quote(path)}"]
        flags += [f"--data.{name} {shlex.quote(str(value))}" for name, value in others]
        images = sum(counts["train"] for counts in facts["classes"].values())
        if images < accepted(self.csv_class)["batch_size"]:
            flags.append(f"--data.batch_size {max(1, images // 2)}")
        return " ".join(flags)
