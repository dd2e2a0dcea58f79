"""Workings of ``predict``: a row for each image file, in their order."""

import math
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, distributed
from torch.utils.data import DataLoader

from ..cli.entry import quiet_libraries
from ..cli.trainer import ExactTrainer
from ..errors import UserError, require
from ..hardware import usable_cores
from ..loading.batch import ImageBatch
from ..loading.files import path_loader, why_unreadable
from ..loading.scan import image_paths, listed_paths, spelt
from ..preprocessing import bands_of
from ..run.progress import note, progress_bar
from ..run.rows import Row, RowWriter, open_vectors, resume_rows, write_vectors
from ..training.predictions import QUIET
from .command import OutputFile

_PIPE_CLOSED = 128 + signal.SIGPIPE


def label_files(model_class: Any, options: Namespace) -> int:
    """Labels files and writes a row for each, as the options of ``predict`` say.

    Args:
        model_class: The base class of models.
        options: The command's options.

    Returns:
        The exit code: 1 if files could not be read, else 0.
    """
    quiet_libraries()  # again, as Lightning sets its loggers' levels when it is imported
    warnings.filterwarnings("ignore", module="PIL", category=UserWarning)  # on what it gets over
    model = model_class.load_from_checkpoint(options.checkpoint)
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
    # the labeller deals the files itself
    trainer = ExactTrainer(**options.trainer, **QUIET, use_distributed_sampler=False)
    if not trainer.is_global_zero:
        return _run(trainer, Labeller(model, options))
    output = _output_of(options)  # here, as Lightning starts other processes when the file is there
    paths = _paths(options, model)
    nothing = torch.empty(0, len(model.class_names))
    columns = ["path", *cells(model, options, nothing), "error"]
    # unlike print, a descriptor tells of a closed pipe
    target = output.path if output else sys.stdout.fileno()
    is_resumed = options.resume and output is not None and output.path.exists()
    earlier = resume_rows(Path(options.output), columns) if is_resumed else []
    embeddings = _embeddings_of(options)
    vectors = open_vectors(embeddings.path) if embeddings else nullcontext()
    done = {row["path"] for row in earlier}
    left = [path for path in paths if spelt(path) not in done]
    try:
        with RowWriter.open(target, columns, append=is_resumed) as writer, vectors as vector_file:
            labeller = Labeller(model, options, left, writer, earlier, vector_file)
            code = _run(trainer, labeller)
    except BrokenPipeError:  # as where head has seen enough
        return _PIPE_CLOSED
    broken = f"; {labeller.unreadable:,} cannot be read, as the column 'error' says"
    place = f": {options.output}" if output else ""
    note(f"labelled {len(left):,} images{broken if labeller.unreadable else ''}{place}")
    return code


