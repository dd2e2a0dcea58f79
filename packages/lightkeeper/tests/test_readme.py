"""The README's script runs as it stands, and goes on where it was stopped; names of the changelog exist."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


# of Lightning's own ModelCheckpoint
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_the_script_of_the_readme_trains_and_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, script = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(re.findall(r"# \d$", script, re.MULTILINE)) <= 6
    steps = list[tuple[int, bool]]()
    for epochs in (1, 2):
        names: dict[str, Any] = {}
        exec(module + script.replace("max_epochs=10", f"max_epochs={epochs}"), names)
        steps.append(
            (names["trainer"].global_step, "val/accuracy" in names["trainer"].callback_metrics)
        )
    assert steps == [(30, True), (60, True)]


def test_a_project_finds_the_names_of_before_where_the_changelog_says():
    text = (README.parent / "CHANGELOG.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| `(lightkeeper\.\w+)` \|$", text, re.MULTILINE)
    found = {name for names, part in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(found) == 17  # of project.engine; the text says where the other three are
    for names, part in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert getattr(import_module(part), name)
    for part, name in re.findall(r"`(lightkeeper\.\w+)\.(\w+)[`(]", text):
        assert getattr(import_module(part), name)
