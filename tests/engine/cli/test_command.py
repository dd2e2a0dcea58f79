"""Mistakes are one line, bugs keep their tracebacks; output lasts where nobody reads it; importing does nothing."""

import errno
import os
import subprocess
import sys
import traceback

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from project.data import SyntheticFlowersDataModule
from project.engine.cli.entry import describe_error as explain, one_line_errors, robust
from project.engine.errors import UserError
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import cases
from tests.distributed.processes import environment
from tests.small import one_line, small

PACKAGE = FitCLI.__module__.partition(".")[0]

FULL = OSError(errno.ENOSPC, "No space left on device")


@cases(
    "first suppressed line",
    (ModuleNotFoundError("No module named 'shiny'", name="shiny"), False, None),
    (FULL, True, None),
    (FULL, False, "cannot write: No space left on device; make room"),
    (UserError("wrong path"), True, None),
    (UserError("wrong path"), False, "wrong path"),
)
def test_only_a_reason_that_python_shows_explains_an_error(first, suppressed, line):
    bug = KeyError("bug")  # raised while the first was handled, with ``from None`` or without
    bug.__context__, bug.__suppress_context__ = first, suppressed
    assert explain(bug) == line


def fail(self, *args, **kwargs) -> None:
    try:
        import shiny  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise ValueError("a bug of mine")  # noqa: B904  # what a user may write


@cases(
    "option base",
    ("trainer.callbacks+", Callback),
    ("trainer.logger", CSVLogger),
    ("trainer.strategy", SingleDeviceStrategy),
    ("trainer.profiler", SimpleProfiler),
    ("data", SyntheticFlowersDataModule),
    ("model", ImageClassifier),
    ("model.loss", nn.Module),
)
def test_a_bug_in_a_constructor_keeps_its_traceback(option, base, monkeypatch):
    buggy = type(
        "Buggy", (base,), {"__init__": fail, "__del__": lambda self: None, "__module__": __name__}
    )
    monkeypatch.setitem(globals(), buggy.__name__, buggy)
    with pytest.raises(ValueError, match="a bug of mine") as caught:
        FitCLI([f"--{option}={__name__}.Buggy"])
    assert explain(caught.value) is None
    assert f'File "{__file__}", line' in "".join(traceback.format_exception(caught.value))


EARLY = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/acc"
BEST = "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor=val/acc"
PLATEAU = "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/acc"


@cases(
    "options reason",
    (EARLY, "val/accuracy"),
    (BEST, "val/accuracy"),
    (PLATEAU, "val/accuracy"),
    (f"{EARLY} --trainer.callbacks.mode=b", "`mode`"),
    ("--trainer.callbacks+=LearningRateFinder", "lr_find"),
    ("--trainer.accelerator=gpuu", "gpuu"),
    ("--trainer.limit_test_batches=0.01", "limit_test_batches"),
)
def test_what_lightning_refuses_is_one_line(options, reason, workplace, capsys):
    assert reason in one_line(lambda: small(*options.split()), capsys)


def test_a_bug_in_the_users_step_keeps_its_whole_traceback_although_lightning_raises_it(
    workplace, monkeypatch
):
    monkeypatch.setattr(ImageClassifier, "training_step", lambda model, *_: model.log("a", "text"))
    with (
        pytest.raises(Exception, match="`str` values cannot be logged") as found,
        one_line_errors(),
    ):
        small()
    assert (__file__, "<lambda>") in [
        (frame.filename, frame.name) for frame in traceback.extract_tb(found.tb)
    ]


def test_a_variable_shows_the_traceback_of_a_mistake_too(monkeypatch, capsys):
    assert one_line(lambda: small("--nmae=a"), capsys)
    monkeypatch.setenv(f"{PACKAGE.upper()}_TRACEBACK", "1")
    with pytest.raises(UserError), one_line_errors():
        raise UserError("wrong path")


def test_a_closed_pipe_is_no_error():
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        os.close(reading)
        for _ in range(3):
            print("nobody reads this", file=robust(pipe), flush=True)


@cases(
    "fail advice",
    (lambda: nn.BatchNorm1d(3)(torch.zeros(1, 3)), "use a larger batch_size or image_size"),
    (lambda: torch.empty(2**50), "out of memory; a smaller batch_size or image_size needs less"),
)
def test_an_error_of_torch_about_options_is_advice(fail, advice):
    with pytest.raises((ValueError, RuntimeError)) as error:
        fail()
    assert advice in str(explain(error.value))


def test_importing_the_package_has_no_side_effect():
    program = """if True:
        import gc, pkgutil, signal, sys, warnings
        import yaml, torch, torchmetrics, torchvision, jsonargparse, lightning.pytorch.cli
        from lightning.pytorch import loggers
        import matplotlib.pyplot, PIL.Image, sklearn.metrics, torch.onnx
        def state():
            yaml_state = [
                {key: str(value) for key, value in vars(cls).items() if key.startswith("yaml_")}
                for cls in (yaml.SafeLoader, yaml.SafeDumper)
            ]
            cudnn = torch.backends.cudnn
            return (
                sys.stdout, gc.isenabled(), yaml_state, PIL.Image.MAX_IMAGE_PIXELS,
                [signal.getsignal(number) for number in signal.valid_signals()],
                [filter for filter in warnings.filters if "PIL" in str(filter)],
                cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads(),
                torch.get_float32_matmul_precision(), torch.is_grad_enabled(),
            )
        before = state()
        import project
        for module in pkgutil.walk_packages(project.__path__, "project."):
            __import__(module.name)
        assert state() == before, (state(), before)
    """
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=240, check=True)


@cases("module", "engine.cli.parser", "predict", "export", "report")
def test_help_imports_neither_torch_nor_lightning(module):
    program = f"""if True:
        import runpy, sys
        sys.argv = ["x", "--help"]
        try:
            runpy.run_module("{PACKAGE}.{module}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code
        assert not {{"torch", "lightning"}} & {{*sys.modules}}
    """
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=60, check=True)
