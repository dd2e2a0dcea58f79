"""``python -m project.predict``: label image files with a checkpoint."""

import fcntl
import math
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, distributed
from torch.utils.data import DataLoader

from project.analysis.prediction import choices, ranked, several_labels
from project.analysis.tables import named, require_writable
from project.engine.cli.entry import one_line_errors
from project.engine.cli.parser import CommandParser, import_modules
from project.engine.cli.trainer import ExactTrainer, built_trainer
from project.engine.commands.predictions import QUIET
from project.engine.errors import UserError, printable, require
from project.engine.hardware import usable_cores
from project.engine.loading.files import PathBatch, path_loader
from project.engine.loading.scan import image_paths, listed_paths, spelt
from project.engine.preprocessing import Bands, bands_of
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.engine.run.progress import Progress, note
from project.engine.run.rows import Row, RowWriter, ending_of, resume_rows
from project.model import ImageClassifier
from project.model.test_time import evaluation_logits

_PIPE_CLOSED = 128 + signal.SIGPIPE


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = CommandParser(
        prog="python -m project.predict",
        description="Labels image files with a checkpoint. Writes a row for each, in their order: path, label, confidence"
        " from 0 to 1, and why a file cannot be read. Ends with code 0; with code 1 where files could not be read,"
        " which have rows too; with code 2 where the command itself cannot work.",
        epilog="example: python -m project.predict runs/mine/checkpoints/best.ckpt photos --output labels.csv",
    )
    option = parser.add_argument
    option("checkpoint", type=str, help="The checkpoint.")
    paths = "Files, folders with images at any depth, or - for a list on standard input."
    option("paths", nargs="+", type=str, help=paths)
    option(
        "--output",
        type=str | None,
        help="A .csv or .jsonl file; by default CSV goes to standard output.",
    )
    option("--top_k", type=PositiveInt, default=1, help="How many classes to name, best first.")
    probabilities = "Add a column for each class; implied where images may have several."
    option("--probabilities", action="store_true", help=probabilities)
    coverage = "Add labels, a set that holds the true class of this share of images like the validation set's."
    option("--coverage", type=float | None, help=coverage)
    abstain = "Leave label empty where the confidence is less."
    option("--abstain", type=ClosedUnitInterval, default=0.0, help=abstain)
    flips = "Average each image with its mirror image, if the model does not already."
    option("--flips", action="store_true", help=flips)
    option(
        "--resume", action="store_true", help="Skip files that have a row in --output, and append."
    )
    option("--overwrite", action="store_true", help="Replace files that are there already.")
    parser.add_import()
    option(
        "--batch_size", type=PositiveInt, default=64, help="Images that each device sees at a time."
    )
    option(
        "--num_workers",
        type=NonNegativeInt | None,
        help="Processes that load images, for each device.",
    )
    option("--trainer.accelerator", type=str, default="auto", help="cpu, gpu or another one.")
    option("--trainer.devices", type=int | str, default="auto", help="How many devices to use.")
    return parser.parse_args(args)


def cells(
    model: ImageClassifier, options: Namespace, logits: Tensor, probabilities: Tensor
) -> dict[str, list[Any]]:
    """Returns what rows say of images, by column; of no images, the names of these columns."""
    names, found = model.class_names, dict[str, list[Any]]()
    orders = ranked(model, logits, probabilities)
    for attribute, order in orders.items():
        values = {position: value for value, position in choices(model)[attribute].items()}
        best = order[:, : options.top_k]
        places = zip(best.T.tolist(), probabilities.gather(1, best).T.tolist(), strict=True)
        for place, (positions, shares) in enumerate(places, 1):
            name = (f"_{attribute}" if attribute else "") + (f"_{place}" if place > 1 else "")
            least = options.abstain if place == 1 else 0.0
            pairs = zip(positions, shares, strict=True)
            found[f"label{name}"] = [
                values[position] if share >= least else None for position, share in pairs
            ]
            found[f"confidence{name}"] = shares
    if options.coverage is not None:
        sizes = (logits.softmax(1) >= options.threshold).sum(1)
        sets = zip(orders[""].tolist(), sizes.tolist(), strict=True)
        found["labels"] = [[names[position] for position in order[:size]] for order, size in sets]
    elif several_labels(model):
        found["labels"] = [
            named(decided, names) for decided in model.predicted(probabilities).tolist()
        ]
    if options.probabilities:
        found |= {
            f"probability_{name}": shares
            for name, shares in zip(names, probabilities.T.tolist(), strict=True)
        }
    return found


