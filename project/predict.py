"""``python -m project.predict``: labels image files with a checkpoint."""

import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from project.analysis.labelling import Dealer, HandOver, Labeller, label_columns
from project.analysis.tables import writing
from project.analysis.unfinished import Finished, PredictionsFile
from project.engine.cli.arguments import IMPORT, import_named
from project.engine.cli.command import one_line_errors, quiet_libraries, settle_trainer
from project.engine.cli.explain import explain
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import LocalError, UserError, printable, require
from project.engine.hardware import usable_cores
from project.engine.loading.files import prepare
from project.engine.loading.path_batches import PathLoader
from project.engine.loading.scan import image_paths, listed_paths
from project.engine.run.progress import Progress
from project.engine.run.rows import Row, RowWriter, TextRows, writing_rows
from project.model import ImageClassifier

_ON_SHEET = 64
_PIPE_CLOSED = 128 + signal.SIGPIPE


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.predict",
        description="Labels image files with a checkpoint. Writes a row for each, in their order: path, label, confidence"
        " from 0 to 1, and why a file cannot be read. Ends with code 0; with code 1 where files could not be read,"
        " which have rows too; with code 2 where the command itself cannot work.",
        epilog="example: python -m project.predict runs/mine/checkpoints/best.ckpt photos --output labels.csv",
    )
    parser.add_argument(
        "--ckpt_path", type=str | None, default=None, help="The checkpoint; without the option's name, the first path."
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=str,
        help="Files; folders, in which images are looked for at any depth; - for a list on standard input, a path a line"
        " or with NUL between them.",
    )
    parser.add_argument(
        "--output",
        type=str | None,
        default=None,
        help="A file that ends with .csv, .jsonl or .parquet; by default CSV goes to standard output.",
    )
    parser.add_argument("--top_k", type=int, default=1, help="How many classes to name, the most probable first.")
    parser.add_argument(
        "--flips",
        action="store_true",
        help="Take the mean of the logits of each image and its mirror image, where the model does not already.",
    )
    parser.add_argument("--sheet", type=str | None, default=None, help=f"A PNG file for the first {_ON_SHEET} images.")
    parser.add_argument(
        "--resume", action="store_true", help="Continue --output where the same command was interrupted."
    )
    parser.add_argument("--import", **IMPORT)
    parser.add_argument("--overwrite", action="store_true", help="Replace files that are there already.")
    parser.add_argument("--batch_size", type=int, default=64, help="Images that each device sees at a time.")
    parser.add_argument(
        "--num_workers",
        type=int | None,
        default=None,
        help="Processes that load images, for each device; by default one less than the cores there are, at most 8.",
    )
    parser.add_argument("--trainer.accelerator", type=str, default="auto", help="cpu, gpu or another one.")
    parser.add_argument("--trainer.devices", type=int | str, default="auto", help="How many devices to use.")
    options = parser.parse_args(args)
    if options.ckpt_path is None and options.paths:
        options.ckpt_path, *options.paths = options.paths
    if options.ckpt_path is None or not options.paths:
        parser.error("name a checkpoint and then images or folders, or - for a list on standard input; see --help")
    return options


def predict(options: Namespace) -> int:
    """Labels files, and writes a row for each.

    Args:
        options: As :func:`parse` returns them.

    Returns:
        The exit code: 0, or 1 where files could not be read.

    Raises:
        UserError: An option has no acceptable value, there are no files, or the output cannot be written.
    """
    import_named(options["import"])
    model = ImageClassifier.load_from_checkpoint(options.ckpt_path)
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
    _require_sound(options, len(model.class_names))
    trainer = _trainer(options)
    if not trainer.is_global_zero:
        _label(options, model, trainer, iter(()))
        return 0
    columns, file = label_columns(options.top_k), _file(options)
    if file is not None and options.resume and file.is_finished():
        finished = file.whole(columns, _first_of(options), _ON_SHEET)
        if trainer.world_size > 1:  # the others have joined the group, and wait to be told that nothing is left
            _label(options, model, trainer, finished.left)
        if options.sheet is not None:
            _draw_sheet(options.sheet, model, finished.first)
        sys.stderr.write(
            f"'{printable(file.path)}' has a row for each file already, {finished.done:,} in all; which checkpoint and"
            " --flips they are of is not compared\n"
        )
        return 1 if finished.unreadable else 0
    finished = Finished(0, 0, 0, [], _first_of(options))
    if file is not None and options.resume:
        finished = file.finished(columns, finished.left, options.batch_size * trainer.world_size, _ON_SHEET)
    total = None if "-" in options.paths else sum(1 for _ in _paths(options, quietly=True))
    with _writer(options, file, finished.begin) as writer:
        report = _Report(writer, Progress(total, finished.done), finished)
        _label(options, model, trainer, finished.left, report)
    if options.sheet is not None:
        _draw_sheet(options.sheet, model, report.first)
    sys.stderr.write(report.summary(options.output))
    return 1 if report.unreadable else 0


def _require_sound(options: Namespace, classes: int) -> None:
    require(options.batch_size >= 1, "--batch_size", options.batch_size, "at least 1")
    workers = options.num_workers
    require(workers is None or workers >= 0, "--num_workers", workers, "0 or more")
    require(1 <= options.top_k <= classes, "--top_k", options.top_k, f"from 1 to {classes}, the number of classes")
    if options.resume and options.output is None:
        raise UserError("--resume needs an --output, where it finds what was written")
    sheet = options.sheet
    if sheet is not None and Path(sheet).exists() and not (options.overwrite or options.resume):
        raise UserError(f"--sheet: '{printable(sheet)}' is there already; --overwrite replaces it")
    if sheet is not None and not sheet.lower().endswith(".png"):
        raise UserError(f"--sheet must end with .png, got '{printable(sheet)}'")
    if sheet is not None and not Path(sheet).absolute().parent.is_dir():
        raise UserError(f"--sheet: '{printable(sheet)}' cannot be written (there is no such folder)")


