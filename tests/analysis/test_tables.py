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
def test_rates_stand_beside_their_counts(classes):
    measured = metrics(classes)
    lines = metrics_table({"validation": measured.as_dict(), "test": measured.as_dict()}).splitlines()
    cells = {line[:12].strip(): line[12:] for line in lines}
    assert cells[""].split() == ["validation", "test"]
    both = f"{100 * measured.accuracy:.2f}% ({measured.correct}/{measured.total})"
    assert cells["accuracy"].count(both) == 2
    assert cells["macro F1"].split() == [f"{measured.f1:.4f}"] * 2
    assert cells["loss"].split() == ["0.1235"] * 2
    assert ("top5" in cells) == (classes > 5)
    assert classes <= 5 or cells["top5"].count(f"(7/{measured.total})") == 2


def test_the_columns_stand_one_below_another():
    lines = metrics_table({"validation": metrics(10).as_dict(), "test": metrics(10).as_dict()}).splitlines()
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("names", [["a", "b", "c"], ["short", "a very long name of a class", "x"]])
def test_every_class_has_a_row_under_the_headings(names):
    measured = metrics(3)
    heading, *lines = class_table(names, measured.per_class).splitlines()
    assert heading.split() == ["class", "precision", "recall", "F1", "images"]
    assert len({len(line) for line in (heading, *lines)}) == 1
    for name, line, row in zip(names, lines, measured.per_class, strict=True):
        numbers = [*(f"{row[key]:.4f}" for key in ("precision", "recall", "f1")), str(row["total"])]
        assert line.strip().removeprefix(name).split() == numbers


def test_a_class_without_a_figure_is_not_dropped_in_silence():
    with pytest.raises(ValueError, match="zip"):
        class_table(["a", "b"], metrics(3).per_class)


def test_the_summary_names_the_best_checkpoint_and_what_to_do_with_it(tmp_path):
    run = RunFolder(tmp_path, "mine")
    chosen = {"epoch": 18, "selection": {"monitor": "val/f1", "mode": "max"}}
    text = summary(run, {"val": metrics(3).as_dict(), "test": metrics(3).as_dict(), **chosen})
    assert f"project.evaluate {run.best}" in text
    assert "your own images" in text
    assert "your own images" not in summary(run, {"val": {}, "test": metrics(3).as_dict(), **chosen}, own_images=True)
    assert f"tensorboard --logdir {tmp_path}" in text
    assert "epoch 18, by val/f1" in text  # counted from 1, as in the lines of training
    assert metrics_table({"validation": metrics(3).as_dict(), "test": metrics(3).as_dict()}) in text


def test_a_file_of_metrics_is_whole_or_what_it_was(tmp_path):
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


def test_what_is_no_file_is_written_to(tmp_path):
    (tmp_path / "link.json").symlink_to("target.json")
    write_json("--output", tmp_path / "link.json", {"accuracy": 0.5})
    assert json.loads((tmp_path / "target.json").read_text()) == {"accuracy": 0.5}
    read, write = os.pipe()  # as behind /dev/stdout
    write_json("--output", f"/dev/fd/{write}", {"accuracy": 0.5})
    os.close(write)
    with open(read) as pipe:
        assert json.load(pipe) == {"accuracy": 0.5}


def test_asking_whether_a_file_can_be_written_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "there.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("later.json")
    for name in ("there.json", "new.json", "link.json"):
        require_writable("--output", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "there.json"]
    assert (tmp_path / "there.json").read_text() == "{}"
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written \(No such file or directory\)"):
        require_writable("--output", tmp_path / "no" / "new.json")
