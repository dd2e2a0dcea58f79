"""``make rename`` gives the package another name everywhere, and checkpoints from before still load."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RENAME = runpy.run_path(str(ROOT / "scripts" / "rename.py"))
OLD = RENAME["current_name"](ROOT)
NEW = f"{OLD}_renamed"  # there is no such folder, whatever the package is called by now
TESTS = [
    "tests/model/test_metrics.py",
    "tests/engine/training/test_sampler.py",
    "tests/engine/run/test_folder.py",
    "tests/engine/test_upstream.py",
    "tests/test_examples.py::test_the_balanced_accuracy_is_scikit_learns",  # imports all of examples/
]


MADE = [".ruff_cache/0.17.5/16195891569215303216", "env/lib/site.py"]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory) -> Path:
    """A copy of the repository, with caches and environments that are left alone, whose package has another name."""
    root: Path = tmp_path_factory.mktemp("rename") / "repository"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in RENAME["NOT_OURS"] and not path.name.endswith("_cache"):
            shutil.copytree(path, root / path.name)
        elif path.is_file():
            shutil.copy(path, root / path.name)
    for made in MADE:
        (root / made).parent.mkdir(parents=True)
        (root / made).write_bytes(b"import project \x89")
    (root / "env" / "pyvenv.cfg").touch()
    (root / f"{OLD}.egg-info").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "scripts/rename.py", NEW], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"the package is called {NEW} now (")
    for made in MADE:
        assert (root / made).read_bytes() == b"import project \x89", made
    return root


def python(*args: str, root: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *args], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_uses_the_old_name(renamed):
    assert not (renamed / OLD).exists()
    assert not (renamed / f"{OLD}.egg-info").exists()
    for path in RENAME["files"](renamed):
        assert not RENAME["usages"](OLD).search(path.read_text()), path


@pytest.mark.slow
def test_the_tests_pass_under_the_new_name(renamed):
    assert " passed" in python("-m", "pytest", "-p", "no:cacheprovider", *TESTS, root=renamed)


@pytest.mark.slow
def test_a_checkpoint_from_before_still_loads(renamed, tiny_run, tmp_path):
    output, device = tmp_path / "metrics.json", ["--trainer.accelerator=cpu", "--trainer.devices=1"]
    checkpoint = f"{tiny_run / 'checkpoints' / 'best.ckpt'}"
    python("-m", f"{NEW}.evaluate", checkpoint, f"--output={output}", *device, root=renamed)
    assert output.exists()


@pytest.mark.parametrize("name", ["Flower-net", "class", "json", "torch", "tests", "FlowerNet"])
def test_a_name_that_would_not_work_is_refused(name):
    assert RENAME["refusal"](ROOT, name) is not None