def _trainer(options: Namespace) -> Trainer:
    devices = options.trainer.devices
    try:
        trainer = Trainer(
            accelerator=options.trainer.accelerator,
            devices=int(devices) if str(devices).lstrip("-").isdigit() else devices,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ModuleNotFoundError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"these --trainer options do not work here: {' '.join(str(error).split())}") from error
    settle_trainer(trainer, lambda: "run the same command again, with --resume where it has an --output")
    return trainer


def _file(options: Namespace) -> PredictionsFile | None:
    if options.output is None:
        return None
    file = PredictionsFile(options.output, options.ckpt_path, (options.top_k, options.flips))
    if options.overwrite and not options.resume:
        file.remove_others()
    elif not options.resume:
        file.require_new()
    return file


def _writer(options: Namespace, file: PredictionsFile | None, begin: int) -> AbstractContextManager[RowWriter]:
    columns = label_columns(options.top_k)
    if file is None:
        sys.stdout.flush()
        out = open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115  # unlike print, it tells of a closed pipe
        return nullcontext(TextRows(out, columns, shown=sys.stdout.isatty()))
    return writing_rows(
        "--output", file.path, columns, file.partial, begin, "; the same command with --resume continues"
    )


def _paths(options: Namespace, quietly: bool = False) -> Iterator[str]:
    def note(text: str) -> None:
        if not quietly:
            sys.stderr.write(f"note: {printable(text)}\n")

    for path in options.paths:
        yield from image_paths(listed_paths(sys.stdin.buffer) if path == "-" else [path], note)


def _first_of(options: Namespace) -> Iterator[str]:
    """The paths, of which there is one at least."""
    paths = _paths(options)
    if (first := next(paths, None)) is None:
        named = ", ".join("standard input" if path == "-" else f"'{printable(path)}'" for path in options.paths)
        raise UserError(f"there are no images in {named}")
    return chain([first], paths)


class _Report:
    """Takes the rows: writes them, says how many there are, and keeps the first for the contact sheet.

    Args:
        writer: Writes them.
        progress: Counts them.
        finished: What an earlier command has written.

    Attributes:
        unreadable: How many files could not be read.
        first: The first rows with their paths.
    """

    def __init__(self, writer: RowWriter, progress: Progress, finished: Finished) -> None:
        self._writer, self._progress = writer, progress
        self.unreadable, self.first = finished.unreadable, finished.first

    def take(self, rows: list[Row], paths: list[str]) -> None:
        """Takes the rows of a batch."""
        self._writer.write(rows)
        self._progress.advance(len(rows))
        self.unreadable += sum(row["error"] is not None for row in rows)
        self.first += [*zip(paths, rows, strict=True)][: _ON_SHEET - len(self.first)]

    def close(self) -> None:
        """Ends the progress bar."""
        self._progress.close()

    def summary(self, output: str | None) -> str:
        """A line for the end."""
        many = f"{self.unreadable:,} files" if self.unreadable > 1 else "1 file"
        unreadable = f"; {many} cannot be read, as the column 'error' says" if self.unreadable else ""
        place = f": {printable(output)}" if output is not None else ""
        return f"labelled {self._progress.summary()}{unreadable}{place}\n"


def _label(
    options: Namespace, model: ImageClassifier, trainer: Trainer, paths: Iterator[str], report: _Report | None = None
) -> None:
    """Labels files; all processes do, and the first one reports."""
    size, workers = options.batch_size, options.num_workers
    dealer = Dealer(trainer, paths, size)
    take = report.take if report is not None else lambda *_: None
    trainer.callbacks.append(HandOver(dealer, model.class_names, size, take))  # type: ignore[attr-defined]
    if workers is None:
        workers = min(8, max(1, usable_cores() // trainer.num_devices - 1))
    pinned = trainer.strategy.root_device.type == "cuda"
    loader = PathLoader(iter(dealer), model.preprocessing, size, workers, pinned, trainer.num_devices)
    try:
        trainer.predict(Labeller(model, options.top_k), dataloaders=loader, return_predictions=False)
    except SystemExit as end:  # Lightning's answer to Ctrl-C, with a code that stands for unreadable files here
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from end
        raise
    finally:
        if report is not None:
            report.close()


def _draw_sheet(sheet: str, model: ImageClassifier, rows: list[tuple[str, Row]]) -> None:
    from project.analysis.plots import image_grid  # matplotlib takes a while to import

    readable = [(path, row) for path, row in rows if row["error"] is None]
    images = [prepare(path, model.preprocessing) for path, _ in readable]
    titles = [f"{row['label']}\n{float(row['confidence']):.1%}" for _, row in readable]
    with writing("--sheet", sheet):
        image_grid(images, titles).savefig(sheet, format="png")


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
    with one_line_errors():
        try:
            sys.exit(predict(parse()))
        except BrokenPipeError:  # as where head has seen enough
            sys.exit(_PIPE_CLOSED)
        except Exception as error:
            if text := explain(error):  # the options have shorter names here
                kind = UserError if type(error) is UserError else LocalError
                raise kind(text.replace("--data.", "--")) from error
            raise


if __name__ == "__main__":
    main()
