"""Workings of ``predict``: a row for each image file, in their order."""

import csv
import io
import math
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule, Trainer
from torch import Tensor
from tqdm import tqdm

from ..cli.command import ExactTrainer
from ..cli.entry import quiet_libraries
from ..errors import UserError, printable
from ..hardware import loader_workers
from ..loading.files import FileDataset, why_unreadable
from ..loading.scan import image_paths, listed_paths, spelt
from ..loading.workers import LazyDataLoader, image_loader
from ..preprocessing import Preprocessing, bands_of
from ..run.files import whole_file
from ..run.progress import note, progress_bar
from ..training.module import ClassifierModule
from ..training.predictions import QUIET
from ..training.sampler import EvaluationSampler
from .output import CSV, output_file

_PIPE_CLOSED = 128 + signal.SIGPIPE


def label_files(model: ClassifierModule, options: Namespace) -> int:
    """Labels files and writes a row for each, as the options of ``predict`` say.

    Args:
        model: The model; ``--embeddings`` needs its ``network_head``.
        options: The command's options.

    Returns:
        The exit code: 1 if files could not be read, else 0.
    """
    quiet_libraries()  # again, as Lightning sets its loggers' levels when it is imported
    warnings.filterwarnings("ignore", module="PIL", category=UserWarning)  # on what it gets over
    warnings.filterwarnings("ignore", message="Total length .* is zero")  # with --resume
    files = NamedFiles(model.preprocessing, options)
    writer = RowWriter(files, options)
    trainer = ExactTrainer(**options.trainer, **QUIET, callbacks=[writer])
    predict = partial(trainer.predict, model, datamodule=files, return_predictions=False)
    if not trainer.is_global_zero:
        predict()
        return 0
    if options.resume and (options.output is None or options.embeddings is not None):
        raise UserError("--resume needs --output, whose rows it continues, and no --embeddings")
    output = options.output and output_file(
        "--output", options.output, overwrite=options.overwrite or options.resume
    )
    embeddings = options.embeddings and output_file(
        "--embeddings", options.embeddings, overwrite=options.overwrite
    )
    paths = _listed(options, model)
    columns = [*_row(options, model, "", 0, torch.zeros(len(model.class_names))), "error"]
    earlier = resume_rows(output, columns) if options.resume and output.exists() else []
    done = {row[0] for row in earlier}
    files.paths = [path for path in paths if spelt(path) not in done]
    writer.unreadable = sum(row[-1] != "" for row in earlier)
    # unlike print, a descriptor tells of a closed pipe
    target = output or sys.stdout.fileno()
    mode = "a" if earlier else "w"
    try:
        with (
            open(target, mode, buffering=1, closefd=target is output, **CSV) as file,
            progress_bar(len(paths), len(earlier)) as writer.bar,
        ):
            writer.rows = csv.DictWriter(file, columns, lineterminator="\n")
            if not earlier:
                writer.rows.writeheader()
            predict()
    except BrokenPipeError:  # as where head has seen enough
        return _PIPE_CLOSED
    except SystemExit as end:  # Lightning's code for Ctrl-C is that of unreadable files here
        raise KeyboardInterrupt from end
    if embeddings:
        with open(embeddings, "wb") as file:
            np.save(file, torch.stack(writer.embeddings).numpy())
    count = writer.unreadable
    broken = f"; {count:,} cannot be read, as the column 'error' says" if count else ""
    labelled = len(earlier) + len(files.paths) - count
    note(f"labelled {labelled:,} images{broken}{f': {output}' if output else ''}")
    return 1 if count else 0


def _listed(options: Namespace, model: ClassifierModule) -> list[str]:
    """Lists the files that the options name, in folders and on standard input, too."""
    stream = {"-": listed_paths(sys.stdin.buffer)} if "-" in options.paths else {}
    named = [path for name in options.paths for path in stream.get(name, [name])]
    bands = bands_of(model.preprocessing)
    paths = list(image_paths(named, lambda text: note(f"note: {text}"), bands))
    if not paths:
        raise UserError(f"there are no images in {', '.join(options.paths)}")
    return paths