class Labeller(LightningModule):
    """Labels image files, dealt to the processes in turns, and writes a row for each, in order.

    Only the first process knows the paths and has a ``writer``, which appends to ``earlier`` rows,
    and with ``--embeddings`` the file of ``vectors``.
    """

    def __init__(
        self,
        model: Any,
        options: Namespace,
        paths: Sequence[str] = (),
        writer: RowWriter | None = None,
        earlier: Sequence[Row] = (),
        vectors: BinaryIO | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self._options = options
        self._paths = paths
        self._writer = writer
        self._vectors = vectors
        total = len(earlier) + len(paths)
        self.progress: Any = progress_bar(total, len(earlier), visible=writer is not None)
        self.unreadable = sum(row["error"] is not None for row in earlier)

    def predict_dataloader(self) -> DataLoader[Any]:
        """Loads this process's files in order; each process has as many, some perhaps empty."""
        paths = self.trainer.strategy.broadcast(self._paths)
        world_size = self.trainer.world_size
        # Lightning warns of an empty loader
        padding = -len(paths) % world_size if paths else world_size
        self._dealt = [*paths, *[""] * padding][self.trainer.global_rank :: world_size]
        workers = self._options.num_workers
        if workers is None:
            workers = min(8, max(1, usable_cores() // self.trainer.num_devices - 1))
        options = self._options
        return path_loader(self._dealt, self.model.preprocessing, options.batch_size, workers)

    def predict_step(self, batch: ImageBatch, batch_idx: int) -> list[dict[str, object]]:
        """Makes a row for each file, with its ``embedding``, which is empty if not wanted."""
        if self._options.embeddings is None:
            probabilities = self.model.predict_step(batch.images, batch_idx).float()
            embeddings = np.empty((len(probabilities), 0), np.float32)
        else:
            probabilities, features = self.model.probabilities_and_features(batch.images)
            features[batch.labels < 0] = math.nan
            embeddings = features.cpu().numpy()
        columns = cells(self.model, self._options, probabilities)
        finite = probabilities.isfinite().all(1).tolist()
        rows = list[dict[str, object]]()
        for at, label in enumerate(batch.labels.tolist()):
            path = self._dealt[int(batch.indices[at])]
            error = None
            if not path:
                continue
            if label < 0:
                error = why_unreadable(path, self.model.preprocessing)
            elif not finite[at]:
                error = "the network's output is not finite"
            labels = {name: None if error else column[at] for name, column in columns.items()}
            labels["embedding"] = embeddings[at]
            rows.append({"path": spelt(path), **labels, "error": error})
        return rows

    def on_predict_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Writes a batch of each process; files were dealt in turns, so their rows take turns."""
        of_ranks = [outputs] * self.trainer.world_size
        if len(of_ranks) > 1:
            # neither Lightning nor torchmetrics gathers texts, as paths and errors are
            distributed.gather_object(outputs, of_ranks if self._writer is not None else None)
        if self._writer is not None:
            rows = [row for turn in zip_longest(*of_ranks) for row in turn if row is not None]
            vectors = [row.pop("embedding") for row in rows]
            if self._vectors is not None:
                write_vectors(self._vectors, np.stack(vectors), len(self._paths))
            self._writer.write(rows)
            self.progress.update(len(rows))
            self.unreadable += sum(row["error"] is not None for row in rows)


def cells(model: Any, options: Namespace, probabilities: Tensor) -> dict[str, list[Any]]:
    """Returns what rows say of images, by column; of no images, the names of these columns."""
    columns: dict[str, list[Any]] = {}
    best = model.ranked(probabilities)[:, : options.top_k]
    places = zip(best.T.tolist(), probabilities.gather(1, best).T.tolist(), strict=True)
    for place, (positions, shares) in enumerate(places, 1):
        name = f"_{place}" if place > 1 else ""
        least = options.abstain if place == 1 else 0.0
        columns[f"label{name}"] = [
            model.class_names[position] if share >= least else None
            for position, share in zip(positions, shares, strict=True)
        ]
        columns[f"confidence{name}"] = shares
    if not model.has_one_class:
        columns["labels"] = [model.label_names(label) for label in model.predicted(probabilities)]
    if options.probabilities or not model.has_one_class:
        for name, shares in zip(model.class_names, probabilities.T.tolist(), strict=True):
            columns[f"probability_{name}"] = shares
    return columns


def _run(trainer: Trainer, labeller: Labeller) -> int:
    try:
        trainer.predict(labeller, return_predictions=False)
    except SystemExit as end:  # Lightning's code for Ctrl-C is that of unreadable files here
        if isinstance(end.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from end
        raise
    finally:
        labeller.progress.close()
    return 1 if labeller.unreadable else 0


def _output_of(options: Namespace) -> OutputFile | None:
    if options.output is None:
        require(not options.resume, "--output", None, "given for --resume, which continues it")
        return None
    return _new_file("--output", options.output, options.overwrite or options.resume)


def _embeddings_of(options: Namespace) -> OutputFile | None:
    if options.embeddings is None:
        return None
    expected = "left out with --resume, as rows that are there have none"
    require(not options.resume, "--embeddings", options.embeddings, expected)
    return _new_file("--embeddings", options.embeddings, options.overwrite)


def _new_file(option: str, path: str, may_exist: bool) -> OutputFile:
    output = OutputFile(option, path)
    output.require_new(may_exist)
    return output


def _paths(options: Namespace, model: Any) -> list[str]:
    bands = bands_of(model.preprocessing)
    paths: list[str] = []
    for name in options.paths:
        listed = listed_paths(sys.stdin.buffer) if name == "-" else [name]
        paths += image_paths(listed, note=lambda text: note(f"note: {text}"), bands=bands)
    if not paths:
        raise UserError(f"there are no images in {', '.join(options.paths)}")
    return paths
