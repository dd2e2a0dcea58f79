"""Loader workers that cannot send a batch or are killed: one line says so, and nothing waits."""

import errno
import gc
import os
import signal
import subprocess
import sys
from multiprocessing import active_children
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.cli._entry import one_line_errors
from lightkeeper.exact._errors import WORKER_DIED, LocalError
from lightkeeper.images import _check as check

from tests.image_files import write_folder
from tests.processes import fork, wait
from tests.stubs import attached, cases
from tests.toy import ToyData, one_line


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
    assert capsys.readouterr().err.startswith("error: a process that loads data has died")


def test_a_worker_whose_signal_comes_while_its_error_is_told_is_one_line(capsys, monkeypatch):
    late = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    monkeypatch.setattr(signal, "signal", Mock(side_effect=[late, signal.SIG_IGN]))
    with pytest.raises(SystemExit), one_line_errors():
        raise LocalError(WORKER_DIED) from ConnectionResetError()
    assert capsys.readouterr().err.startswith("error: a process that loads data has died")


SEMAPHORES = "multiprocessing.synchronize.SemLock.__init__"
RECEIVED = ("multiprocessing.queues.Queue.get", "tempfile.NamedTemporaryFile")
NOT_STARTED = "error: loader workers cannot be started ([Errno {}]"


@cases(
    "number lacking start words",
    *(
        (number, [SEMAPHORES], NOT_STARTED, ["enlarge /dev/shm", "set num_workers to 0"])
        for number in (errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EMFILE)
    ),
    (errno.EMFILE, RECEIVED, "error: too many open files; raise the limit", ["ulimit -n"]),
)
def test_workers_whose_semaphores_pipes_or_batches_find_no_room_are_one_line(
    number, lacking, start, words, monkeypatch, capsys
):
    """/dev/shm may be full, read-only or absent; the error of the system names no file.

    Where a batch is received, torch hides it behind one of its own.
    """
    for target in lacking:
        monkeypatch.setattr(target, Mock(side_effect=OSError(number, os.strerror(number))))
    data = attached(ToyData(num_workers=1))
    line = one_line(lambda: list(data.train_dataloader()), capsys)
    assert line.startswith(start.format(number))
    assert all(text in line for text in words)


def test_without_room_for_workers_the_check_of_the_images_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_WORTH_PROCESSES", 0)
    paths = [*map(str, write_folder(tmp_path, {"a": 3}).rglob("*.jpg"))]
    lack = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(SEMAPHORES, lack)
    defects, rows = check.check_files(paths, tmp_path)
    assert (defects, len(rows)) == ({}, 3)
    assert lack.called


LEAVE = """
import multiprocessing
from tests.stubs import attached
from tests.toy import ToyData

def leave():
    data = attached(ToyData(batch_size=4, num_workers=2), training=False)
    next(batches := iter(data.val_dataloader()))
    raise SystemExit(3)
"""
FORKED = """
process = multiprocessing.get_context("fork").Process(target=leave)
process.start()
process.join()
raise SystemExit(process.exitcode)
"""


@cases("start", "leave()", FORKED, ids=["itself", "a process that it started, as of ddp_fork"])
def test_workers_that_an_error_leaves_behind_do_not_keep_the_process_from_ending(start):
    """Where the started process waits for ever, its own time limit kills it first."""
    ended = subprocess.run(["timeout", "60", sys.executable, "-c", LEAVE + start], timeout=120)
    assert ended.returncode == 3


def test_workers_end_where_their_loader_is_collected_in_a_circle():
    """As where a second trainer replaces a first: each holds its loaders, and they hold it."""
    others = {*active_children()}
    data = attached(ToyData(batch_size=4, num_workers=2))
    batches = iter(data.train_dataloader())
    next(batches)
    workers = {*active_children()} - others
    data.circle = batches
    del data, batches
    gc.collect()
    assert len(workers) == 2
    assert not workers & {*active_children()}