def coverage_threshold(options: Namespace, model: ImageClassifier) -> float:
    """Returns the softmax that a class needs to join a set of ``--coverage``, from the checkpoint."""
    require(0.5 <= options.coverage <= 0.99, "--coverage", options.coverage, "from 0.5 to 0.99")
    if not model.has_one_class:
        raise UserError(
            "--coverage: sets are for images of one class; these have several labels or attributes"
        )
    if model.test_time_augmentation is not None:
        raise UserError(
            "--coverage: thresholds are of one view of each image, not of test-time augmentation's"
        )
    thresholds: Any = read_checkpoint(options.checkpoint)[ABOUT].get("coverage")
    percent = math.ceil(100 * options.coverage - 1e-9)
    threshold = thresholds.get(percent) if isinstance(thresholds, dict) else None
    if not (isinstance(threshold, float) and 0 <= threshold <= 1):
        raise UserError(
            f"--coverage: '{options.checkpoint}' was not saved at a validation; use the run's best.ckpt"
        )
    return threshold


class Labeller(LightningModule):
    """Labels image files, which it deals to the processes in turns, and writes a row for each, in their order.

    Only the first process knows the paths, and has a ``writer``, which writes behind the ``earlier`` rows.
    """

    def __init__(
        self,
        model: ImageClassifier,
        options: Namespace,
        paths: Sequence[str] = (),
        writer: RowWriter | None = None,
        earlier: Sequence[Row] = (),
    ) -> None:
        super().__init__()
        self.model, self._options, self._paths, self._writer = model, options, paths, writer
        self.progress = Progress(
            len(earlier) + len(paths), len(earlier), visible=writer is not None
        )
        self.unreadable = sum(row["error"] is not None for row in earlier)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Loads this process's files in their order; each process has as many, the last of which may be None."""
        paths, world_size = self.trainer.strategy.broadcast(self._paths), self.trainer.world_size
        padding = (
            -len(paths) % world_size if paths else world_size
        )  # Lightning warns of an empty loader
        mine = [*paths, *[None] * padding][self.trainer.global_rank :: world_size]
        devices, workers = self.trainer.num_devices, self._options.num_workers
        if workers is None:
            workers = min(8, max(1, usable_cores() // devices - 1))
        return path_loader(
            mine, self.model.preprocessing, self._options.batch_size, workers, devices
        )

    def predict_step(self, batch: PathBatch) -> list[Row]:
        """Makes a row for each file."""
        logits = evaluation_logits(self.model, batch.images).float()
        probabilities, rows = self.model.probabilities(logits), list[Row]()
        found = cells(self.model, self._options, logits, probabilities)
        finite = probabilities.isfinite().all(1).tolist()
        for at, (path, error) in enumerate(zip(batch.paths, batch.errors, strict=True)):
            error = error or (None if finite[at] else "the network's output is not finite")
            if path is not None:
                labels = {name: None if error else column[at] for name, column in found.items()}
                rows.append({"path": spelt(path), **labels, "error": error})
        return rows

    def on_predict_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Brings a batch of each process together; files were dealt in turns, so their rows come in turns."""
        of_ranks = [outputs] * self.trainer.world_size
        if len(of_ranks) > 1:  # Lightning can only broadcast the rows of each process to all
            distributed.gather_object(outputs, of_ranks if self._writer is not None else None)
        if self._writer is not None:
            rows = [row for turn in zip_longest(*of_ranks) for row in turn if row is not None]
            self._writer.write(rows)
            self.progress.advance(len(rows))
            self.unreadable += sum(row["error"] is not None for row in rows)


def predict(options: Namespace) -> int:
    """Labels files, and writes a row for each; returns the exit code, 1 where files could not be read."""
    import_modules(options["import"])
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
    several, classes = several_labels(model), min(map(len, choices(model).values()))
    require(
        options.top_k <= classes,
        "--top_k",
        options.top_k,
        f"at most {classes}, the number of classes",
    )
    left_out = "left out: images may have several classes"
    require(not (several and options.abstain), "--abstain", options.abstain, left_out)
    options.probabilities = options.probabilities or several
    options.threshold = None if options.coverage is None else coverage_threshold(options, model)
    trainer = built_trainer(ExactTrainer, **options.trainer, **QUIET, use_distributed_sampler=False)
    if not trainer.is_global_zero:
        return _label(trainer, Labeller(model, options))
    _require_output(options)  # here, as Lightning starts other processes when the file is there
    paths = _paths(options, bands_of(model.preprocessing))
    nothing = torch.empty(0, len(model.class_names))
    columns = ["path", *cells(model, options, nothing, nothing), "error"]
    with _output(options, columns) as (writer, earlier):
        done, left = Counter(row["path"] for row in earlier), []
        for path in paths:
            done[spelt(path)] -= 1
            left += [path] if done[spelt(path)] < 0 else []
        labeller = Labeller(model, options, left, writer, earlier)
        code = _label(trainer, labeller)
    unreadable = (
        f"; {labeller.unreadable:,} cannot be read, as the column 'error' says"
        if labeller.unreadable
        else ""
    )
    place = f": {options.output}" if options.output is not None else ""
    note(f"labelled {labeller.progress.summary()}{unreadable}{place}")
    return code


def _label(trainer: Trainer, labeller: Labeller) -> int:
    try:
        trainer.predict(labeller, return_predictions=False)
    except (
        SystemExit
    ) as end:  # Lightning's answer to Ctrl-C, with a code that stands for unreadable files here
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from end
        raise
    finally:
        labeller.progress.close()
    return 1 if labeller.unreadable else 0


def _require_output(options: Namespace) -> None:
    if options.resume and options.overwrite:
        raise UserError("--resume continues what --overwrite replaces; give one of them")
    if options.resume and options.output is None:
        raise UserError("--resume needs an --output, where it finds what was written")
    if options.output is not None:
        ending_of("--output", options.output)
        if Path(options.output).exists() and not (options.overwrite or options.resume):
            there = f"'{printable(options.output)}' is there already"
            raise UserError(f"--output: {there}; --overwrite replaces it, --resume continues it")
        require_writable("--output", options.output)


def _paths(options: Namespace, bands: Bands | None) -> list[str]:
    found: list[str] = []
    for name in options.paths:
        listed = listed_paths(sys.stdin.buffer) if name == "-" else [name]
        found += image_paths(listed, note=lambda text: note(f"note: {text}"), bands=bands)
    if not found:
        raise UserError(f"there are no images in {', '.join(map(printable, options.paths))}")
    return found


@contextmanager
def _output(options: Namespace, names: list[str]) -> Iterator[tuple[RowWriter, list[Row]]]:
    """Opens the output, which no other process may be writing, and reads the rows to keep."""
    if options.output is None:  # unlike print, this file tells of a closed pipe
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            yield RowWriter(out, names, on_terminal=sys.stdout.isatty()), []
        return
    with open(options.output, "a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--output: another process writes '{printable(options.output)}'"
            ) from None
        if not options.resume:
            file.truncate(0)
        ending = ending_of("--output", options.output)
        earlier = resume_rows(file, names, ending)
        yield RowWriter(file, names, ending), earlier


def main() -> None:
    """Runs the command."""
    warnings.filterwarnings("ignore", module="PIL")  # on what it gets over
    with one_line_errors():
        try:
            sys.exit(predict(parse()))
        except BrokenPipeError:  # as where head has seen enough
            sys.exit(_PIPE_CLOSED)


if __name__ == "__main__":
    main()
