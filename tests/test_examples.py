"""Each file of examples/ by the command that it shows, shortened; what one computes is compared with something independent."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, balanced_accuracy_score, log_loss
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from examples.callback import GradientNorm
from examples.data_module import DigitsDataModule
from examples.focal_loss import FocalLoss
from examples.metric import BalancedAccuracy
from examples.multilabel import FlowerPairs, MultilabelClassifier
from examples.multilabel_csv import LabelsCSV
from project.analysis.prediction import predict
from project.deploy.formats import load_onnx
from project.deploy.network import trace
from project.engine.errors import UserError
from project.export import export
from project.export import parse as parse_export
from project.model import ImageClassifier
from project.report import parse as parse_report
from project.report import report
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, draw_image, evaluate, fit, make_folder
from tests.small import require_same_end, small, stop_at
from tests.stress import outcome

ROOT = Path(__file__).parents[1]
FILES = sorted(path for path in (ROOT / "examples").iterdir() if path.stem != "__init__" and path.is_file())
LIMITS = {"multilabel": 60, "network": 10, "data": 20}  # lines; of all others 25
QUICK = ["--trainer.max_steps=2", "--model.arch=resnet9_slim"]
NO_PLOTS = [f"--callbacks.{name}=false" for name in ("first_batch", "confusion_matrix", "confident_mistakes")]
RESIZED = ["--data.image_size=32", "--data.batch_size=4", "--data.num_workers=0"]
PAIRS = ["--data=examples.multilabel.FlowerPairs", *TINY_DATA]
MULTILABEL = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]


def options(file: Path) -> list[str]:
    """Those of the command that a file shows at its top."""
    (command,) = re.findall(r"^(?:# )?python -m project\.fit (.*)$", file.read_text(), re.M)
    return shlex.split(command)


def lines(file: Path) -> int:
    """How many lines a file has without blank ones, comments and docstrings."""
    text = file.read_text()
    ours = {
        number for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")
    }
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                ours -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(ours)


def data_for(name: str) -> list[str]:
    """Makes what an example needs in the current folder; further options."""
    if name == "csv":
        make_folder(Path("images"), {"rose": 8, "tulip": 8})
        rows = [f"{path},{path.parent.name}" for path in sorted(Path("images").glob("*/*"))]
        Path("labels.csv").write_text("\n".join(["path,label", *rows]))
    elif name == "multilabel_csv":
        make_folder(Path("images"), {"rose": 8, "tulip": 8})
        parities = {path: "odd" if int(path.stem) % 2 else "" for path in sorted(Path("images").glob("*/*"))}
        rows = [f"{path},{path.parent.name} {odd}" for path, odd in parities.items()]
        Path("labels.csv").write_text("\n".join(["path,labels", *rows]))
        return [*RESIZED, "--data.val_fraction=0.3", "--data.test_fraction=0.3"]  # some of each label in both
    elif name == "npz_dataset":
        pixels = np.random.default_rng(0).integers(0, 256, (24, 28, 28, 3), dtype=np.uint8)
        np.savez("FILE.npz", train_images=pixels, train_labels=np.arange(24)[:, None] % 3)
    elif name == "torchvision_data":
        pets = Path("data/oxford-iiit-pet")
        (pets / "annotations").mkdir(parents=True)
        (pets / "images").mkdir()
        for file, numbers in {"trainval": range(8), "test": range(8, 12)}.items():
            found = [
                (f"{breed}_{number}", label) for label, breed in enumerate(("Bengal", "Boxer"), 1) for number in numbers
            ]
            (pets / "annotations" / f"{file}.txt").write_text("".join(f"{pet} {label} 1 1\n" for pet, label in found))
            for pet, label in found:
                draw_image(label / 2, seed=0).save(pets / "images" / f"{pet}.jpg")
    else:
        return [] if name == "data_module" else TINY_DATA
    return RESIZED


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_command_of_an_example_trains(file, workplace):
    if file.stem == "timm_network":
        pytest.importorskip("timm", reason="timm is an extra")
    given = [str(ROOT / word) if word.startswith("examples/") else word for word in options(file)]
    quick = QUICK if "arch" not in file.read_text() else QUICK[:1]
    few = [f"--trainer.limit_{split}_batches=2" for split in ("val", "test")]
    fit(*given, *data_for(file.stem), *TINY_TRAINER, *QUIET, *quick, *few, *NO_PLOTS, "--name=run")
    metrics = json.loads(Path("runs/run/metrics.json").read_text())
    assert metrics["test"]["total"] > 0
    if file.stem == "callback":
        assert [point.step for point in EventAccumulator("runs/run").Reload().Scalars("train/gradient_norm")] == [0, 1]
    if file.stem == "metric":
        assert metrics["selection"]["monitor"] == "val/balanced_accuracy"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_page_counts_the_lines_of_an_example(file):
    limit = next((limit for name, limit in LIMITS.items() if name in file.stem), 25)
    assert lines(file) <= limit
    for page, folder in (("docs/extending.md", "../examples"), ("README.md", "examples")):
        (row,) = [row for row in (ROOT / page).read_text().splitlines() if f"]({folder}/{file.name})" in row]
        assert row.split("|")[3].strip() == str(lines(file)), f"{page}: {file.name}"


def test_the_labels_of_a_csv_are_those_of_the_files_that_it_names(workplace):
    data_for("multilabel_csv")
    data = LabelsCSV(image_size=32)
    assert data.class_names == ["odd", "rose", "tulip"]
    splits = data.load()
    for split in splits.values():
        expected = [
            [int(file.stem) % 2, file.parent.name == "rose", file.parent.name == "tulip"] for file in split.files
        ]
        assert split.labels.tolist() == expected
    assert sorted(file for split in splits.values() for file in split.files) == sorted(Path("images").glob("*/*"))


def test_labels_of_one_class_are_refused_by_a_model_of_several(workplace):
    with pytest.raises(UserError, match=r"the labels are of one class an image; see examples/multilabel_csv\.py"):
        fit(*MULTILABEL, *TINY_DATA, *TINY_TRAINER, *QUIET, *QUICK, "--name=run")
    assert not Path("runs/run").exists()


def test_the_digits_are_scikit_learns():
    data = DigitsDataModule(split_seed=1)
    splits = data.load()
    assert [len(splits[split]) / 1797 for split in ("train", "val", "test")] == pytest.approx(
        [0.7, 0.15, 0.15], abs=0.01
    )
    digits = load_digits()
    found = sorted(
        (int(label), image[0, ::4, ::4].tolist())
        for one in splits.values()
        for image, label in zip(one.images, one.labels, strict=True)
    )
    expected = (digits.images * 255 / 16).astype(np.uint8).tolist()
    assert found == sorted(zip(digits.target.tolist(), expected, strict=True))


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_focal_loss_is_its_formula(gamma):
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(50, 7, generator=generator), torch.randint(7, (50,), generator=generator)
    shares = torch.rand(50, 7, generator=generator).softmax(1)
    exact = np.exp(logits.double().numpy())
    p = exact / exact.sum(1, keepdims=True)
    costs = -((1 - p) ** gamma) * np.log(p)
    np.testing.assert_allclose(FocalLoss(gamma)(logits, labels), costs[range(50), labels], rtol=1e-5)
    np.testing.assert_allclose(FocalLoss(gamma)(logits, shares), (shares.double().numpy() * costs).sum(1), rtol=1e-5)


def test_the_balanced_accuracy_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(torch.tensor([0.7, 0.2, 0.1, 0.0]), 300, replacement=True, generator=generator)
    logits = torch.randn(300, 4, generator=generator)
    logits[range(300), labels] += 1
    logits[:, 3] = -9.0  # a class that does not occur
    metric = BalancedAccuracy(4)
    for at in torch.arange(300).split(64):
        metric.update(logits[at], labels[at])
    assert float(metric.compute()) == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)), rel=1e-6)


def test_the_gradient_norm_is_that_of_all_gradients_at_the_steps_that_are_logged():
    logged: list[float] = []
    network: Any = nn.Linear(3, 2)
    network.log = lambda _, value: logged.append(float(value))
    for number, parameter in enumerate(network.parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    for step in range(10):
        trainer: Any = SimpleNamespace(global_step=step, log_every_n_steps=5)
        GradientNorm().on_before_optimizer_step(trainer, network, torch.optim.SGD(network.parameters()))
    flat = np.concatenate([parameter.grad.double().numpy().ravel() for parameter in network.parameters()])
    assert logged == pytest.approx([np.sqrt((flat**2).sum())] * 2, rel=1e-6)


@pytest.fixture(scope="module")
def multilabel(tmp_path_factory) -> Path:
    """The folder of a finished run of the multi-label classifier, with all its plots."""
    root: Path = tmp_path_factory.mktemp("multilabel")
    options = [*PAIRS, *MULTILABEL, *TINY_TRAINER, *QUIET, *QUICK[1:], "--callbacks.projector.count=13"]
    fit(*options, f"--trainer.default_root_dir={root}", "--name=run", drawn=True)
    return root / "run"


def test_multi_label_metrics_are_scikit_learns(multilabel):
    metrics = json.loads((multilabel / "metrics.json").read_text())
    assert metrics["selection"]["monitor"] == "val/mAP"
    model = ImageClassifier.load_from_checkpoint(multilabel / "checkpoints" / "best.ckpt").eval()
    assert isinstance(model, MultilabelClassifier)
    data = FlowerPairs(train_size=64, val_size=24, test_size=26, image_size=32)
    for split in ("val", "test"):
        images = data.load()[split]
        assert set(images.labels.sum(1).tolist()) <= {1, 2}
        with torch.no_grad():
            probabilities = (
                torch.cat(
                    [model.network(model.normalization(image[None], like=torch.zeros(()))) for image in images.images]
                )
                .double()
                .sigmoid()
            )
        found, labels = metrics[split], images.labels.numpy()
        assert found["mAP"] == pytest.approx(average_precision_score(labels, probabilities), rel=1e-4)
        each = [log_loss(labels[:, at], probabilities[:, at]) for at in range(labels.shape[1])]
        assert found["loss"] == pytest.approx(np.mean(each), rel=1e-4)
        assert found["correct"] == int(((probabilities > 0.5).numpy() == labels).all(1).sum())


@pytest.mark.slow
def test_the_projector_names_all_classes_of_an_image(multilabel):
    (table,) = multilabel.rglob("metadata.tsv")
    data = FlowerPairs(train_size=64, val_size=24, test_size=26, image_size=32)
    data.setup("test")
    classes = [{data.class_names[int(number)] for number in row.nonzero()} for row in data.splits["test"].labels[::2]]
    assert [set(line.split(", ")) for line in table.read_text().splitlines()] == classes
    assert {len(names) for names in classes} == {1, 2}


def test_multi_label_evaluation_in_a_process_of_its_own_says_the_same(multilabel, tmp_path):
    checkpoint, output = multilabel / "checkpoints" / "best.ckpt", tmp_path / "test.json"
    command = (
        f"-m project.evaluate {checkpoint} --import examples.multilabel --output {output} --trainer.accelerator cpu"
    )
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "mAP" in done.stdout
    assert re.search(r"class +precision +recall +F1 +images", done.stdout)
    expected, found = json.loads((multilabel / "metrics.json").read_text())["test"], json.loads(output.read_text())
    assert {name: found[name] for name in expected} == expected


def test_a_report_of_a_multi_label_run_has_its_own_metric_and_its_classes(multilabel, tmp_path, capsys):
    page = report(parse_report([str(multilabel), f"--output={tmp_path / 'page.html'}"])).read_text()
    test = json.loads((multilabel / "metrics.json").read_text())["test"]
    for shown in (f"<b>{test['mAP']:.4f}</b><span>mAP, test", f"<b>{test['loss']:.4f}</b><span>loss, test"):
        assert shown in page
    assert "An image may have several classes; it is correct where all of them are." in page
    assert "Confusion matrix</h2>" not in page
    images = [int(row) for row in re.findall(r"<td>(\d+)</td></tr>", page)]
    assert images == [has + hit for _, (has, hit) in test["confusion_matrix"]]
    assert "images can be shown only where the model gives each image one class" in page
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow  # starts two processes, each of which imports everything
def test_multi_label_metrics_are_the_same_on_two_devices(multilabel, tmp_path):
    checkpoint, found = multilabel / "checkpoints" / "best.ckpt", []
    for devices in (1, 2):
        output = tmp_path / f"{devices}.json"
        command = f"-m project.evaluate {checkpoint} --import examples.multilabel --output {output} --data.test_size 25"
        given = [*shlex.split(command), "--trainer.accelerator=cpu", f"--trainer.devices={devices}"]
        subprocess.run([sys.executable, *given], cwd=ROOT, check=True)
        found.append(json.loads(output.read_text()))
    assert found[0] == found[1]


def test_a_multi_label_training_that_is_stopped_resumes_exactly(workplace):
    data = [*PAIRS, "--data.cutout=8"]
    small(*MULTILABEL, "--name=whole", data=data)
    expected = outcome(Path("runs/whole"))
    Path("runs/whole").rename(workplace / "whole")
    stop_at(3, *PAIRS[:1], *MULTILABEL)
    small(*MULTILABEL, data=data)
    require_same_end(Path("runs/run"), expected)


def test_multi_label_predictions_and_exports_are_sigmoids(multilabel, tmp_path):
    model = ImageClassifier.load_from_checkpoint(multilabel / "checkpoints" / "best.ckpt").eval()
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = 1 / (1 + np.exp(-model(images).double().numpy()))
        np.testing.assert_allclose(trace(model).module()(images), expected, rtol=1e-4)
    draw_image(0.5, seed=0, size=(32, 32)).save(tmp_path / "photo.png")
    (found,) = predict(model, [tmp_path / "photo.png"])
    assert found.probability == max(found.probabilities.values())
    assert sum(found.probabilities.values()) != pytest.approx(1)


def test_a_multi_label_export_in_int8_counts_images_whose_labels_are_all_right(
    multilabel, tmp_path, monkeypatch, capsys
):
    checkpoint, output = multilabel / "checkpoints" / "best.ckpt", tmp_path / "int8.onnx"
    export(parse_export([str(checkpoint), f"--output={output}", "--quantize=int8"]))
    said = capsys.readouterr().out
    model, images = ImageClassifier.load_from_checkpoint(checkpoint).eval(), tmp_path / "images"
    data = FlowerPairs(train_size=64, val_size=24, test_size=26, image_size=32)
    data.setup("test")
    test: Any = data.splits["test"]
    with torch.no_grad():
        before, after = model(test.images).numpy() > 0, load_onnx(output)(test.images).numpy() > 0.5
    right = [int((decided == test.labels.numpy()).all(1).sum()) for decided in (before, after)]
    (row,) = [line.split() for line in said.splitlines() if line.split()[:1] == ["accuracy"]]
    assert row[2::2] == [f"({count}/26)" for count in right]
    assert f"changed labels        {(before != after).any(1).sum()} of 26" in said
    # what follows looks at the lines alone, so the network is not written once more
    monkeypatch.setattr("project.export.write_onnx", lambda _, path: shutil.copy(output, path))
    monkeypatch.setattr("project.export.quantize_to_int8", lambda _source, path, _images: shutil.copy(output, path))
    monkeypatch.setattr("project.export.TOLERANCE", 1.0)
    images.mkdir()
    for number, name in enumerate(model.class_names):
        (images / name).mkdir()
        draw_image(number / 8, seed=number, size=(32, 32)).save(images / name / "photo.png")
    export(
        parse_export([str(checkpoint), f"--output={output}", "--overwrite", "--quantize=int8", f"--images={images}"])
    )
    assert "accuracy" not in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--data.class_balance=1", "--model.loss.class_weights=balanced"])
def test_balancing_needs_one_class_an_image(workplace, option):
    with pytest.raises(UserError, match="needs images of one class each"):
        small(*MULTILABEL, option, data=PAIRS)


def test_predictions_of_each_image_need_one_class_an_image(multilabel, tmp_path):
    with pytest.raises(UserError, match="--output_predictions needs images of one class each"):
        evaluate(
            str(multilabel / "checkpoints" / "best.ckpt"),
            f"--output={tmp_path}/a.json",
            f"--output_predictions={tmp_path}/a.csv",
        )
