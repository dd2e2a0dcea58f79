"""Workings of ``predict``: a row for each image file, in their order."""

import csv
import io
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TextIO, cast

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from torch import Tensor
from tqdm import tqdm

from ..exact._errors import LINES, UserError, note, printable
from ..exact._files import whole_file
from ..images._data_module import ImageDataModule
from ..images._files import FileDataset, why_unreadable
from ..images._predictions import QUIET
from ..images._preprocessing import Preprocessing, bands_of
from ..images._progress import progress_bar
from ..images._quiet import quiet_libraries
from ..images._scan import image_paths, listed_paths, to_nfc
from ._folder import take_lock
from ._trainer import ExactTrainer

_COMPARED = 32
"""Rows of an earlier run to compare; other options may leave a few of them as they are."""
_CONFIDENCE = 2  # the column behind path and label
_PIPE_CLOSED = 128 + signal.SIGPIPE
_CSV: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
"""Arguments of ``open`` for files of rows."""

Columns = Callable[[Tensor], dict[str, object]]
"""Makes the columns of an image from its probabilities, float32 (classes,), on the CPU."""


def label_files(model: Any, columns: Columns, options: Namespace) -> int:
    """Labels files and writes a row for each, as the options of ``predict`` say.

    Args:
        model: The model; ``--embeddings`` needs its ``network_head``.
        columns: Makes the columns of an image from its probabilities, float32 (classes,), on the
            CPU. The path precedes them, and why a file cannot be read follows.
        options: The command's options.

    Returns:
        The exit code: 1 if files could not be read, else 0.
    """
    quiet_libraries()  # again, as Lightning sets its loggers' levels when it is imported
    warnings.filterwarnings("ignore", module="PIL", category=UserWarning)  # on what it gets over
    warnings.filterwarnings("ignore", message="Total length .* is zero")  # with --resume
    writer = RowWriter(columns)
    if options.embeddings is not None:
        model.network_head.register_forward_pre_hook(
            lambda _, inputs: writer.seen.append(inputs[0])
        )
    trainer = ExactTrainer(**options.trainer, **QUIET, callbacks=[writer])
    files = NamedFiles(
        model.preprocessing, options.batch_size * trainer.world_size, options.num_workers
    )
    predict = partial(trainer.predict, model, datamodule=files, return_predictions=False)
    if not trainer.is_global_zero:
        predict()
        return 0
    output = options.output
    if options.resume and (output is None or options.embeddings is not None or options.overwrite):
        raise UserError(
            "--resume needs --output, whose rows it continues; it cannot continue --embeddings,"
            " nor --overwrite what it continues"
        )
    _require_new("--output", output, options.overwrite or options.resume)
    _require_new("--embeddings", options.embeddings, options.overwrite)
    paths = _listed(options, model)
    header = ["path", *columns(torch.zeros(len(model.class_names))), "error"]
    earlier = resume_rows(output, header) if options.resume and os.path.exists(output) else []
    done = {row[0]: row for row in earlier}
    ours = [path for path in paths if to_nfc(path) in done]  # other rows may be others', too
    # compared with their new rows, in case of another checkpoint or other options: the least sure
    # one, whose label --abstain may leave out, and the newest
    least = sorted(ours, key=lambda path: _number(done[to_nfc(path)][_CONFIDENCE]))[:1]
    compared = [*dict.fromkeys([*least, *ours[-_COMPARED:]])]
    writer.earlier = {to_nfc(path): done[to_nfc(path)] for path in compared}
    files.paths = [*compared, *(path for path in paths if to_nfc(path) not in done)]
    writer.unreadable = sum(row[-1] != "" for row in earlier)
    # unlike print, a descriptor tells of a closed pipe
    target = output or sys.stdout.fileno()
    try:
        with (
            open(target, "a" if output else "w", 1, closefd=target is output, **_CSV) as file,
            progress_bar(len(paths), len(earlier)) as writer.bar,
        ):
            if output and os.path.isfile(output):
                _claim(file, output, has_rows=bool(earlier))
            lines = file if output else PrintableLines(file)
            writer.rows = csv.DictWriter(lines, header, lineterminator="\n")
            if not earlier:
                writer.rows.writeheader()
            predict()
    except BrokenPipeError:  # as where head has seen enough
        return _PIPE_CLOSED
    if options.embeddings is not None:
        with whole_file(Path(options.embeddings)) as part, open(part, "wb") as array:
            _save(array, torch.stack(writer.embeddings).numpy())
    count = writer.unreadable
    broken = f"; {count:,} cannot be read, as the column 'error' says" if count else ""
    labelled = len(earlier) + len(files.paths) - len(compared) - count
    note(f"labelled {labelled:,} images{broken}{f': {output}' if output else ''}")
    return 1 if count else 0


