"""Any Lightning project: killed runs end in the same bits, each sample is counted once."""

import multiprocessing
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightkeeper.exact import ExactDataLoader, ExactTraining, UserError, newest_checkpoint
from lightning.pytorch import LightningModule, Trainer
from sklearn.metrics import accuracy_score, average_precision_score, roc_auc_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.retrieval import RetrievalMAP, RetrievalPrecisionRecallCurve

from tests.toy import differences

from . import script

SCRIPT = Path(__file__).with_name("script.py")

KINDS: dict[str, dict[str, Any]] = {
    "one process": {},
    "workers, two validations an epoch": {"workers": 2, "checks": 0.5},
    "accumulation": {"accumulate": 3, "checks": 0.5},
    "two optimizers by hand": {"by_hand": 1},
    "two processes": {"devices": 2},
    "two processes, workers, accumulation": {"devices": 2, "workers": 1, "accumulate": 2},
}
PRELOADED = [
    *("lightning.pytorch", "torchmetrics.classification", "torch.utils.tensorboard"),
    *("lightkeeper.exact._last_checkpoint", "lightkeeper.exact._loader", "sklearn.metrics"),
]
KILLS = [(3, 7, 12, 20, 25, 31, 44), (5, 11, 24, 26, 38, 40, 47)]
"""Batches after which the first process is killed, of 48; one after the other."""


def run(folder: Path, dies: int = 0, **options: Any) -> int:
    """Runs the script; a run on one process in a fork of a process that has imported torch."""
    if options.get("devices", 1) > 1:
        chosen = [f"{name}={value}" for name, value in {**options, "dies": dies}.items()]
        command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *chosen]
        return subprocess.run(command, check=False, capture_output=True).returncode
    return in_a_fork(script.train, str(folder), dies, **options)


def in_a_fork(function: Callable[..., None], *args: object, **options: float) -> int:
    """Calls a function in a new process, which need not import torch; returns its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_with_forked_workers, args=(function, *args), kwargs=options)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _with_forked_workers(function: Callable[..., None], *args: object, **options: float) -> None:
    """Starts loader workers as a script does; a forkserver's child would start another server."""
    multiprocessing.set_start_method("fork", force=True)
    function(*args, **options)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves: its last checkpoint, without paths, and what its loggers wrote."""
    last = torch.load(newest_checkpoint(folder) or "", weights_only=True)
    scores = [last["callbacks"].pop(key)["best_model_score"] for key in [*last["callbacks"]]]
    events = EventAccumulator(
        str(folder / "tensorboard"), {"scalars": 0}, purge_orphaned_data=False
    ).Reload()
    curves = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    del last["loggers"]["ResumingTensorBoardLogger.1"]  # how many files there are
    rows = (folder / "csv" / "metrics.csv").read_text().splitlines()
    return {**last, "scores": scores, "csv": rows, "curves": curves}


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        # saved behind validations of the last epoch, whose counts stay
        ({"accumulate": 2, "checks": 0.5, "every": 3}, [(9, 38, 45)]),
        *(
            pytest.param(kind, KILLS, id=name, marks=pytest.mark.slow)
            for name, kind in KINDS.items()
        ),
    ],
)
def test_a_run_that_is_killed_again_and_again_ends_in_the_same_bits(options, runs, tmp_path):
    assert run(tmp_path / "whole", **options) == 0
    devices = options.get("devices", 1)
    for number, kills in enumerate(runs):
        folder = tmp_path / f"killed {number}"
        for batch in kills:
            # a rank has every second of the batches
            code = run(folder, batch // devices, **options)
            assert code == -signal.SIGKILL
        assert run(folder, **options) == 0
        assert differences(outcome(tmp_path / "whole"), outcome(folder)) == []


QUERIES = 2


class Scores(LightningModule):
    """Counts samples, and measures given probabilities with stock metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.auroc = MulticlassAUROC(3)
        self.retrieved = RetrievalMAP()
        self.curve = RetrievalPrecisionRecallCurve(max_k=2)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        probabilities, labels = batch
        self.accuracy.update(probabilities, labels)
        self.auroc.update(probabilities, labels)
        queries = (1000 * probabilities[:, 1]).long() % QUERIES
        for metric in (self.retrieved, self.curve):
            metric.update(probabilities[:, 0], labels == 0, queries)
        self.log_dict({"accuracy": self.accuracy, "auroc": self.auroc, "map": self.retrieved})
        self.log("count", float(len(labels)), reduce_fx="sum", sync_dist=True)
        self.log("mean", probabilities[:, 0].mean(), sync_dist=True)

    def on_test_epoch_end(self) -> None:
        precisions, _, _ = self.curve.compute()
        self.log("of two", precisions[1], sync_dist=True)


