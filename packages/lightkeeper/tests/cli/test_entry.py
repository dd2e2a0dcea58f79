"""Mistakes are one line, bugs keep their tracebacks; output lasts where nobody reads it."""

import errno
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch
from lightkeeper.cli._entry import describe_error as explain, one_line_errors
from lightkeeper.cli._training import is_of_machine
from lightkeeper.exact import UserError
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images._layout import cpu_limit
from lightkeeper.images._settings import options_of_library
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn

from tests.processes import succeed
from tests.toy import ToyClassifier, cases, fit, one_line

FULL = OSError(errno.ENOSPC, "No space left on device")


@cases(
    "kind first suppressed line",
    (RuntimeError, ModuleNotFoundError("No module named 'shiny'", name="shiny"), False, None),
    (RuntimeError, FULL, True, None),
    (
        RuntimeError,
        FULL,
        False,
        "[Errno 28] No space left on device; make room, or write elsewhere",
    ),
    (KeyError, FULL, False, None),  # the bug of a handler
    (OSError, UserError("wrong path"), True, None),
    (OSError, UserError("wrong path"), False, "wrong path"),
    (KeyError, UserError("wrong path"), False, None),
)
def test_only_a_reason_that_python_shows_explains_an_error(kind, first, suppressed, line):
    bug = kind("bug")  # raised while the first was handled, with ``from None`` or without
    bug.__context__, bug.__suppress_context__ = first, suppressed
    assert explain(bug) == line


def test_a_variable_shows_the_traceback_of_a_mistake_too(monkeypatch):
    monkeypatch.setenv("LIGHTKEEPER_TRACEBACK", "1")
    with pytest.raises(UserError), one_line_errors():
        raise UserError("wrong path")


@cases(
    "fail advice",
    (lambda: nn.BatchNorm1d(3)(torch.zeros(1, 3)), "use a larger batch_size or image_size"),
    (lambda: torch.empty(2**50), "out of memory; a smaller batch_size or image_size needs less"),
)
def test_an_error_of_torch_about_options_is_advice(fail, advice):
    with pytest.raises((ValueError, RuntimeError)) as error:
        fail()
    assert advice in str(explain(error.value))


LONG = "x" * 200_000


@cases("text", LONG, f"{LONG}.errors.", f"{LONG}.engine.errors.X{LONG}: {LONG}")
def test_a_word_of_any_length_is_described_at_once_and_printed_in_short(text, capsys):
    def fail() -> None:
        raise UserError(f"'best.ckpt' holds {text}; give --import")

    with cpu_limit(10.0, TimeoutError()):
        line = one_line(fail, capsys)
    assert line.startswith("error: 'best.ckpt' holds x")
    assert line.endswith("; give --import")
    assert len(line) < 2100


def test_a_thread_that_a_full_disk_ends_says_so_in_a_line_and_one_with_a_bug_as_python_does():
    """As TensorBoard's, which writes beside the training."""
    fail = "import threading; from lightkeeper.cli import run_command\ndef fail(): raise {}\n"
    run = "run_command(lambda: threading.Thread(target=fail).start())"
    for error, begin in (("OSError(28, 'full')", "error: [Errno 28] full"), ("KeyError", "Exc")):
        command = [sys.executable, "-c", fail.format(error) + run]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.stderr.startswith(begin)
        assert len(ended.stderr.splitlines()) == 1 or error == "KeyError"


def test_a_workers_error_is_its_own_text():
    """As torch raises it in the process that trains: behind the traceback of the worker."""
    kind = f"{UnreadableFileError.__module__}.UnreadableFileError"
    text = f"Caught UnreadableFileError in worker 0.\nTraceback:\n  raise\n{kind}: 'a.png' is cut"
    assert explain(UnreadableFileError(text)) == "'a.png' is cut"


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_standard_stream_that_is_closed_is_the_null_device(name, monkeypatch):
    monkeypatch.setattr(sys, name, None)  # as Python has it
    with one_line_errors():
        stream = getattr(sys, name)
    assert stream.name == os.devnull
    stream.close()


