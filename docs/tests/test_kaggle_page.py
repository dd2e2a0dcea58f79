"""The commands of the page on Kaggle, in a folder that stands for ``/kaggle``."""

import ast
import re
import shlex
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, SMALL_FILES, load, make_folder, read_json, small, stop_at

PAGE = (ROOT / "docs" / "kaggle_and_colab.md").read_text()
DISTRIBUTIONS = packages_distributions()  # which takes long
OF_EXTRAS = {"comparison.py"}  # whose command needs the extra compare


def installed_with(text: str, known: set[str]) -> set[str]:
    """The names of a requirement's package, and of what that requires."""
    required = Requirement(text)
    name = canonicalize_name(required.name)
    if name not in known and (required.marker is None or required.marker.evaluate({"extra": ""})):
        known.add(name)
        for part in requires(name) or ():
            installed_with(part, known)
    return known


@pytest.mark.parametrize("file", sorted(ROOT.glob("project/**/*.py")), ids=lambda file: file.name)
def test_a_module_imports_nothing_beyond_the_requirements_that_the_page_installs(file):
    given: set[str] = set()
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if text := line.partition("#")[0].strip():
            installed_with(text, given)
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in {name.partition(".")[0] for name in names}:
            if name not in {*sys.stdlib_module_names, "project"} and file.name not in OF_EXTRAS:
                assert {*map(canonicalize_name, DISTRIBUTIONS[name])} & given, name


def test_a_run_resumes_the_next_day_from_read_only_input(workplace):
    def words(start: str) -> list[str]:
        (line,) = re.findall(rf"^{start} (.*)$", PAGE, re.M)
        return shlex.split(line.replace("/kaggle", f"{workplace}/kaggle"))

    inputs, runs = (workplace / "kaggle" / name for name in ("input", "working/runs"))
    make_folder(inputs / "photos", {"a": 12, "b": 12})
    options = [*words(r"timeout \w+ python -m project.fit"), *SMALL_FILES, "--data.batch_size=4"]
    small(*options, "--trainer.default_root_dir=undisturbed", data=())
    stop_at(3, *options, data=())
    (inputs / "yesterday").mkdir()
    runs.rename(inputs / "yesterday" / "runs")
    before = {path: path.stat().st_mtime_ns for path in inputs.rglob("*")}
    subprocess.run(["cp", *words(r"cp(?= -r \S+/yesterday)")], check=True)
    small(*options, data=())
    assert {path: path.stat().st_mtime_ns for path in inputs.rglob("*")} == before
    assert read_json(runs / "mine" / "metrics.json")["test"]["total"] > 0
    ends = [load(root / "mine/checkpoints/last.ckpt") for root in (runs, Path("undisturbed"))]
    torch.testing.assert_close(ends[0]["state_dict"], ends[1]["state_dict"], rtol=0, atol=0)
