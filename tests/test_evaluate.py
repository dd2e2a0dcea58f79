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
from project.analysis.data import was_trained_on
from project.analysis.prediction import predict
from project.data import FolderDataModule
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from tests.conftest import as_in_a_terminal, evaluate, make_folder
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import succeed
from tests.engine.loading.image_files import write_folder
from tests.small import one_line


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    """A copy of a checkpoint, all alone."""
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_checkpoint_alone_gives_the_figures_of_its_run(tiny_run, checkpoint, tmp_path, split, batch_size):
    evaluate(f"{checkpoint}", f"--split={split}", f"--data.batch_size={batch_size}")
    expected = json.loads((tiny_run / "metrics.json").read_text())[split]
    measured = json.loads((tmp_path / f"alone.{split}.metrics.json").read_text())
    assert measured["confusion_matrix"] == expected["confusion_matrix"]
    assert measured["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_the_table_has_a_row_for_each_class_and_the_file_says_the_same(checkpoint, tmp_path, capsys):
    evaluate(f"{checkpoint}", f"--output={tmp_path / 'out.json'}")
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
    evaluate(f"{checkpoint}", *data, "--data.batch_size=8", "--data.resize=36", "--data.interpolation=bicubic")
    written = json.loads((tmp_path / "alone.test.metrics.json").read_text())
    assert written["total"] == len(names)
    assert written["data"]["class_path"] == "FolderDataModule"
    assert written["data"]["init_args"].items() >= {"root": str(root), "resize": 36}.items()
    said = capsys.readouterr().err
    assert "scaled to 36 pixels before they are cut, in training it was 32" in said
    assert "scaled by bicubic interpolation, in training it was bilinear" in said


def test_all_images_of_another_folder_can_be_measured(checkpoint, tmp_path, capsys):
    names = torch.load(checkpoint, weights_only=True)[ABOUT]["class_names"]
    root = make_folder(tmp_path / "images", dict.fromkeys(names, 5))
    cli = evaluate(f"{checkpoint}", f"--data={root}", "--data.num_workers=0", "--split=all", "--data.batch_size=8")
    written = json.loads((tmp_path / "alone.all.metrics.json").read_text())
    files = sorted(root.rglob("*.*"))
    labels = [prediction.label for prediction in predict(cli.model, files)]
    right = sum(file.parent.name == label for file, label in zip(files, labels, strict=True))
    assert (written["split"], written["correct"], written["total"]) == ("all", right, 5 * len(names))
    assert f"({right}/{5 * len(names)})" in capsys.readouterr().out


def test_all_images_are_not_measured_where_it_was_trained_on_some(checkpoint, tmp_path, capsys):
    content = torch.load(checkpoint, weights_only=True)
    root = make_folder(tmp_path / "images", dict.fromkeys(content[ABOUT]["class_names"], 5))
    content[ABOUT]["data"] = {"class_path": "FolderDataModule", "init_args": {"root": str(root), "image_size": 32}}
    torch.save(content, checkpoint)
    for data in ([], [f"--data={root}"], [f"--data={root}/../images/"]):
        with pytest.raises(
            UserError, match="some of these images are those it was trained on; name others with --data"
        ):
            evaluate(f"{checkpoint}", *data, "--split=all", "--data.num_workers=0")
    with pytest.raises(UserError, match="image files"):
        evaluate(f"{checkpoint}", "--data=SyntheticFlowersDataModule", "--split=all")


def test_training_images_are_known_by_whatever_name(checkpoint, tmp_path, capsys):
    content = torch.load(checkpoint, weights_only=True)
    names, root = content[ABOUT]["class_names"], tmp_path / "images"
    for split, count in (("train", 5), ("test", 3)):
        make_folder(root / split, dict.fromkeys(names, count))
    content[ABOUT]["data"] = {"class_path": "FolderDataModule", "init_args": {"root": str(root), "image_size": 32}}
    torch.save(content, checkpoint)
    (tmp_path / "link").symlink_to(root / "train")
    files = [f"{file},{file.parent.name}" for file in sorted((root / "train").glob("*/*"))]
    (tmp_path / "images.csv").write_text("\n".join(["path,label", *files]))
    csv_file = ["--data=CSVDataModule", f"--data.file={tmp_path / 'images.csv'}"]
    options = [f"{checkpoint}", "--split=all", "--data.num_workers=0", "--data.batch_size=8"]
    for data in ([f"--data={root / 'train'}"], [f"--data={tmp_path / 'link'}"], [*csv_file, "--data.image_size=32"]):
        with pytest.raises(UserError, match="some of these images are those it was trained on"):
            evaluate(*options, *data)
    evaluate(*options, f"--data={root / 'test'}")
    assert json.loads((tmp_path / "alone.all.metrics.json").read_text())["total"] == 3 * len(names)
    assert "not known" not in capsys.readouterr().err
    root.rename(tmp_path / "elsewhere")
    evaluate(*options, f"--data={tmp_path / 'elsewhere' / 'test'}")
    assert "what it was trained on is not here, so whether these images" in capsys.readouterr().err


def test_training_images_of_a_data_set_with_a_name_are_known_in_its_folder(tmp_path):
    names = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    photos = write_folder(tmp_path / "data" / "flower_photos", dict.fromkeys(names, 4))
    about: Any = {"data": {"class_path": "FlowersDataModule", "init_args": {"root": str(tmp_path / "data")}}}
    assert was_trained_on(about, FolderDataModule(str(photos)))
    assert (
        was_trained_on(about, FolderDataModule(str(write_folder(tmp_path / "new", dict.fromkeys(names, 4))))) is False
    )


def test_images_are_fitted_as_the_checkpoint_says_or_not_at_all(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    for said in (content[ABOUT], content["hyper_parameters"]):
        said["preprocessing"] |= {"fit": "pad"}
    torch.save(content, checkpoint)
    root = write_folder(tmp_path / "images", dict.fromkeys(content[ABOUT]["class_names"], 5), size=(48, 20))
    data = ["--data=FolderDataModule", f"--data.root={root}", "--data.num_workers=0"]
    with pytest.raises(UserError, match=r"fitted by pad, .* get crop; use --data\.fit pad"):
        evaluate(f"{checkpoint}", *data, "--data.batch_size=8", "--data.fit=crop")
    cli = evaluate(f"{checkpoint}", *data, "--data.batch_size=8")
    splits: Any = cli.datamodule.splits
    files = splits["test"].files
    labels = [prediction.label for prediction in predict(cli.model, files)]
    right = sum(file.parent.name == label for file, label in zip(files, labels, strict=True))
    assert json.loads((tmp_path / "alone.test.metrics.json").read_text())["correct"] == right


def test_a_config_with_a_model_is_refused_in_one_line(checkpoint, tmp_path, capsys):
    (tmp_path / "my.yaml").write_text("model: ImageClassifier\n")
    said = one_line(lambda: evaluate(f"{checkpoint}", f"--config={tmp_path / 'my.yaml'}"), capsys)
    assert said == "error: there is no option '--model' here: the checkpoint says what the model is"


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
    monkeypatch.setattr("project.evaluate.EvaluateCLI._measure", None)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        evaluate(f"{checkpoint}", f"--output={tmp_path / 'no' / 'out.json'}")


def test_for_the_folder_of_a_run_its_checkpoint_is_named(tiny_run, tmp_path):
    with pytest.raises(UserError, match=r"it is a run's folder; its checkpoint is '.*/checkpoints/best\.ckpt'"):
        evaluate(f"{tiny_run}")
    with pytest.raises(UserError, match=r"there is no file .*: it is a folder$"):
        evaluate(f"{tmp_path}")
