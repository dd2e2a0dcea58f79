"""Loader workers where shared memory and file descriptors are few: batches arrive all the same, and nothing waits."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from project.engine.loading.batch import ArrayDataset, ImageBatch
from project.engine.loading.workers import BatchSender, plan_workers
from tests.data.stubs import NoiseDataModule
from tests.memory import needs_linux
from tests.small import one_line

BATCH_BYTES = 8 * 3 * 128 * 128
NEW_MOUNTS = 0x20000  # CLONE_NEWNS of sched.h


def load(scarce: Callable[[], object]) -> None:
    """Loads six batches by two workers where something is scarce, and keeps all, as much as can be on its way."""
    images = torch.arange(48 * BATCH_BYTES // 8).remainder(251).to(torch.uint8).view(48, 3, 128, 128)
    data: Any = ArrayDataset(images, torch.arange(48), "image")
    scarce()
    kept: list[ImageBatch] = list(DataLoader(data, batch_size=8, num_workers=2, collate_fn=BatchSender()))
    assert torch.equal(torch.cat([batch.images for batch in kept]), images)
    assert torch.cat([batch.labels for batch in kept]).tolist() == list(range(48))
    assert not all(batch.images.is_shared() for batch in kept), "nothing was scarce"


def little_shared_memory() -> None:
    """Gives this process a /dev/shm for two batches."""
    assert ctypes.CDLL(None).unshare(NEW_MOUNTS) == 0
    for options in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=1000k", "tmpfs", "/dev/shm"]):
        subprocess.run(["mount", *options], check=True)


def few_descriptors() -> None:
    """Lets this process open a few files more, and no others."""
    limit = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("scarce", [little_shared_memory, few_descriptors])
def test_batches_arrive_where_there_is_little_room_for_them(scarce):
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting takes root")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(120)  # a lost batch would be waited for
            load(scarce)
            code = os.listdir("/dev/shm") != [] if scarce is little_shared_memory else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_went_through_a_pipe_is_what_was_sent(layout):
    images = torch.randint(256, (20, 3, 9, 7), dtype=torch.uint8).contiguous(memory_format=layout)
    data = ArrayDataset(images, torch.arange(20), "image")
    loader: Any = DataLoader(data, batch_size=8, num_workers=1, collate_fn=BatchSender(by_pipe=True))  # type: ignore[arg-type]
    for number, batch in enumerate(loader):
        expected = data.__getitems__(list(range(20))[8 * number : 8 * number + 8])
        assert isinstance(batch, ImageBatch)
        for found, sent in zip(batch, expected, strict=True):
            assert found.dtype == sent.dtype
            assert torch.equal(found, sent)
        assert batch.images.stride() == expected.images.stride()
        batch.images.zero_()  # it may be written to


@pytest.fixture
def shared_memory(monkeypatch):
    """Lets a test say how much is free."""
    return lambda free: monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))


def test_workers_use_shared_memory_where_there_is_plenty(shared_memory):
    shared_memory(64e6)
    planned = plan_workers(4, prefetch_factor=2, batch_bytes=BATCH_BYTES, processes=2)
    assert (planned.workers, planned.sender.by_pipe, planned.note) == (4, False, "")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_where_shared_memory_is_little_pipes_are_used_and_one_line_says_so(shared_memory, capsys):
    shared_memory(20e3)  # less than two batches of 3.5 KB for each worker, twice
    data = NoiseDataModule(num_workers=2, batch_size=8)
    data.setup("fit")
    loaders: list[Any] = [data.train_dataloader(), data.val_dataloader()]
    for loader in loaders:
        assert loader.num_workers == 2
        assert loader.collate_fn.by_pipe
    said = capsys.readouterr().err
    assert said.startswith("note: /dev/shm has little room for the ")
    assert said.count("\n") == 1


@needs_linux
def test_the_limit_on_open_files_is_raised_as_far_as_it_may_be():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 8, hard))
        planned = plan_workers(2, prefetch_factor=2, batch_bytes=0, processes=1)
        assert (planned.workers, planned.note) == (2, "")
        assert opened + 2 * 4 + 3 * 2 * 4 <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] < opened + 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_linux
@pytest.mark.parametrize(("limit", "expected"), [(60, 4), (16 + 17, 2), (10, 0)])
def test_where_few_files_may_be_open_fewer_workers_start(monkeypatch, limit, expected):
    opened = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (opened + limit, opened + limit))
    planned = plan_workers(4, prefetch_factor=2, batch_bytes=0, processes=1)
    assert planned.workers == expected
    assert planned.sender.by_pipe
    assert planned.note.startswith("few files may be open at once (ulimit -n), so ")


def test_a_worker_that_was_killed_is_one_line(capsys):
    data = NoiseDataModule(num_workers=1, batch_size=8)
    data.setup("fit")

    def kill() -> None:
        batches: Any = iter(data.train_dataloader())
        next(batches)
        os.kill(batches.gi_yieldfrom._workers[0].pid, signal.SIGKILL)
        list(batches)
        signal.pause()  # where all were there already

    said = one_line(kill, capsys)
    assert said.startswith("error: a process that loads images has died")


def test_too_many_open_files_is_one_line(capsys):
    def run_out() -> None:
        raise OSError(24, "Too many open files")

    assert "ulimit -n" in one_line(run_out, capsys)
