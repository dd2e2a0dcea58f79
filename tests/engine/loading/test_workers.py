"""Loader workers that cannot send a batch or are killed: one line says so, and nothing waits."""

import os
import signal
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from project.engine.cli.entry import one_line_errors
from tests.distributed.processes import fork, wait
from tests.engine.loading.stubs import attached
from tests.engine.toy import ToyData


def test_a_batch_that_cannot_be_sent_ends_the_run(capfd):
    def load() -> None:
        lack = Mock(side_effect=RuntimeError("unable to allocate shared memory"))
        torch.UntypedStorage._share_fd_cpu_ = torch.UntypedStorage._share_filename_cpu_ = lack  # type: ignore[method-assign]
        list(attached(ToyData(num_workers=1)).train_dataloader())

    assert wait([fork(load, {})]) == [1]
    said = capfd.readouterr().err
    assert "a loader worker cannot send a batch" in said
    assert "docker run --shm-size" in said


def test_a_worker_that_was_killed_is_one_line(capsys):
    data = attached(ToyData(num_workers=1, batch_size=8))

    def kill() -> None:
        loader: Any = data.train_dataloader()
        next(batches := iter(loader))
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
        list(batches)
        signal.pause()  # where all were there already

    with pytest.raises(SystemExit), one_line_errors():
        kill()
    assert capsys.readouterr().err.startswith("error: a process that loads images has died")


LEAVE = """
from tests.engine.loading.stubs import attached
from tests.engine.toy import ToyData
data = attached(ToyData(batch_size=4, num_workers=2), training=False)
next(batches := iter(data.val_dataloader()))
raise SystemExit(3)
"""


def test_workers_that_an_error_leaves_behind_do_not_keep_the_process_from_ending():
    assert subprocess.run([sys.executable, "-c", LEAVE], timeout=120).returncode == 3