class NamedFiles(LightningDataModule):
    """Image files in their order, whose ``paths`` only the first process knows."""

    def __init__(self, preprocessing: Preprocessing, options: Namespace) -> None:
        super().__init__()
        self.paths: list[str] = []
        self._preprocessing = preprocessing
        self._options = options

    def predict_dataloader(self) -> LazyDataLoader:
        """Deals the files out in turns; those that cannot be read have the label -1."""
        trainer = cast(Trainer, self.trainer)
        paths = trainer.strategy.broadcast(self.paths)
        # each process has as many, as all gather each batch
        paths = [*paths, *[""] * (-len(paths) % trainer.world_size)]
        labels = torch.zeros(len(paths))
        dataset = FileDataset(paths, labels, self._preprocessing, skip=True)
        order = torch.arange(len(paths))
        sampler = EvaluationSampler(order, trainer.world_size, trainer.global_rank)
        workers = self._options.num_workers
        if workers is None:
            workers = loader_workers(trainer.num_devices)
        is_pinned = torch.cuda.is_available()
        size = self._options.batch_size
        return image_loader(dataset, size, workers, 2, sampler=sampler, pin_memory=is_pinned)


class RowWriter(Callback):
    """Gathers what all processes have computed; the first one writes a row for each file.

    Lightning's ``BasePredictionWriter`` gathers nothing.

    Attributes:
        rows: Writes the rows, in the first process.
        bar: Shows their number, likewise.
        embeddings: What the network's head has seen, if wanted.
        unreadable: The number of files that could not be read.
    """

    rows: "csv.DictWriter[str]"
    bar: tqdm

    def __init__(self, files: NamedFiles, options: Namespace) -> None:
        self.embeddings: list[Tensor] = []
        self.unreadable = 0
        self._files = files
        self._options = options
        self._seen: list[Tensor] = []

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Keeps what the network's head sees, if embeddings are wanted."""
        if self._options.embeddings is not None:
            head = pl_module.network_head
            head.register_forward_pre_hook(lambda _, inputs: self._seen.append(inputs[0]))

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes the rows of a batch of each process, in the order of the files."""
        fields = [batch.indices, batch.labels, outputs.float()]
        if self._seen:
            # of the first view; a single image is computed as two
            features = self._seen[0][: len(outputs)].float().flatten(1)
            fields.append(features.masked_fill(batch.labels[:, None] < 0, math.nan))
            self._seen.clear()
        fields = [pl_module.all_gather(field).view(-1, *field.shape[1:]).cpu() for field in fields]
        if not trainer.is_global_zero:
            return
        for place in fields[0].argsort().tolist():
            index, label, probabilities, *vector = (field[place] for field in fields)
            if index < len(self._files.paths):
                path = self._files.paths[index]
                row = _row(self._options, pl_module, path, int(label), probabilities)
                self.rows.writerow(row)
                self.bar.update()  # type: ignore[no-untyped-call]
                self.embeddings += vector
                self.unreadable += "error" in row


def _row(
    options: Namespace, model: ClassifierModule, path: str, label: int, probabilities: Tensor
) -> dict[str, object]:
    """Returns the row of an image, by column; a number is a float32, which has the shortest text."""
    row: dict[str, object] = {"path": spelt(path)}
    if label < 0:
        return row | {"error": why_unreadable(path, model.preprocessing)}
    if not probabilities.isfinite().all():
        return row | {"error": "the network's output is not finite"}
    names = model.class_names
    shares = probabilities.numpy()
    predicted = model.predicted(probabilities[None])[0]
    order = probabilities.argsort(descending=True, stable=True).tolist()
    if model.has_one_class:
        order.sort(key=lambda position: position != predicted)  # chosen perhaps by a threshold
    for place, position in enumerate(order[: options.top_k], 1):
        suffix = f"_{place}" if place > 1 else ""
        row |= {f"label{suffix}": names[position], f"confidence{suffix}": shares[position]}
    if shares[order[0]] < options.abstain:
        row["label"] = None
    if not model.has_one_class:
        row["labels"] = model.label_names(predicted)
    if options.probabilities or not model.has_one_class:
        named = zip(names, shares, strict=True)
        row |= {f"probability_{name}": share for name, share in named}
    return row


def resume_rows(path: Path, columns: list[str]) -> list[list[str]]:
    """Reads the rows of a file, and removes an interrupted last one from it."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        text = file.read()
    is_cut = not text.endswith("\n") or text.count('"') % 2 == 1
    rows = list(csv.reader(io.StringIO(text, newline="")))[: -1 if is_cut else None]
    if rows and (rows[0] != columns or {*map(len, rows)} != {len(columns)}):
        raise UserError(
            f"--resume: '{printable(path)}' has other rows or columns; --overwrite begins anew"
        )
    with whole_file(path) as partial, open(partial, "w", **CSV) as whole:
        csv.writer(whole, lineterminator="\n").writerows(rows)
    return rows[1:]
