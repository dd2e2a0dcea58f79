"""``python -m project.predict``: label image files with a checkpoint."""

import fcntl
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch.utils.data import DataLoader

from project.analysis.prediction import ranked
from project.analysis.tables import require_writable, writing
from project.engine.cli.command import one_line_errors, prepare_trainer, quiet_libraries
from project.engine.cli.command_line import IMPORT, import_modules
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError, printable, require
from project.engine.hardware import usable_cores
from project.engine.loading.files import prepare
from project.engine.loading.path_batches import PathBatch, path_loader
from project.engine.loading.scan import image_paths, listed_paths, spelt
from project.engine.run.progress import Progress
from project.engine.run.rows import Row, RowWriter, ending_of, resume_rows
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
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument(
        "paths",
        nargs="+",
        type=str,
        help="Files; folders, in which images are looked for at any depth; - for a list on standard input, a path a line"
        " or with NUL between them.",
    )
    parser.add_argument(
        "--output",
        type=str | None,
        default=None,
        help="A file that ends with .csv or .jsonl; by default CSV goes to standard output.",
    )
    parser.add_argument("--top_k", type=PositiveInt, default=1, help="How many classes to name, best first.")
    parser.add_argument(
        "--flips",
        action="store_true",
        help="Take the mean of the logits of each image and its mirror image, where the model does not already.",
    )
    parser.add_argument("--sheet", type=str | None, default=None, help=f"A PNG file for the first {_ON_SHEET} images.")
    parser.add_argument("--resume", action="store_true", help="Skip files that have a row in --output, and append.")
    parser.add_argument("--import", **IMPORT)
    parser.add_argument("--overwrite", action="store_true", help="Replace files that are there already.")
    parser.add_argument("--batch_size", type=PositiveInt, default=64, help="Images that each device sees at a time.")
    parser.add_argument(
        "--num_workers",
        type=NonNegativeInt | None,
        default=None,
        help="Processes that load images, for each device; by default one less than the cores there are, at most 8.",
    )
    parser.add_argument("--trainer.accelerator", type=str, default="auto", help="cpu, gpu or another one.")
    parser.add_argument("--trainer.devices", type=int | str, default="auto", help="How many devices to use.")
    return parser.parse_args(args)


def label_columns(top_k: int = 1) -> list[str]:
    """Returns the columns of rows that name ``top_k`` classes of each image."""
    places = ["", *(f"_{place}" for place in range(2, top_k + 1))]
    return ["path", *(f"{name}{place}" for place in places for name in ("label", "confidence")), "error"]


