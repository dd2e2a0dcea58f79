"""Metrics as tables, and the files that options name."""

import json
import os
import resource

import pytest
import torch

from project.analysis.tables import class_table, metrics_table, require_writable, summary, write_json
from project.engine.errors import UserError
from project.engine.run.folder import RunFolder
from project.model.metrics import Metrics


def metrics(classes):
    confusion = torch.randint(0, 9, (classes, classes), generator=torch.Generator().manual_seed(0))
    return Metrics(0.123456, confusion, 7 if classes > 5 else None)


@pytest.mark.parametrize("classes", [3, 10])
def test_rates_stand_beside_their_counts_in_columns_and_every_class_has_a_row(classes):
    measured, names = metrics(classes), ["a very long name of a class", *map(str, range(classes - 1))]
    heading, *rows = class_table(names, measured.per_class).splitlines()
    assert heading.split() == ["class", "precision", "recall", "F1", "images"]
    for name, line, row in zip(names, rows, measured.per_class, strict=True):
        numbers = [*(f"{row[key]:.4f}" for key in ("precision", "recall", "f1")), str(row["total"])]
        assert line.strip().removeprefix(name).split() == numbers
        assert len(line) == len(heading)
    lines = metrics_table({"validation": measured.as_dict(), "test": measured.as_dict()}).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = {line[:12].strip(): line[12:] for line in lines}
    assert cells[""].split() == ["validation", "test"]
    assert cells["accuracy"].count(f"{100 * measured.accuracy:.2f}% ({measured.correct}/{measured.total})") == 2
    assert cells["macro F1"].split() == [f"{measured.f1:.4f}"] * 2
    assert cells["loss"].split() == ["0.1235"] * 2
    assert cells.get("top5", "").count(f"(7/{measured.total})") == (2 if classes > 5 else 0)


def test_the_summary_names_the_best_checkpoint_and_next_commands(tmp_path):
    run = RunFolder(tmp_path, "mine")
    found = {"val": {}, "test": metrics(3).as_dict(), "epoch": 18, "selection": {"monitor": "val/f1", "mode": "max"}}
    text = summary(run, found)
    assert f"project.evaluate {run.best}" in text
    assert "your own images" in text
    assert "your own images" not in summary(run, found, own_images=True)
    assert "epoch 18, by val/f1" in text
    assert metrics_table({"test": metrics(3).as_dict()}) in text


def test_a_file_of_metrics_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "metrics.json"
    write_json("--output", path, {"accuracy": 0.5})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UserError, match=r"^--output: '.*' cannot be written \(File too large\)$"):
            write_json("--output", path, {"accuracy": [0.25] * 99})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads(path.read_text()) == {"accuracy": 0.5}
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_pipes_are_written_to(tmp_path):
    (tmp_path / "link.json").symlink_to("target.json")
    read, write = os.pipe()  # as behind /dev/stdout
    for place in (tmp_path / "link.json", f"/dev/fd/{write}"):
        write_json("--output", place, {"accuracy": 0.5})
    os.close(write)
    with open(read) as pipe:
        assert pipe.read() == (tmp_path / "target.json").read_text()


def test_checking_that_a_file_can_be_written_changes_nothing(tmp_path):
    (tmp_path / "there.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("later.json")
    for name in ("there.json", "new.json", "link.json"):
        require_writable("--output", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "there.json"]
    assert (tmp_path / "there.json").read_text() == "{}"