@cases("loaded left", ("triton", "0"), ("another", "True"))
def test_nothing_is_left_frozen_at_the_end_where_libraries_list_what_they_leak(loaded, left):
    """Elsewhere it is, as to free it takes a second. A ``__del__`` finds ``open`` in either case."""
    code = f"""if True:
        import atexit, gc, sys
        sys.modules["{loaded}"] = sys
        atexit.register(lambda: print(gc.get_freeze_count() and True))
        from lightkeeper.cli._entry import run_command
        class Last:
            def __del__(self):
                print(open(0).closed)
        def command():
            print(gc.get_freeze_count() > 0)
            last = Last()
            last.itself = last
        run_command(command)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(["True", left, "False"])


def test_a_bug_in_the_users_step_keeps_its_whole_traceback_although_lightning_raises_it(
    workplace, monkeypatch
):
    monkeypatch.setattr(ToyClassifier, "training_step", lambda model, *_: model.log("a", "text"))
    with (
        pytest.raises(Exception, match="`str` values cannot be logged") as found,
        one_line_errors(),
    ):
        fit()
    assert (__file__, "<lambda>") in [
        (frame.filename, frame.name) for frame in traceback.extract_tb(found.tb)
    ]


class RefusedError(Exception):
    """As services have their own."""


class MyService(DummyLogger):
    pass


def test_what_a_logger_of_lightnings_logs_to_may_refuse_in_any_way():
    for cls, error in ((CSVLogger, UserError), (MyService, RefusedError)):
        with pytest.raises(error, match="no key"), options_of_library(cls, "--trainer.logger"):
            raise RefusedError("no key\nwas found")


@cases("names", "CommandParser, run_command", "read_metrics")
def test_a_command_that_needs_neither_torch_nor_lightning_imports_neither(names, tmp_path):
    program = f"""if True:
        import sys
        from lightkeeper.cli import {names}
        assert not {{"torch", "lightning"}} & {{*sys.modules}}
    """
    assert succeed([sys.executable, "-c", program], tmp_path).out == ""


@cases(
    "text may",
    ("DataLoader worker (pid 7) is killed by signal: Killed.", True),
    ("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", True),
    ("Read error [127.0.0.1]:9946: Connection reset by peer", True),
    ("Too many open files. Communication with the workers is no longer possible.", True),
    ("a bug, of samples that are grouped by peer", False),
)
def test_a_run_may_resume_after_what_the_machine_did(text, may):
    assert is_of_machine(RuntimeError(text)) is may


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@cases("text code", ("note('so far')", 0), ("end_with_error('wrong')", 2))
def test_notes_and_errors_that_nobody_can_read_change_no_exit_code(text, code):
    imports = (
        "from lightkeeper.exact import note; from lightkeeper.cli._entry import end_with_error"
    )
    command = [sys.executable, "-c", f"{imports}; note('before'); {text}"]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # as outside of containers
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stderr=full, env=buffered)
    assert ended.returncode == code


def test_a_script_that_is_run_by_its_path_imports_modules_from_the_current_folder(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "label.py"
    script.write_text("from lightkeeper.cli import import_modules; import_modules('mine')")
    succeed([sys.executable, str(script)], tmp_path)


def test_a_locale_by_which_names_of_files_would_be_others_is_noted():
    program = "from lightkeeper.cli import run_command\nrun_command(lambda: 0)"
    latin = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment, noted in ((latin, True), ({**os.environ, "PYTHONUTF8": "1"}, False)):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment
        )
        assert ended.returncode == 0
        assert ("set PYTHONUTF8=1 for UTF-8" in ended.stderr) is noted


def test_ctrl_c_that_lightning_turns_into_code_1_is_said():
    interrupt = "def f():\n try: raise KeyboardInterrupt\n except KeyboardInterrupt: exit(1)\n"
    program = f"from lightkeeper.cli import run_command\n{interrupt}run_command(f)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "\nstopped\n")
