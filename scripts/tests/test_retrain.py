"""A checkpoint in use is replaced by that of a new training, unless it is worse."""

import re
from pathlib import Path

import pytest
import retrain
from scipy.stats import binomtest

from tests.conftest import (
    FAST,
    QUIET,
    SLIM,
    TINY_TRAINER,
    evaluate,
    fit,
    make_folder,
    one_line,
    rows,
)

OPTIONS = [
    *("--data.image_size=16", "--data.num_workers=0", "--data.batch_size=8"),
    *("--data.val_fraction=0.3", *TINY_TRAINER, *QUIET, *SLIM, *FAST),
]
SERVED = Path("served.ckpt")


@pytest.fixture
def replaced_by(workplace, monkeypatch):
    """Trains on a folder, in this process; True if that replaced the checkpoint."""
    make_folder(workplace / "images", dict.fromkeys(("rose", "tulip"), 30))

    def in_this_process(command: list[str]) -> int:
        _python, _m, module, *options = command
        _ = fit(*options) if module == "project.fit" else evaluate(*options)
        return 0

    def train(name: str, *options: str) -> bool:
        before = SERVED.read_bytes() if SERVED.exists() else b""
        code = retrain.main(SERVED, "images", name, [*OPTIONS, *options])
        best = Path("runs", name, "checkpoints", "best.ckpt").read_bytes()
        assert SERVED.read_bytes() == (before if code else best)
        assert [path.name for path in Path().glob("*served*")] == ["served.ckpt"]
        return code == 0

    monkeypatch.setattr("retrain.run_apart", in_this_process)
    monkeypatch.setattr("training.run_apart", in_this_process)
    return train


@pytest.mark.slow
def test_a_new_checkpoint_is_used_unless_it_is_worse_on_the_same_validation_images(
    replaced_by, capsys
):
    assert replaced_by("first", "--trainer.max_epochs=3")
    assert replaced_by("second", "--trainer.max_epochs=3")  # as good
    capsys.readouterr()
    assert not replaced_by("untrained", "--model.optimizer.lr=0")
    said = capsys.readouterr().out
    (counts,) = re.findall(r"^ *served +new +(\d+) +(\d+) +(\S+)$", said, re.M)
    files = [rows(Path("runs/untrained", f"{which}.csv")) for which in ("served", "new")]
    before, after = ({row["path"]: row["correct"] for row in file} for file in files)
    changed = [before[path] for path in before if before[path] != after[path]]
    assert [*map(int, counts[:2])] == [changed.count("true"), changed.count("false")]
    expected = binomtest(changed.count("true"), len(changed)).pvalue
    assert float(counts[2]) == pytest.approx(expected, rel=1e-3)
    assert "served.ckpt stays: runs/untrained/checkpoints/best.ckpt is worse" in said
    other = ("other", "--data.split_seed=7", "--trainer.max_steps=1")
    assert "those it was trained on" in one_line(lambda: replaced_by(*other), capsys)


@pytest.mark.slow
def test_options_that_say_how_a_table_is_read_are_for_both_and_other_classes_cost_no_training(
    replaced_by, workplace, capsys
):
    assert replaced_by("folder", "--trainer.max_steps=1")
    paths = sorted((workplace / "images").rglob("*.*"))
    table = [
        "photo,kind",
        *(f"{path.relative_to(workplace / 'images')},{path.parent.name}" for path in paths),
    ]
    Path("table.csv").write_text("\n".join(table))
    source = ["--data.path_column", "photo", "--data.label_column=kind", "--data.root", "images"]
    retrain.main(SERVED, "table.csv", "table", [*OPTIONS, *source, "--trainer.max_steps=1"])
    assert rows("runs/table/served.csv")[0].keys() == rows("runs/table/new.csv")[0].keys()
    (workplace / "images" / "rose").rename(workplace / "images" / "aster")
    renamed = ("renamed", "--trainer.max_steps=1")
    assert "has images of aster, but" in one_line(lambda: replaced_by(*renamed), capsys)
    assert not Path("runs/renamed").exists()


@pytest.mark.slow
def test_of_a_network_of_ones_own_a_finished_run_is_no_training_on_new_images(
    replaced_by, workplace, capsys
):
    (workplace / "mine.py").write_text(
        "from project.model.small_networks import ResNet9\n\n"
        "def net(num_classes):\n    return ResNet9(num_classes, width=8)\n"
    )
    own = ("--model.arch=mine.net", "--trainer.max_steps=1")
    assert replaced_by("first", *own)
    assert replaced_by("second", *own)
    photo = next((workplace / "images" / "rose").iterdir())
    photo.with_name("new.jpg").write_bytes(photo.read_bytes())
    said = one_line(lambda: replaced_by("second", *own), capsys)
    assert "the data has changed since 'runs/second' was trained" in said
