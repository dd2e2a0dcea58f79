"""``copier copy`` makes a project of another name, ``copier update`` merges a newer template and keeps the owner's edits."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from tests.conftest import ONE_CPU, ROOT

copier = pytest.importorskip("copier", reason="copier is not installed: pip install copier")
RENAME = runpy.run_path(str(ROOT / "scripts" / "rename.py"))
KEEP = yaml.safe_load((ROOT / "copier.yml").read_text())["keep"]["default"]
QUICK = ["examples/tests/test_launch.py", "scripts/tests/test_scripts.py"]
FOLDERS = ["benchmarks", "configs", "examples", "notebooks", "scripts"]
SETTINGS = [
    *("copier.yml", ".copier-answers.yml.jinja", "README.md.jinja", "scripts/rename.py"),
    *("requirements.txt", "pyproject.toml", "Dockerfile", "packages/lightkeeper/pyproject.toml"),
]


def git(root: Path, *args: str) -> str:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    command = ["git", "-C", str(root), *who, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit(root: Path, tag: str) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", tag)
    git(root, "tag", tag)


def template(root: Path, files: Iterable[str]) -> Path:
    """A repository of so many of this one's files, of version 1."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    git(root, "init", "--quiet")
    commit(root, "1.0.0")
    return root


def tracked() -> list[str]:
    return [file for file in git(ROOT, "ls-files").splitlines() if (ROOT / file).is_file()]