def _claim(file: TextIO, path: str | os.PathLike[str], has_rows: bool) -> None:
    """Keeps other processes out of a file, which is emptied unless its rows stay."""
    with suppress(OSError):  # of a file system without locks
        if not take_lock(file.fileno()):
            raise UserError(f"--output: another process is writing '{printable(path)}'")
    if not has_rows:
        file.truncate(0)


def _save(file: BinaryIO, array: np.ndarray) -> None:
    """Writes an array as ``np.save``, whose error of a full disk lacks the system's number."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.data)


def _listed(options: Namespace, model: Any) -> list[str]:
    """Lists the files that the options name, in folders and on standard input, too."""
    stream = {"-": listed_paths(sys.stdin.buffer)} if "-" in options.paths else {}
    named = [path for name in options.paths for path in stream.get(name, [name])]
    bands = bands_of(model.preprocessing)
    paths = list(image_paths(named, lambda text: note(f"note: {text}"), bands))
    if not paths:
        raise UserError(f"there are no images in {', '.join(options.paths)}")
    return paths


class PrintableLines:
    """Writes lines to standard output, without characters that control a terminal.

    Names of classes are a checkpoint's, and names of files may be anyone's.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Writes text."""
        return self._file.write(printable(text, keep=LINES))


class NamedFiles(ImageDataModule):
    """Image files in their order, whose ``paths`` only the first process knows."""

    class_names: ClassVar[list[str]] = []  # the model's, and nobody asks

    def __init__(
        self, preprocessing: Preprocessing, batch_size: int, num_workers: int | None
    ) -> None:
        super().__init__(batch_size, num_workers)
        self.paths: list[str] = []
        self._preprocessing = preprocessing

    @property
    def preprocessing(self) -> Preprocessing:
        """The model's."""
        return self._preprocessing

    def load(self) -> dict[str, FileDataset]:
        """Opens the files; those that cannot be read have the label -1."""
        trainer = cast(Trainer, self.trainer)
        paths = trainer.strategy.broadcast(self.paths)
        # each process has as many, as all gather each batch
        paths = [*paths, *[""] * (-len(paths) % trainer.world_size)]
        labels = torch.zeros(len(paths))
        return {"test": FileDataset(paths, labels, self.preprocessing, skip=True)}


