"""Fixtures of all tests."""

import gc
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch


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


@pytest.fixture
def limit_files() -> Iterator[Callable[[int], None]]:
    """Lets no file grow beyond so many bytes, as ``ulimit -f``."""
    size, limits = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(size, (most, limits[1]))
    resource.setrlimit(size, limits)