def copy(source: Path, project: Path, **answers: object) -> Path:
    copier.run_copy(str(source), project, data=answers, defaults=True, unsafe=True, quiet=True)
    return project


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A template of the settings and the data modules."""
    data = [file for file in tracked() if file.startswith("project/data/")]
    return template(tmp_path_factory.mktemp("template"), [*SETTINGS, *data])


def test_an_update_merges_a_newer_template_and_keeps_what_the_owner_has_edited(small, tmp_path):
    source, mine = shutil.copytree(small, tmp_path / "source"), tmp_path / "flowernet"
    data = copy(source, mine) / "flowernet" / "data"
    git(mine, "init", "--quiet")
    commit(mine, "copied")
    edit(data / "flowers.py", "import Any\n", "import Any  # of the owner\n")
    edit(data / "flowers.py", "known before the download", "the owner's words")
    (data / "mine.py").write_text("import   flowernet, project  # project/data\n")
    (data / "csv_file.py").unlink()
    (mine / "README.md").write_text("The owner's page.\n")
    commit(mine, "edited")

    theirs = source / "project" / "data"
    edit(theirs / "flowers.py", "known before the download", "their words")
    edit(theirs / "flowers.py", "known from TensorFlow's tutorials", "a newer message")
    edit(theirs / "csv_file.py", "The table, from which the classes", "Newer")
    (theirs / "added.py").write_text("from project.data import CSVDataModule\n")
    (theirs / "torch_dataset.py").unlink()
    edit(source / "README.md.jinja", "made from", "newly made from")
    commit(source, "2.0.0")
    copier.run_update(mine, defaults=True, overwrite=True, unsafe=True, quiet=True)

    both = (data / "flowers.py").read_text()
    assert "import Any  # of the owner\n" in both
    assert "a newer message" in both
    conflict = r"<<<<<<<.*\n.*the owner's words\n=======\n.*their words\n>>>>>>>"
    assert re.search(conflict, both)
    assert (data / "mine.py").read_text() == "import   flowernet, project  # project/data\n"
    assert not (data / "csv_file.py").exists()
    assert (data / "added.py").read_text() == "from flowernet.data import CSVDataModule\n"
    assert not (data / "torch_dataset.py").exists()
    assert (mine / "README.md").read_text() == "The owner's page.\n"
    assert not (mine / "project").exists()
    changed = {line[3:] for line in git(mine, "status", "--porcelain").splitlines()}
    at_hand = {f"flowernet/data/{name}.py" for name in ("flowers", "added", "torch_dataset")}
    assert changed == {".copier-answers.yml", "requirements.txt", *at_hand}


def test_answers_decide_the_name_the_licence_and_where_lightkeeper_is_from(small, tmp_path):
    answers = {"name": "petals", "licence": "MIT", "lightkeeper": "index", "keep": []}
    mine = copy(small, tmp_path / "any", **answers)
    assert "lightkeeper[images,cli]>=" in (mine / "requirements.txt").read_text()
    settings = (mine / "pyproject.toml").read_text()
    assert 'name = "petals"\nversion = "0.1.0"\n' in settings
    assert 'license = "MIT"' in settings
    assert not (mine / "petals" / "data" / "cifar10.py").exists()
    names = (mine / "petals" / "data" / "__init__.py").read_text()
    assert [name in names for name in ("CIFAR10", "SyntheticFlowers")] == [False, True]
    assert "packages" not in (mine / "Dockerfile").read_text()


def test_a_template_with_an_uncommitted_file_is_refused(small, tmp_path, capfd):
    source = shutil.copytree(small, tmp_path / "source")
    git(source, "tag", "--delete", "1.0.0")  # else copier takes the tag
    (source / "my.yaml").touch()  # copier commits it in a clone that it deletes
    with pytest.raises(copier.errors.TaskError):
        copy(source, tmp_path / "flowernet")
    assert "commit or stash" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("address", "requirement"),
    [
        ("gh:someone/template", "git+https://github.com/someone/template"),
        ("git@example.com:a/b.git", "git+ssh://git@example.com/a/b.git"),
        ("git+https://example.com/a/b.git", "git+https://example.com/a/b.git"),
        ("/srv/a b", "git+file://localhost/srv/a%20b"),
    ],
)
def test_lightkeeper_comes_from_the_commit_that_was_copied(address, requirement):
    found = RENAME["source"](address, "c0ffee")
    assert found == f" @ {requirement}@c0ffee#subdirectory=packages/lightkeeper"


@pytest.mark.parametrize("name", ["Flower-net", "class", "json", "torch", "scripts", "lightkeeper"])
def test_a_name_that_would_not_work_is_refused(name, small, tmp_path):
    with pytest.raises((ValueError, copier.errors.TaskError)):
        copy(small, tmp_path / "project", name=name)
    assert not (tmp_path / "project").exists()


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    """A template of all that this one has."""
    return template(tmp_path_factory.mktemp("full"), tracked())


@pytest.fixture(scope="module", params=[{}, {"keep": []}], ids=["all", "the least"])
def whole(request, full, tmp_path_factory) -> Path:
    """A project of all that the template has, and another of the least."""
    return copy(full, tmp_path_factory.mktemp("projects") / "flowernet", **request.param)


@pytest.fixture(scope="module", params=KEEP)
def part(request, full, tmp_path_factory) -> Path:
    """A project that keeps one of the choices alone."""
    return copy(full, tmp_path_factory.mktemp(request.param) / "flowernet", keep=[request.param])


def python(*args: str, root: Path) -> str:
    return subprocess.run(
        [sys.executable, *args],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=300,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.slow
def test_nothing_uses_the_old_name_and_all_is_formatted(whole):
    for path in whole.rglob("*"):
        if path.is_file() and path.suffix in RENAME["SUFFIXES"]:
            assert not RENAME["USAGES"].search(path.read_text()), path
    python("-m", "ruff", "format", "--check", "--no-cache", ".", root=whole)
    python("-m", "ruff", "check", "--no-cache", ".", root=whole)


@pytest.mark.slow
def test_its_tests_can_be_collected_and_those_of_its_metrics_pass(whole):
    python("-m", "pytest", "-p", "no:cacheprovider", "--collect-only", root=whole)
    tests = ["tests/model/test_metrics.py"]
    assert " passed" in python("-m", "pytest", "-p", "no:cacheprovider", *tests, root=whole)


def named(text: str) -> set[str]:
    """Finds files by their paths, and by the modules of classes."""
    paths = re.findall(rf"\b(?:{'|'.join(FOLDERS)})(?:/\w+)+\.(?:ipynb|py|sh|yaml)\b", text)
    modules = re.findall(r"\bexamples(?:\.[a-z]\w*)+(?=\.[A-Z])", text)
    return {*paths, *(f"{module.replace('.', '/')}.py" for module in modules)}


@pytest.mark.slow
def test_what_is_kept_alone_names_no_file_that_was_left_out(part):
    files = [path for folder in FOLDERS for path in (part / folder).rglob("*.*")]
    assert files
    for path in files:
        if path.suffix in RENAME["SUFFIXES"] and path.parent.name != "tests":
            lost = {name for name in named(path.read_text()) if not (part / name).exists()}
            assert not lost, path


@pytest.mark.slow
def test_the_tests_of_what_is_kept_alone_can_be_collected_and_quick_ones_pass(part):
    python("-m", "pytest", "-p", "no:cacheprovider", "--collect-only", root=part)
    if quick := [file for file in QUICK if (part / file).exists()]:
        assert " passed" in python("-m", "pytest", "-p", "no:cacheprovider", *quick, root=part)


@pytest.mark.slow
def test_a_checkpoint_from_before_still_loads(whole, tiny_run, tmp_path):
    best, output = tiny_run / "checkpoints" / "best.ckpt", tmp_path / "metrics.json"
    options = [f"{best}", f"--output={output}", *ONE_CPU]
    python("-m", "flowernet.evaluate", *options, root=whole)
    assert output.exists()


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_package(whole, tmp_path):
    pytest.importorskip("setuptools")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    python("-m", "pip", "wheel", *options, ".", root=whole)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in (whole / "flowernet").rglob("*") if path.is_file()}
    files = {path.relative_to(whole) for path in files if path.suffix != ".pyc"}
    assert packed == {path.as_posix() for path in files}
