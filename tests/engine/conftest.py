"""Fixtures of the engine's tests, which need nothing of yours."""

from pathlib import Path

import pytest

from tests.engine import toy


@pytest.fixture(autouse=True, scope="session")
def toy_surroundings(tmp_path_factory):
    """Keeps tests apart from the machine's user."""
    with toy.surroundings(tmp_path_factory.mktemp("caches")):
        yield


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """An empty folder to run commands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
