"""The promises of ``python -m project.evaluate``."""

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from project import predict as command
from project.analysis.prediction import predict
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from tests.conftest import as_in_a_terminal, evaluate, make_folder
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import succeed
from tests.engine.loading.image_files import write_folder


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    """A copy of a checkpoint, all alone."""
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


def own_data(checkpoint, root):
    """Lets a checkpoint remember a folder as what it was trained on; returns the classes."""
    content = torch.load(checkpoint, weights_only=True)
    content[ABOUT]["data"] = {"class_path": "FolderDataModule", "init_args": {"root": str(root), "image_size": 32}}
    torch.save(content, checkpoint)
    return content[ABOUT]["class_names"]


def right(model, files):
    """The number of images that the prediction from Python labels as their folders do."""
    labels = [prediction.label for prediction in predict(model, files)]
    return sum(file.parent.name == label for file, label in zip(files, labels, strict=True))


@pytest.mark.parametrize(("split", "batch_size"), [("val", 7), ("test", 1)])
def test_a_checkpoint_alone_gives_the_metrics_of_its_run_in_a_table_and_a_file(
    tiny_run, checkpoint, tmp_path, capsys, split, batch_size
):
    evaluate(f"{checkpoint}", f"--split={split}", f"--data.batch_size={batch_size}")
    expected = json.loads((tiny_run / "metrics.json").read_text())[split]
    measured = json.loads((tmp_path / f"alone.{split}.metrics.json").read_text())
    assert measured["confusion_matrix"] == expected["confusion_matrix"]
    assert measured["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    printed = capsys.readouterr().out
    assert list(measured["per_class"]) == torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    for name, row in measured["per_class"].items():
        (line,) = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert line.split()[1:] == [f"{row[rate]:.4f}" for rate in ("precision", "recall", "f1")] + [str(row["total"])]


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
    names = own_data(checkpoint, root)
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


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A checkpoint whose predictions are of several classes, and a folder of images of these."""
    place = tmp_path_factory.mktemp("several")
    with as_in_a_terminal():
        one = trainer(1)
        model = classifier()
        model.preprocessing["resize"] = 36
        model.hparams["preprocessing"] = model.preprocessing
        one.test(model, datamodule=flowers(32, 12, 4), verbose=False)
        one.save_checkpoint(place / "some.ckpt")
    return place / "some.ckpt", make_folder(place / "images", dict.fromkeys(flowers(1, 1, 1).class_names, 9))


def predictions(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_predictions_of_each_image_are_those_of_the_predict_command(several, tmp_path, monkeypatch, processes):
    checkpoint, root = several
    out = tmp_path / "each.csv"
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.image_size=32", "--data.val_fraction=0.4"]
    options = [f"{checkpoint}", *data, "--data.batch_size=6", "--data.num_workers=0"]
    options += ["--split=val", f"--output={tmp_path / 'metrics.json'}", f"--output_predictions={out}"]
    if processes == 1:
        monkeypatch.setattr(ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1))
        evaluate(*options)
    else:
        parallel = ["--trainer.accelerator=cpu", "--trainer.devices=2"]
        succeed([sys.executable, "-m", "project.evaluate", *options, *parallel], tmp_path)
    found = predictions(out)
    paths = [row["path"] for row in found]
    assert paths == sorted(paths)
    assert len(set(paths)) == len(paths) == json.loads((tmp_path / "metrics.json").read_text())["total"]
    with as_in_a_terminal():
        alone = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--num_workers=0"]
        command.predict(command.parse([str(checkpoint), *paths, f"--output={tmp_path / 'predict.csv'}", *alone]))
    labelled = predictions(tmp_path / "predict.csv")
    assert [{name: row[name] for name in labelled[0]} for row in found] == labelled
    assert [row["true_label"] for row in found] == [Path(path).parent.name for path in paths]
    assert [json.loads(row["correct"]) for row in found] == [row["label"] == row["true_label"] for row in found]
    correct = json.loads((tmp_path / "metrics.json").read_text())["correct"]
    assert sum(row["correct"] == "true" for row in found) == correct
    assert len({row["label"] for row in found}) > 1


def test_metrics_that_cannot_be_written_cost_no_measuring(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.Trainer.test", None)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        evaluate(f"{checkpoint}", f"--output={tmp_path / 'no' / 'out.json'}")
