"""``make rename`` gives the package another name everywhere, and checkpoints from before still load."""

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RENAME = runpy.run_path(str(ROOT / "docs" / "rename.py"))
TESTS = [
    "tests/model/test_metrics.py",
    "tests/data/test_sampler.py",
    "tests/run/test_folder.py",
    "tests/test_upstream.py",
    "tests/test_examples.py::test_the_balanced_accuracy_is_scikit_learns",  # imports all of examples/
]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory) -> Path:
    """A copy of the repository whose package is called flowernet."""
    root: Path = tmp_path_factory.mktemp("rename") / "repository"
    root.mkdir()
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in RENAME["NOT_OURS"] and not path.name.endswith("_cache"):
            shutil.copytree(path, root / path.name)
        elif path.is_file():
            shutil.copy(path, root / path.name)
    done = subprocess.run(
        [sys.executable, "docs/rename.py", "flowernet"], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("the package is called flowernet now (")
    return root


def python(*args: str, root: Path) -> str:
    """What Python prints in the copy, which imports nothing from here."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *args], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_uses_the_old_name(renamed):
    assert not (renamed / "project").exists()
    for path in RENAME["files"](renamed):
        assert not RENAME["usages"]("project").search(path.read_text()), path


def test_a_new_lock_file_would_say_the_same(renamed):
    lock = (renamed / "requirements.lock").read_text()
    assert lock == (ROOT / "requirements.lock").read_text().replace(
        "project (pyproject.toml)", "flowernet (pyproject.toml)"
    )
    assert "flowernet (pyproject.toml)" in lock


def test_strings_that_name_modules_follow(renamed):
    for path in [*renamed.glob("flowernet/**/*.py"), *renamed.glob("tests/**/*.py")]:
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        strings = [node.value for node in nodes if isinstance(node.value, str)]
        assert not [text for text in strings if text == "project." or "python -m project" in text], path


def test_what_the_package_imports_of_itself_is_there(renamed):
    files = [*renamed.glob("flowernet/**/*.py")]
    names = [path.relative_to(renamed).with_suffix("").as_posix().replace("/", ".") for path in files]
    modules = {name.removesuffix(".__init__") for name in names}
    for path in files:
        nodes = ast.walk(ast.parse(path.read_text()))
        imported = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {name for name in imported if name.split(".")[0] == "flowernet"} <= modules, path


@pytest.mark.slow
def test_the_tests_pass_under_the_new_name(renamed):
    assert " passed" in python("-m", "pytest", "-p", "no:cacheprovider", *TESTS, root=renamed)


@pytest.mark.slow
def test_a_checkpoint_from_before_still_loads(renamed, tiny_run, tmp_path):
    output, device = tmp_path / "metrics.json", ["--trainer.accelerator=cpu", "--trainer.devices=1"]
    checkpoint = f"--ckpt_path={tiny_run / 'checkpoints' / 'best.ckpt'}"
    python("-m", "flowernet.evaluate", checkpoint, f"--output={output}", *device, root=renamed)
    assert output.exists()


@pytest.mark.parametrize("name", ["Flower-net", "class", "json", "torch", "tests", "FlowerNet"])
def test_a_name_that_would_not_work_is_refused(name):
    assert RENAME["refusal"](ROOT, name) is not None