class RowWriter(Callback):
    """Gathers what all processes have computed; the first one writes a row for each file.

    Lightning's ``BasePredictionWriter`` gathers nothing.

    Attributes:
        rows: Writes the rows, in the first process.
        bar: Shows their number, likewise.
        seen: The inputs of the network's head in this batch, if embeddings are wanted.
        embeddings: The input for each file, float32 (features,), likewise.
        unreadable: The number of files that could not be read.
        earlier: Rows of an earlier run, by path, which must be predicted again alike.
    """

    rows: "csv.DictWriter[str]"
    bar: tqdm

    def __init__(self, columns: Columns) -> None:
        self.seen: list[Tensor] = []
        self.embeddings: list[Tensor] = []
        self.unreadable = 0
        self.earlier: dict[str, list[str]] = {}
        self._columns = columns

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Tensor,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes the rows of a batch of each process, in the order of the files."""
        _require_probabilities(outputs, (len(batch.indices), len(pl_module.class_names)))
        fields = [batch.indices, batch.labels, outputs.float()]
        if self.seen:
            # of the first view; a single image is computed as two
            features = self.seen[0][: len(outputs)].float().flatten(1)
            fields.append(features.masked_fill(batch.labels[:, None] < 0, math.nan))
            self.seen.clear()
        fields = [pl_module.all_gather(field).view(-1, *field.shape[1:]).cpu() for field in fields]
        if not trainer.is_global_zero:
            return
        paths = trainer.datamodule.paths  # type: ignore[attr-defined]  # set by a loop
        for place in fields[0].argsort().tolist():
            index, label, probabilities, *vector = (field[place] for field in fields)
            if index < len(paths):
                row: dict[str, object] = {"path": to_nfc(paths[index])}
                if label < 0:
                    row["error"] = why_unreadable(paths[index], pl_module.preprocessing)
                else:
                    row |= self._columns(probabilities)
                if (before := self.earlier.pop(str(row["path"]), None)) is not None:
                    _require_same(before, [row.get(name) for name in self.rows.fieldnames])
                    continue
                self.rows.writerow(row)
                self.bar.update()  # type: ignore[no-untyped-call]
                self.embeddings += vector
                self.unreadable += "error" in row


def _require_probabilities(outputs: object, shape: tuple[int, int]) -> None:
    """Refuses what a model's own ``predict_step`` may return, such as a dict."""
    found = type(outputs).__name__
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point() and outputs.shape == shape:
            return
        found = f"{outputs.dtype} {tuple(outputs.shape)}".removeprefix("torch.")
    raise UserError(
        f"predict_step must return probabilities, float (N, classes), here {shape}, got {found}"
    )


def resume_rows(path: str | os.PathLike[str], header: list[str]) -> list[list[str]]:
    """Reads the rows of a file, and removes an interrupted last one from it."""
    with open(path, "r+", newline="", encoding="utf-8", errors="replace") as file:
        _claim(file, path, has_rows=True)  # or another's file would be replaced under it
        rows = _whole_rows(file.read(), path, header)
        with whole_file(Path(path)) as partial, open(partial, "w", **_CSV) as whole:
            csv.writer(whole, lineterminator="\n").writerows(rows)
    return rows[1:]


def _whole_rows(text: str, path: str | os.PathLike[str], header: list[str]) -> list[list[str]]:
    """Returns the rows of a file's text, its header the first, without an interrupted last one."""
    is_cut = not text.endswith("\n") or text.count('"') % 2 == 1
    first = io.StringIO(newline="")
    csv.writer(first, lineterminator="\n").writerow(header)
    begin = first.getvalue()
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))[: -1 if is_cut else None]
    except csv.Error:  # of a field that is too long to be ours
        rows = [[]]
    if not begin.startswith(text[: len(begin)]) or {*map(len, rows)} - {len(header)}:
        raise UserError(
            f"--resume: '{printable(path)}' has other rows or columns; --overwrite begins anew"
        )
    return rows


def _number(cell: str) -> float:
    """Returns a confidence; 1 for a file that could not be read, and for other text."""
    try:
        return float(cell)
    except ValueError:
        return 1.0


def _require_same(before: list[str], row: list[object]) -> None:
    """Requires a row that is there already, but for a number's last digits, as on other devices."""
    for old, new in zip(before, row, strict=True):
        with suppress(ValueError):  # of text in place of a number
            if isinstance(new, np.floating) and math.isclose(float(old), new, abs_tol=1e-3):
                continue
        if old != ("" if new is None else str(new)):
            raise UserError(
                f"--resume: '{printable(before[0])}' would have another row now, as by another"
                " checkpoint or other options; --overwrite begins anew"
            )


def _require_new(option: str, path: str | os.PathLike[str] | None, overwrite: bool) -> None:
    """Refuses the file of an option that is there already, unless it may be replaced."""
    if path is not None and os.path.exists(path) and not overwrite:
        raise UserError(f"{option}: '{path}' is there already; --overwrite replaces it")
