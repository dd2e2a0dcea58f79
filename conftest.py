"""Fixtures of all tests: those of tests/, and those in the folder ``tests`` of what they test."""

import gc
from pathlib import Path

import pytest
import torch

from tests.conftest import FAST, MULTILABEL, PAIRS, SLIM, TINY, fit


def pytest_collection_finish() -> None:
    """Keeps Python from looking for garbage among imports, which takes longer than some tests do."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def surroundings(tmp_path_factory):
    """Keeps tests apart from the machine's user."""
    torch.set_num_threads(1)  # threads that outnumber the cores wait for each other
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["python"])  # LightningCLI warns if there are two command lines
        # or Lightning gives a strategy's process as many as there are cores
        patch.setenv("OMP_NUM_THREADS", "1")
        # for what is found out about files
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """An empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """The folder of a finished run, to be read only."""
    root: Path = tmp_path_factory.mktemp("session") / "runs"
    fit(*TINY, *SLIM, *FAST, f"--trainer.default_root_dir={root}", "--name=tiny")
    return root / "tiny"


@pytest.fixture(scope="session")
def multilabel(tmp_path_factory) -> Path:
    """The folder of a finished run of the multi-label classifier, with all its plots."""
    pytest.importorskip("examples.multilabel", reason="examples/multilabel.py is gone")
    root: Path = tmp_path_factory.mktemp("multilabel")
    run = [f"--trainer.default_root_dir={root}", "--name=run"]
    fit(*TINY, *PAIRS, *MULTILABEL, *SLIM, *run, drawn=True)
    return root / "run"


@pytest.fixture
def without_initialisation(monkeypatch):
    """Leaves the weights of networks as memory has them, for commands that train nothing: it takes less time."""
    for name in ("kaiming_normal_", "kaiming_uniform_", "trunc_normal_", "normal_", "uniform_"):
        monkeypatch.setattr(f"torch.nn.init.{name}", lambda tensor, *_args, **_options: tensor)
