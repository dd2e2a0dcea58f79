"""Loader workers where shared memory and file descriptors are few: one line says so, and nothing waits."""

import os
import resource
import signal
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils.data import DataLoader

from project.engine import UserError
from project.engine.loading import workers
from project.engine.loading.batch import ArrayDataset
from tests.data.stubs import NoiseDataModule
from tests.small import one_line


def test_a_batch_for_which_there_is_no_room_is_an_error_and_not_lost(monkeypatch):
    no_room = Mock(side_effect=RuntimeError("unable to allocate shared memory"))
    monkeypatch.setattr("torch.Tensor.share_memory_", no_room)
    data: Any = ArrayDataset(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8), "image")
    with pytest.raises(UserError, match=r"unable to allocate shared memory.*--shm-size"):
        list(
            DataLoader(
                data, batch_size=4, num_workers=1, collate_fn=workers.share_batch, timeout=60
            )
        )


def test_the_limit_on_open_files_is_raised_and_never_lowered():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        workers._allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(soft, 2**16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    workers._allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft


def test_a_worker_that_was_killed_and_too_many_open_files_are_one_line(capsys):
    data = NoiseDataModule(num_workers=1, batch_size=8)
    data.setup("fit")

    def kill() -> None:
        loader: Any = data.train_dataloader()
        next(batches := iter(loader))
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
        list(batches)
        signal.pause()  # where all were there already

    assert one_line(kill, capsys).startswith("error: a process that loads images has died")
    assert "ulimit -n" in one_line(Mock(side_effect=OSError(24, "Too many open files")), capsys)


LOADS = """
import torch
from project.engine.loading import workers
from project.engine.loading.batch import ArrayDataset
data = ArrayDataset(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8), "image")
loader = workers.image_loader(data, 4, 1, 2, sampler=[(0, index) for index in range(8)])
{setup}
print(sum(len(batch.labels) for batch in loader))
"""


def load_in_a_process(setup, **environment):
    command = [sys.executable, "-c", LOADS.format(setup=setup)]
    options: Any = {"capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(command, env=os.environ | environment, **options)


def test_a_long_temporary_folder_is_no_hindrance(tmp_path):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    done = load_in_a_process("", TMPDIR=str(long))
    assert (done.stdout, done.returncode) == ("8\n", 0), done.stderr


def test_a_batch_that_cannot_be_sent_ends_the_run():
    done = load_in_a_process("loader.collate_fn = lambda batch: batch._replace(labels=lambda: 0)")
    assert done.returncode == 1
    assert "a loader worker cannot send a batch" in done.stderr