def measure(folder: str, devices: int, size: int) -> None:
    """Writes what a trainer measures of random scores on some processes."""
    generator = torch.Generator().manual_seed(size)
    probabilities = torch.rand(size, 3, generator=generator).softmax(1)
    labels = torch.randint(3, (size,), generator=generator)
    strategy = "ddp_fork" if devices > 1 else "auto"
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        callbacks=[ExactTraining()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(probabilities, labels)
    loader = ExactDataLoader(data, trainer, batch_size=4 * devices)
    [result] = trainer.test(Scores(), loader, verbose=False)
    torch.save((result, probabilities, labels), Path(folder, "result.pt"))


@pytest.mark.parametrize("devices", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [23, pytest.param(40, marks=pytest.mark.slow)])
def test_stock_metrics_count_each_sample_once_on_any_number_of_processes(devices, size, tmp_path):
    assert in_a_fork(measure, str(tmp_path), devices, size) == 0
    result, probabilities, labels = torch.load(tmp_path / "result.pt", weights_only=True)
    assert result["count"] == size
    assert result["mean"] == pytest.approx(probabilities[:, 0].double().mean().item(), abs=1e-6)
    assert result["accuracy"] == pytest.approx(accuracy_score(labels, probabilities.argmax(1)))
    expected = roc_auc_score(labels, probabilities, multi_class="ovr")
    assert result["auroc"] == pytest.approx(expected, abs=1e-6)
    queries = (1000 * probabilities[:, 1]).long() % QUERIES
    precisions = [
        average_precision_score(labels[queries == query] == 0, probabilities[queries == query, 0])
        for query in range(QUERIES)
    ]
    assert result["map"] == pytest.approx(sum(precisions) / QUERIES, abs=1e-6)
    best = [
        torch.where(queries == query, probabilities[:, 0], -1).topk(2) for query in range(QUERIES)
    ]
    hits = torch.cat([labels[two.indices] == 0 for two in best])
    assert result["of two"] == pytest.approx(hits.double().mean().item(), abs=1e-6)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "batch_size", "shuffle", "message"),
    [
        (Endless(), 2, False, "dataset must be map-style with a length, got Endless"),
        (range(10), 3, False, "batch_size: must be a multiple of 2, the number of devices, got 3"),
        (range(10), 12, True, "batch_size: must be at most 10, the number of samples, got 12"),
        (range(1), 2, False, "dataset: must be at least 2 samples, one a device, got 1"),
        (range(10), 0, False, "batch_size: must be above 0, got 0"),
        (range(10), None, True, "batch_size: must be above 0, got None"),
    ],
)
def test_what_cannot_be_loaded_exactly_is_refused(dataset, batch_size, shuffle, message):
    trainer = Trainer(accelerator="cpu", devices=2, logger=False, enable_checkpointing=False)
    with pytest.raises(UserError, match=message):
        ExactDataLoader(dataset, trainer, batch_size, shuffle)


def test_samples_are_drawn_as_a_function_of_the_epoch_says():
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    rare = torch.tensor([4, 4, 1, 4, 0])
    loader = ExactDataLoader(cast(Any, range(5)), trainer, 2, draw=lambda epoch: rare + 0 * epoch)
    assert torch.cat([*loader]).tolist() == [4, 4, 1, 4]
    for drawn in (rare[:3], rare.repeat(2)):
        loader = ExactDataLoader(cast(Any, range(5)), trainer, 2, draw={0: drawn}.__getitem__)
        with pytest.raises(UserError, match=f"draw: must be 5 samples, got {len(drawn)}"):
            next(iter(loader))


class Curriculum(TensorDataset):
    """Samples of a difficulty that training raises."""

    level = 0

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(self.level)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_dataset_of_a_loader_is_ones_own(workers):
    trainer = Trainer(logger=False, accelerator="cpu", devices=1)
    part = Subset(dataset := Curriculum(torch.empty(8)), [*range(8)])
    for given, own in ((dataset, lambda x: x.dataset), (part, lambda x: x.dataset.dataset)):
        loader = ExactDataLoader(given, trainer, batch_size=4, num_workers=workers)
        own(loader).level = 7
        assert dataset.level == own(loader).level == 7
        assert [batch.tolist() for batch in loader] == [[7] * 4] * 2
        assert len(pickle.loads(pickle.dumps(loader.dataset))) == 8
        assert not hasattr(loader.dataset, "absent")


def test_a_run_without_a_checkpoint_begins_and_one_with_a_damaged_one_takes_the_one_before(
    tmp_path, capsys
):
    assert newest_checkpoint(tmp_path) is None
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save({"state_dict": {}}, folder / "previous.ckpt")
    (folder / "last.ckpt").write_bytes((folder / "previous.ckpt").read_bytes()[:-9])
    assert newest_checkpoint(tmp_path) == folder / "previous.ckpt"
    assert "last.ckpt' is damaged" in capsys.readouterr().err
    (folder / "previous.ckpt").unlink()
    with pytest.raises(UserError, match="is damaged"):
        newest_checkpoint(tmp_path)
