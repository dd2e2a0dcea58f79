"""Loader workers that cannot send a batch or are killed: one line says so, and nothing waits."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from project.engine.cli.entry import one_line_errors
from tests.engine.loading.stubs import Noise, attached

LOADS = """
import torch
from project.engine.loading import workers
from project.engine.loading.batch import ArrayDataset
data = ArrayDataset(torch.zeros(8, 3, 4, 4, dtype=torch.uint8), torch.arange(8), "image")
loader = workers.image_loader(data, 4, 1, 2, sampler=[(0, index) for index in range(8)])
{setup}
print(sum(len(batch.labels) for batch in loader))
"""
NO_ROOM = """
def no_room(*_): raise RuntimeError("unable to allocate shared memory")
torch.UntypedStorage._share_fd_cpu_ = torch.UntypedStorage._share_filename_cpu_ = no_room
"""


@pytest.mark.parametrize(
    "setup", [NO_ROOM, "loader.collate_fn = lambda batch: batch._replace(labels=lambda: 0)"]
)
def test_a_batch_that_cannot_be_sent_ends_the_run(setup):
    command = [sys.executable, "-c", LOADS.format(setup=setup)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "a loader worker cannot send a batch" in done.stderr
    assert "docker run --shm-size" in done.stderr


def test_a_long_temporary_folder_is_no_hindrance(tmp_path):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    command = [sys.executable, "-c", LOADS.format(setup="")]
    environment = os.environ | {"TMPDIR": str(long)}
    subprocess.run(command, env=environment, timeout=120, check=True, capture_output=True)


def test_a_worker_that_was_killed_is_one_line(capsys):
    data = attached(Noise(num_workers=1, batch_size=8))

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
from tests.engine.loading.stubs import Noise, attached
data = attached(Noise(batch_size=4, num_workers=2), training=False)
next(iter(data.val_dataloader()))
raise SystemExit(3)
"""


def test_workers_that_an_error_leaves_behind_do_not_keep_the_process_from_ending():
    assert subprocess.run([sys.executable, "-c", LEAVE], timeout=60).returncode == 3