class Paths(LightningDataModule):
    """Image files, dealt to the processes in turns; only the first process needs to know them.

    Args:
        paths: The files, in the first process.
        model: Says how they are prepared.
        options: As :func:`parse` returns them.
    """

    def __init__(self, paths: Sequence[str], model: ImageClassifier, options: Namespace) -> None:
        super().__init__()
        self._paths, self._model, self._options = paths, model, options

    def setup(self, stage: str) -> None:
        """Takes this process's files; every process has equally many, some of which may be None at the end."""
        assert self.trainer is not None
        paths, world_size = self.trainer.strategy.broadcast(self._paths), self.trainer.world_size
        padding = -len(paths) % world_size if paths else world_size  # Lightning warns of an empty loader
        padded = [*paths, *[None] * padding]
        self._mine = padded[self.trainer.global_rank :: world_size]

    def predict_dataloader(self) -> DataLoader[Any]:
        """Loads this process's files in their order."""
        assert self.trainer is not None
        devices, workers = self.trainer.num_devices, self._options.num_workers
        if workers is None:
            workers = min(8, max(1, usable_cores() // devices - 1))
        pinned = self.trainer.strategy.root_device.type == "cuda"
        preprocessing = self._model.preprocessing
        return path_loader(self._mine, preprocessing, self._options.batch_size, workers, pinned, devices)


class Labeller(LightningModule):
    """Labels batches of image files.

    Args:
        model: The classifier.
        top_k: How many classes of each image are named.
    """

    def __init__(self, model: ImageClassifier, top_k: int) -> None:
        super().__init__()
        self.model, self._columns, self._top_k = model, label_columns(top_k), top_k

    def predict_step(self, batch: PathBatch) -> list[Row | None]:
        """Makes a row for each file."""
        labels, confidences = (field[:, : self._top_k].tolist() for field in ranked(self.model, batch.images))
        rows: list[Row | None] = []
        for path, error, best, values in zip(batch.paths, batch.errors, labels, confidences, strict=True):
            if path is None:
                rows.append(None)
                continue
            if error is None and not all(0 <= value <= 1 for value in values):
                error = "the network's output is not finite"
            named = [
                part
                for label, value in zip(best, values, strict=True)
                for part in (self.model.class_names[label], value)
            ]
            found = [None] * len(named) if error else named
            rows.append(dict(zip(self._columns, [spelt(path), *found, error], strict=True)))
        return rows


class Writer(BasePredictionWriter):
    """Writes the rows of all processes, in the order of the files, and counts them.

    Args:
        rows: Where the first process writes them.
        earlier: The rows that an earlier command wrote.
        total: How many files there are.
    """

    def __init__(self, rows: RowWriter | None, earlier: Sequence[Row], total: int) -> None:
        super().__init__(write_interval="batch")
        self._rows, self.progress = rows, Progress(total, len(earlier))
        self.first = list(earlier[:_ON_SHEET])
        self.unreadable = sum(row["error"] is not None for row in earlier)

    def write_on_batch_end(self, trainer: Trainer, pl_module: LightningModule, prediction: Any, *_: Any) -> None:
        """Brings a batch of each process together; files were dealt in turns, so their rows come in turns."""
        of_ranks = [trainer.strategy.broadcast(prediction, src=rank) for rank in range(trainer.world_size)]
        if self._rows is not None:
            rows = [row for turn in zip(*of_ranks, strict=True) for row in turn if row is not None]
            self._rows.write(rows)
            self.progress.advance(len(rows))
            self.unreadable += sum(row["error"] is not None for row in rows)
            self.first += rows[: _ON_SHEET - len(self.first)]


def predict(options: Namespace) -> int:
    """Labels files, and writes a row for each.

    Args:
        options: As :func:`parse` returns them.

    Returns:
        The exit code: 0, or 1 where files could not be read.

    Raises:
        UserError: An option has no acceptable value, there are no files, or the output cannot be written.
    """
    import_modules(options["import"])
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
    _require_sound(options, len(model.class_names))
    trainer = _trainer(options)
    if not trainer.is_global_zero:
        return _label(trainer, Paths([], model, options), Labeller(model, options.top_k), Writer(None, [], 0))
    paths = list(_paths(options))
    with _rows(options) as (rows, earlier):
        left, done = [], Counter(row["path"] for row in earlier)
        for path in paths:
            if done[spelt(path)]:
                done[spelt(path)] -= 1
            else:
                left.append(path)
        writer = Writer(rows, earlier, len(earlier) + len(left))
        code = _label(trainer, Paths(left, model, options), Labeller(model, options.top_k), writer)
    if options.sheet is not None:
        _draw_sheet(options.sheet, model, writer.first)
    unreadable = f"; {writer.unreadable:,} cannot be read, as the column 'error' says" if writer.unreadable else ""
    place = f": {printable(options.output)}" if options.output is not None else ""
    sys.stderr.write(f"labelled {writer.progress.summary()}{unreadable}{place}\n")
    return code


def _label(trainer: Trainer, paths: Paths, labeller: Labeller, writer: Writer) -> int:
    trainer.callbacks.append(writer)  # type: ignore[attr-defined]  # set by a connector
    try:
        trainer.predict(labeller, datamodule=paths, return_predictions=False)
    except SystemExit as end:  # Lightning's answer to Ctrl-C, with a code that stands for unreadable files here
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from end
        raise
    finally:
        writer.progress.close()
    return 1 if writer.unreadable else 0


def _require_sound(options: Namespace, classes: int) -> None:
    require(options.top_k <= classes, "--top_k", options.top_k, f"at most {classes}, the number of classes")
    if options.resume and options.output is None:
        raise UserError("--resume needs an --output, where it finds what was written")
    if options.output is not None:
        ending_of("--output", options.output)
    for name in ("output", "sheet"):
        path = options[name]
        if path is not None and Path(path).exists() and not (options.overwrite or options.resume):
            resume = ", --resume continues it" if name == "output" else ""
            raise UserError(f"--{name}: '{printable(path)}' is there already; --overwrite replaces it{resume}")
        if path is not None:
            require_writable(f"--{name}", path)


def _trainer(options: Namespace) -> Trainer:
    devices = options.trainer.devices
    try:
        trainer = Trainer(
            accelerator=options.trainer.accelerator,
            devices=int(devices) if str(devices).lstrip("-").isdigit() else devices,
            use_distributed_sampler=False,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ModuleNotFoundError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"these --trainer options do not work here: {' '.join(str(error).split())}") from error
    prepare_trainer(trainer)
    return trainer


def _paths(options: Namespace) -> Iterator[str]:
    none = True
    for named in options.paths:
        for path in image_paths(
            listed_paths(sys.stdin.buffer) if named == "-" else [named],
            note=lambda text: sys.stderr.write(f"note: {printable(text)}\n"),
        ):
            none = False
            yield path
    if none:
        raise UserError(f"there are no images in {', '.join(map(printable, options.paths))}")


@contextmanager
def _rows(options: Namespace) -> Iterator[tuple[RowWriter, list[Row]]]:
    """Opens the output, which no other process may be writing, and reads the rows to keep."""
    columns = label_columns(options.top_k)
    if options.output is None:  # unlike print, this file tells of a closed pipe
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            yield RowWriter(out, columns, on_terminal=sys.stdout.isatty()), []
        return
    with open(options.output, "a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--output: another process writes '{printable(options.output)}'") from None
        ending, earlier = ending_of("--output", options.output), list[Row]()
        if options.resume:
            earlier = resume_rows(file, columns, ending)
        else:
            file.truncate(0)
            file.seek(0)
        yield RowWriter(file, columns, ending), earlier


def _draw_sheet(sheet: str, model: ImageClassifier, rows: Sequence[Row]) -> None:
    from project.analysis.plots import image_grid  # matplotlib takes a while to import

    readable = [row for row in rows if row["error"] is None]
    images = [prepare(row["path"], model.preprocessing) for row in readable]
    titles = [f"{row['label']}\n{float(row['confidence']):.1%}" for row in readable]
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


if __name__ == "__main__":
    main()
