"""Commands on files, which import torch and Lightning only as they run, and their output."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from jsonargparse import Namespace

from ..cli.entry import run_command
from ..cli.parser import CommandParser
from ..errors import LINES, UserError, printable
from ..run.files import whole_file
from ..run.folder import read_metrics
from ..run.progress import note

if TYPE_CHECKING:
    from torch import nn

    from ..loading.data_module import ImageDataModule
    from ..training.module import ClassifierModule
    from .export import Exported


class FileCommand:
    """A command with options of its own.

    A subclass has its ``module``, and for ``--help`` a ``description`` and an ``example``.
    """

    module: ClassVar[str]
    description: ClassVar[str]
    example: ClassVar[str]

    def add_arguments(self, parser: CommandParser) -> None:
        """Adds the options."""

    def run(self, options: Namespace) -> int | None:
        """Runs the command and returns its exit code; None is 0."""
        raise NotImplementedError

    def parser(self) -> CommandParser:
        """Returns the parser of the options."""
        program = f"python -m {self.module}"
        example = f"example: {program} {self.example}"
        parser = CommandParser(
            prog=program, description=self.description, epilog=example, allow_abbrev=False
        )
        self.add_arguments(parser)
        return parser

    def parse(self, args: list[str] | None = None) -> Namespace:
        """Parses the command line, ``sys.argv`` by default."""
        return self.parser().parse_args(args)

    def say(self, text: str) -> None:
        """Prints a result; control characters are escaped."""
        print(printable(text, keep=LINES), flush=True)

    @classmethod
    def main(cls) -> NoReturn:
        """Runs the command as a program."""
        command = cls()
        cls.execute(lambda: command.run(command.parse()))

    execute = staticmethod(run_command)


class CheckpointCommand(FileCommand):
    """A command on a checkpoint of any of this package's models."""

    def model_class(self) -> "type[ClassifierModule]":
        """Imports what checkpoints may name, and returns the base class of models."""
        raise NotImplementedError

    def parser(self) -> CommandParser:
        """Adds ``--import``, for modules of the user's own."""
        parser = super().parser()
        parser.add_import()
        return parser


class PredictCommand(CheckpointCommand):
    """Labels image files with a checkpoint, and writes a row for each."""

    def run(self, options: Namespace) -> int:
        """Labels the files; returns 1 if some could not be read."""
        from .predict import label_files

        return label_files(self.model_class(), options)


class ExportCommand(CheckpointCommand):
    """Writes a checkpoint so that it classifies without this project, and compares both."""

    def network_of(self, model: "ClassifierModule") -> "nn.Module":
        """Returns a network from pixels to probabilities, which is exported.

        Its submodule ``network`` maps normalised images to logits.
        """
        raise NotImplementedError

    def card(
        self, model: "ClassifierModule", about: dict[str, Any], split: str, metrics: dict[str, Any]
    ) -> str:
        """Returns the model card of a folder, in Markdown.

        Args:
            model: The model.
            about: The checkpoint's facts about itself.
            split: ``test`` or ``val``; empty if nothing was measured.
            metrics: The newest metrics of that split.
        """
        raise NotImplementedError

    def show_results(self, exported: "Exported", options: Namespace) -> None:
        """Prints what the file takes and returns."""

    def run(self, options: Namespace) -> None:
        """Writes the file or folder."""
        from .export import export_model

        exported = export_model(self.model_class(), self.network_of, self.card, options)
        self.show_results(exported, options)


class ReportCommand(CheckpointCommand):
    """Writes a page about a finished run."""

    def sections(self, model: "ClassifierModule", data: "ImageDataModule") -> dict[str, Any]:
        """Measures the test set, and returns what the page shows of its images."""
        raise NotImplementedError

    def render(
        self, run: Path, about: dict[str, Any], metrics: dict[str, Any], sections: dict[str, Any]
    ) -> str:
        """Returns the page; ``sections`` has ``missing``, the reason, if there are no images."""
        raise NotImplementedError

    def run(self, options: Namespace) -> None:
        """Writes the page, and prints its path."""
        run = Path(os.path.abspath(options.run))  # resolving a loop of links would be an error
        output = OutputFile("--output", options.output, default=run / "report.html")
        metrics = read_metrics(run)
        output.require_writable()
        from ..loading.remembered import open_data
        from ..run.checkpoint import ABOUT, read_checkpoint

        checkpoint = run / "checkpoints" / "best.ckpt"
        about = read_checkpoint(checkpoint)[ABOUT]
        model = self.model_class().load_from_checkpoint(checkpoint)
        moved = {} if options.root is None else {"root": options.root}
        try:
            sections = self.sections(model, open_data(about, **moved))
        except UserError as error:
            note(f"without images: {error}")
            sections = {"missing": str(error)}
        output.write_text(self.render(run, about, metrics, sections))
        self.say(str(output.path))


class OutputFile:
    """The file that an option names, or else a default.

    Args:
        option: The option's name.
        path: Its value.
        default: The file if there is no value. It must not be a link, as its folder may be from
            elsewhere.
    """

    def __init__(self, option: str, path: str | None, default: Path | None = None) -> None:
        if path is None and default is not None and default.is_symlink():
            raise UserError(
                f"'{default}' is a link; remove it, or choose another file with {option}"
            )
        self.path = Path(path or str(default))
        self._option = option

    def require_new(self, overwrite: bool) -> None:
        """Checks that the file is not there, unless it may be replaced, and can be written."""
        if self.path.exists() and not overwrite:
            raise UserError(
                f"{self._option}: '{self.path}' is there already; --overwrite replaces it"
            )
        self.require_writable()

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
