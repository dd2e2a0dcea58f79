"""``make rename`` gives the package another name everywhere, checkpoints from before still load; ``pip install .`` takes all of it."""

import runpy
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ONE_CPU, ROOT, succeed

RENAME = runpy.run_path(str(ROOT / "scripts" / "rename.py"))
OLD = RENAME["current_name"](ROOT)
NEW = f"{OLD}_renamed"  # there is no such folder, whatever the package is called by now
TESTS = [
    "tests/model/test_metrics.py",
    "examples/tests/test_examples.py::test_the_balanced_accuracy_is_scikit_learns",  # imports all of examples/
]


def not_ours(folder: str, names: list[str]) -> list[str]:
    """The environments, data and caches of a repository, which the package's copy does without."""
    others = [name for name in names if name in RENAME["NOT_OURS"] or name.endswith("_cache")]
    return others if Path(folder) == ROOT else []


@pytest.fixture(scope="module")
def renamed(tmp_path_factory) -> Path:
    """A copy of the repository, whose package has another name."""
    root: Path = tmp_path_factory.mktemp("rename") / "repository"
    shutil.copytree(ROOT, root, ignore=not_ours)
    said = python("scripts/rename.py", NEW, root=root)
    assert said.startswith(f"the package is called {NEW} now (")
    return root


def python(*args: str, root: Path) -> str:
    return succeed([sys.executable, *args], root, timeout=300, PYTHONPATH=str(root)).stdout


def test_nothing_uses_the_old_name(renamed):
    assert not (renamed / OLD).exists()
    for path in RENAME["files"](renamed):
        assert not RENAME["usages"](OLD).search(path.read_text()), path


@pytest.mark.slow
def test_the_tests_pass_under_the_new_name(renamed):
    assert " passed" in python("-m", "pytest", "-p", "no:cacheprovider", *TESTS, root=renamed)


@pytest.mark.slow
def test_a_checkpoint_from_before_still_loads(renamed, tiny_run, tmp_path):
    options = [
        f"{tiny_run / 'checkpoints' / 'best.ckpt'}",
        f"--output={tmp_path / 'metrics.json'}",
        *ONE_CPU,
    ]
    python("-m", f"{NEW}.evaluate", *options, root=renamed)
    assert (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize("name", ["Flower-net", "class", "json", "torch", "tests", "FlowerNet"])
def test_a_name_that_would_not_work_is_refused(name):
    assert RENAME["refusal"](ROOT, name) is not None


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_package(renamed, tmp_path):
    pytest.importorskip("setuptools")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    python("-m", "pip", "wheel", *options, ".", root=renamed)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in (renamed / NEW).rglob("*") if path.is_file()}
    files = {path.relative_to(renamed) for path in files if path.suffix != ".pyc"}
    assert packed == {path.as_posix() for path in files}
