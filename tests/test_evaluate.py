"""The promises of ``python -m project.evaluate``."""

import json
import shutil
from typing import Any

import pytest
import torch

from project.errors import UserError
from project.explore.prediction import predict
from project.run.checkpoint import ABOUT
from tests.conftest import evaluate, make_folder
from tests.data.image_files import write_folder


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    """A copy of a checkpoint, all alone."""
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_checkpoint_alone_gives_the_figures_of_its_run(tiny_run, checkpoint, tmp_path, split, batch_size):
    evaluate(f"--ckpt_path={checkpoint}", f"--split={split}", f"--data.batch_size={batch_size}")
    expected = json.loads((tiny_run / "metrics.json").read_text())[split]
    measured = json.loads((tmp_path / f"alone.{split}.metrics.json").read_text())
    assert measured["confusion_matrix"] == expected["confusion_matrix"]
    assert measured["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_the_table_has_a_row_for_each_class_and_the_file_says_the_same(checkpoint, tmp_path, capsys):
    evaluate(f"--ckpt_path={checkpoint}", f"--output={tmp_path / 'out.json'}")
    printed, written = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert list(written["per_class"]) == torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    for name, row in written["per_class"].items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert line.split()[1:] == [f"{row[rate]:.4f}" for rate in ("precision", "recall", "f1")] + [str(row["total"])]
    assert sum(row["total"] for row in written["per_class"].values()) == written["total"]


def test_other_images_of_the_same_classes_can_be_measured(checkpoint, tmp_path, capsys):
    names = torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    root = make_folder(tmp_path / "images", dict.fromkeys(names, 5))
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.image_size=32", "--data.num_workers=0"]
    evaluate(f"--ckpt_path={checkpoint}", *data, "--data.batch_size=8", "--data.resize=36")
    assert json.loads((tmp_path / "alone.test.metrics.json").read_text())["total"] == len(names)
    assert "scaled to 36 pixels before they are cut, in training it was 32" in capsys.readouterr().out


def test_images_are_fitted_as_the_checkpoint_says_or_not_at_all(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    for said in (content[ABOUT], content["hyper_parameters"]):
        said["preprocessing"] |= {"fit": "pad"}
    torch.save(content, checkpoint)
    root = write_folder(tmp_path / "images", dict.fromkeys(content[ABOUT]["class_names"], 5), size=(48, 20))
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.num_workers=0"]
    with pytest.raises(UserError, match=r"fitted by pad, .* get crop; use --data\.fit pad"):
        evaluate(f"--ckpt_path={checkpoint}", *data, "--data.batch_size=8", "--data.fit=crop")
    cli = evaluate(f"--ckpt_path={checkpoint}", *data, "--data.batch_size=8")
    splits: Any = cli.datamodule.splits
    files = splits["test"].files
    labels = [prediction.label for prediction in predict(cli.model, files)]
    right = sum(file.parent.name == label for file, label in zip(files, labels, strict=True))
    assert json.loads((tmp_path / "alone.test.metrics.json").read_text())["correct"] == right


def test_other_classes_are_refused(checkpoint, tmp_path):
    root = make_folder(tmp_path / "images", {"blue": 5, "red": 5})
    with pytest.raises(UserError, match=r"knows the 8 classes anemone, .* but the data has the 2 classes blue, red"):
        evaluate(f"--ckpt_path={checkpoint}", "--data=FolderDataModule", f"--data.root={root}")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no file '.*/nowhere\.ckpt'"):
        evaluate(f"--ckpt_path={tmp_path / 'nowhere.ckpt'}")


def test_a_place_for_the_figures_that_cannot_be_written_is_named(checkpoint, tmp_path):
    with pytest.raises(UserError, match=r"--output: .* cannot be written"):
        evaluate(f"--ckpt_path={checkpoint}", f"--output={tmp_path / 'no' / 'folder.json'}")
