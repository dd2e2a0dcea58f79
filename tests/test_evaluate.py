"""The promises of ``python -m project.evaluate``."""

import json
import shutil
from typing import Any

import pytest
import torch

from project.analysis.prediction import predict
from project.analysis.tables import class_table
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from tests.conftest import evaluate, make_folder
from tests.engine.loading.image_files import write_folder


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


def right(model, files):
    """The number of images that the prediction from Python labels as their folders do."""
    labels = [prediction.label for prediction in predict(model, files)]
    return sum(file.parent.name == label for file, label in zip(files, labels, strict=True))


def test_a_checkpoint_alone_is_measured_into_a_table_and_a_file_beside_it(checkpoint, tmp_path, capsys):
    evaluate(f"{checkpoint}", "--split=val")  # that the metrics are those of the run is in test_metrics_by_hand.py
    rows = json.loads((tmp_path / "alone.val.metrics.json").read_text())["per_class"]
    assert list(rows) == torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    assert class_table(list(rows), list(rows.values())) in capsys.readouterr().out


def test_other_images_of_the_same_classes_can_be_measured(checkpoint, tmp_path, capsys):
    names = torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    root = make_folder(tmp_path / "images", dict.fromkeys(names, 5))
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.image_size=32", "--data.num_workers=0"]
    evaluate(f"{checkpoint}", *data, "--data.batch_size=8", "--data.resize=36", "--data.interpolation=bicubic")
    written = json.loads((tmp_path / "alone.test.metrics.json").read_text())
    assert written["total"] == len(names)
    assert written["data"]["class_path"] == "FolderDataModule"
    assert written["data"]["init_args"].items() >= {"root": str(root), "resize": 36}.items()
    note = "images are scaled to 36 pixels, bicubic; in training it was 32 pixels, bilinear"
    assert note in capsys.readouterr().err


def test_all_images_of_another_folder_can_be_measured_but_no_training_images_by_any_name(checkpoint, tmp_path, capsys):
    root, output = tmp_path / "images", tmp_path / "alone.all.metrics.json"
    content = torch.load(checkpoint, weights_only=True)
    content[ABOUT]["data"] = {"class_path": "FolderDataModule", "init_args": {"root": str(root), "image_size": 32}}
    torch.save(content, checkpoint)
    names = content[ABOUT]["class_names"]
    for split, count in (("train", 5), ("test", 3)):
        make_folder(root / split, dict.fromkeys(names, count))
    (tmp_path / "link").symlink_to(root / "train")
    files = [f"{file},{file.parent.name}" for file in sorted((root / "train").glob("*/*"))]
    (tmp_path / "images.csv").write_text("\n".join(["path,label", *files]))
    csv_file = ["--data=CSVDataModule", f"--data.file={tmp_path / 'images.csv'}", "--data.image_size=32"]
    options = [f"{checkpoint}", "--split=all", "--data.num_workers=0", "--data.batch_size=8"]
    for data in ([], [f"--data={root}/../images/"], [f"--data={tmp_path / 'link'}"], csv_file):
        with pytest.raises(UserError, match="some of these images are those it was trained on; name others with"):
            evaluate(*options, *data)
    with pytest.raises(UserError, match="image files"):
        evaluate(f"{checkpoint}", "--data=SyntheticFlowersDataModule", "--split=all")
    cli = evaluate(*options, f"--data={root / 'test'}")
    written, count = json.loads(output.read_text()), right(cli.model, sorted((root / "test").rglob("*.*")))
    assert (written["split"], written["correct"], written["total"]) == ("all", count, 3 * len(names))
    said = capsys.readouterr()
    assert f"({count}/{3 * len(names)})" in said.out
    assert "not known" not in said.err
    root.rename(tmp_path / "elsewhere")
    evaluate(*options, f"--data={tmp_path / 'elsewhere' / 'test'}")
    assert "what it was trained on is not here, so whether these images" in capsys.readouterr().err


def test_images_are_fitted_as_the_checkpoint_says_or_not_at_all(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    for said in (content[ABOUT], content["hyper_parameters"]):
        said["preprocessing"] |= {"fit": "pad"}
    torch.save(content, checkpoint)
    root = write_folder(tmp_path / "images", dict.fromkeys(content[ABOUT]["class_names"], 5), size=(48, 20))
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.num_workers=0"]
    with pytest.raises(UserError, match=r"fitted by pad, .* get crop; see --data\.fit"):
        evaluate(f"{checkpoint}", *data, "--data.batch_size=8", "--data.fit=crop")
    cli = evaluate(f"{checkpoint}", *data, "--data.batch_size=8")
    splits: Any = cli.datamodule.splits
    measured = json.loads((tmp_path / "alone.test.metrics.json").read_text())
    assert measured["correct"] == right(cli.model, splits["test"].files)


def test_other_classes_are_refused(checkpoint, tmp_path):
    root = make_folder(tmp_path / "images", {"blue": 5, "red": 5})
    with pytest.raises(UserError, match=r"knows the 8 classes anemone, .* but the data has the 2 classes blue and red"):
        evaluate(f"{checkpoint}", "--data=FolderDataModule", f"--data.root={root}")


def test_metrics_that_cannot_be_written_cost_no_measuring(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.Trainer.test", None)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        evaluate(f"{checkpoint}", f"--output={tmp_path / 'no' / 'out.json'}")
