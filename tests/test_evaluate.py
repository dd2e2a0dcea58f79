"""The promises of ``python -m project.evaluate``, and of ``python -m project.report``, whose page shows what was measured."""

import json
import math
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule
from lightkeeper.images._checkpoint import ABOUT
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, bootstrap, norm, t
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F

from project.analysis.evaluation import Evaluation, bootstrap_intervals
from project.analysis.tables import class_rates, class_table, metrics_table
from project.model import ImageClassifier
from tests.conftest import (
    QUIET,
    SLIM,
    SMALL_FILES,
    TINY,
    TINY_TRAINER,
    cases,
    evaluate,
    fit,
    label,
    load,
    make_folder,
    one_line,
    quiet_trainer,
    read_json,
    report_of,
    rows,
)


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


def right(model, files):
    """The number of images that the prediction from Python labels as their folders do."""
    labels = [prediction.label for prediction in model.predict_files(files)]
    return sum(file.parent.name == label for file, label in zip(files, labels, strict=True))


@pytest.mark.slow
def test_a_run_in_half_precision_is_tested_in_float32_as_its_checkpoint_is(workplace):
    fit(*TINY, *SLIM, "--trainer.precision=bf16-true", "--name=half")
    evaluate("runs/half/checkpoints/best.ckpt", "--output=half.json")
    assert read_json("half.json")["loss"] == read_json("runs/half/metrics.json")["test"]["loss"]


def test_all_images_of_another_folder_can_be_measured_but_no_training_images(
    checkpoint, tmp_path, capsys
):
    root = tmp_path / "images"
    content = load(checkpoint)
    arguments = {"root": str(root), "image_size": 32}
    content[ABOUT]["data"] = {"class_path": "FolderDataModule", "init_args": arguments}
    torch.save(content, checkpoint)
    names = content[ABOUT]["class_names"]
    make_folder(root / "train", dict.fromkeys(names, 5))
    make_folder(root / "test", dict.fromkeys(names, 3))
    options = [f"{checkpoint}", "--split=all", "--data.num_workers=0", "--data.batch_size=8"]
    with pytest.raises(UserError, match="some of these images are those it was trained on"):
        evaluate(*options)
    cli = evaluate(*options, f"--data={root / 'test'}")
    measured = read_json(tmp_path / "alone.all.metrics.json")
    count = right(cli.model, sorted((root / "test").rglob("*.*")))
    assert (measured["correct"], measured["total"]) == (count, 3 * len(names))
    printed = capsys.readouterr()
    assert f"({count}/{3 * len(names)}, " in printed.out
    rates = measured["per_class"]
    assert class_table(list(rates), list(rates.values())) in printed.out
    assert [*rates] == names
    assert "may be among them" not in printed.err
    elsewhere = root.rename(tmp_path / "elsewhere")
    for chosen in (options, [options[0], *options[2:]]):
        evaluate(*chosen, f"--data={elsewhere / 'test'}")
        assert "images of training are not here, so these may be among" in capsys.readouterr().err


def test_other_images_are_prepared_as_the_checkpoint_says_or_not_at_all(checkpoint, tmp_path):
    content = load(checkpoint)
    for part in (content[ABOUT], content["hyper_parameters"]):
        part["preprocessing"] |= {"fit": "pad"}
    torch.save(content, checkpoint)
    names = content[ABOUT]["class_names"]
    root = make_folder(tmp_path / "images", dict.fromkeys(names, 5), size=(48, 20))
    options = [f"{checkpoint}", f"--data={root}", "--data.num_workers=0", "--data.batch_size=8"]
    with pytest.raises(UserError, match=r"trained with --data\.fit pad, but would get crop"):
        evaluate(*options, "--data.fit=crop")
    cli: Any = evaluate(*options)
    measured = read_json(tmp_path / "alone.test.metrics.json")
    assert measured["correct"] == right(
        cli.model, [Path(file.path) for file in cli.datamodule.files() if file.split == "test"]
    )
    assert measured["data"]["class_path"] == "FolderDataModule"
    assert measured["data"]["init_args"].items() >= {"root": str(root), "fit": "pad"}.items()


def test_a_temperature_is_kept_and_used_and_changes_no_prediction(
    checkpoint, tmp_path, workplace, capsys
):
    """Compared with the temperature that scipy finds for the probabilities of before."""
    make_folder(tmp_path / "photos", {"a": 9})
    evaluate(f"{checkpoint}", "--split=val", "--output_predictions=val.csv", "--probabilities")
    known = rows("val.csv")
    names = load(checkpoint)[ABOUT]["class_names"]
    logits = torch.tensor(
        [[math.log(float(row[f"probability_{name}"])) for name in names] for row in known],
        dtype=torch.float64,
    )
    labels = torch.tensor([names.index(row["true_label"]) for row in known])
    label(checkpoint, tmp_path / "photos", "--output=before.csv", "--probabilities")
    before, content = rows("before.csv"), load(checkpoint)
    for command, option, why in (
        (label, "--coverage=0.8", "--coverage needs a calibrated checkpoint"),
        (label, "--coverage=2", r"--coverage: must be from 0\.01 to 0\.99, got 2"),
        (evaluate, "--trainer.limit_test_batches=1", "--calibrate needs all validation images"),
    ):
        with pytest.raises(UserError, match=why):
            command(f"{checkpoint}", "--calibrate" if command is evaluate else "photos", option)
    written = checkpoint.with_suffix(".test.metrics.json")
    evaluate(f"{checkpoint}", "--trainer.fast_dev_run=true")
    assert not written.exists()
    assert "some of the images: written to no file without --output" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"limit_val_batches.* must be above 0"):
        evaluate(f"{checkpoint}", "--split=val", "--trainer.limit_val_batches=0")
    checkpoint.chmod(0o444)
    with pytest.raises(UserError, match="is read-only"):
        evaluate(f"{checkpoint}", "--calibrate")
    checkpoint.chmod(0o600)
    assert load(checkpoint)[ABOUT] == content[ABOUT]
    capsys.readouterr()
    (link := checkpoint.with_name("link.ckpt")).symlink_to(checkpoint)
    cli = evaluate(f"{link}", "--calibrate")
    assert link.is_symlink()
    assert checkpoint.stat().st_mode & 0o777 == 0o600
    after = load(checkpoint)
    temperature = after[ABOUT].pop("temperature")
    best = minimize_scalar(
        lambda t: F.cross_entropy(logits / t, labels).item(), bounds=(0.05, 20), method="bounded"
    )
    assert temperature == pytest.approx(best.x, rel=1e-3)
    output = capsys.readouterr()
    assert f"temperature {temperature:.3f} from {len(labels)} validation" in output.out
    assert ("not between" in output.err) == (temperature in (0.05, 20))
    true = (logits / temperature).softmax(1)[range(len(labels)), labels].sort().values
    least = after[ABOUT].pop("coverage")[79]
    assert least == pytest.approx(true[math.floor((len(true) + 1) * 0.2) - 1].item(), abs=1e-5)
    assert after.keys() == content.keys()
    assert after[ABOUT] == content[ABOUT]
    assert all(map(torch.equal, after["state_dict"].values(), content["state_dict"].values()))
    evaluate(f"{checkpoint}")  # as it was measured just now
    assert (
        read_json(tmp_path / "alone.test.metrics.json")["loss"] == cli.model.results["test"]["loss"]
    )
    label(
        checkpoint, tmp_path / "photos", "--output=after.csv", "--probabilities", "--coverage=0.8"
    )
    for old, new in zip(before, rows("after.csv"), strict=True):
        shares = torch.tensor([float(old[f"probability_{name}"]) for name in names]).double()
        expected = (shares.log() / temperature).softmax(0)
        found = [float(new[f"probability_{name}"]) for name in names]
        assert found == pytest.approx(expected.tolist(), abs=1e-4)
        assert new["label"] == old["label"]
        assert new["set"].split() == [
            name
            for name, share in zip(names, found, strict=True)
            if share >= min(least, max(found))
        ]
    for name, value in [("temperature", 0.0), ("coverage", [0.5]), ("coverage", [math.nan] * 99)]:
        torch.save(content | {ABOUT: content[ABOUT] | {name: value}}, checkpoint)
        with pytest.raises(UserError, match=f"is damaged: about.{name} must be "):
            label(checkpoint, tmp_path / "photos")


def test_training_forgets_a_calibration_which_was_of_other_weights(checkpoint):
    content = load(checkpoint)
    content[ABOUT] |= {"temperature": 2.5, "coverage": [0.5] * 99}
    torch.save(content, checkpoint)
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    data = ImageDataModule.load_from_checkpoint(checkpoint)
    quiet_trainer(max_epochs=1, limit_train_batches=1).fit(model, datamodule=data)
    val = data.splits["val"]
    images = torch.stack([val.image(index) for index in range(len(val))])
    with torch.inference_mode():
        expected = F.cross_entropy(model.eval()(images), val.labels).item()
    assert model.results["val"]["loss"] == pytest.approx(expected, rel=1e-5)
    assert not {"temperature", "coverage"} & model.about.keys()


def test_a_page_does_not_show_what_a_link_in_a_run_leads_to(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "secret").write_text('{"command": "a secret of mine"}')
    for name in ("config.yaml", "run.json"):
        (run / name).unlink()
        (run / name).symlink_to(tmp_path / "secret")
    assert "secret of mine" not in report_of(run).read_text()


def text_of(page: Path) -> str:
    """What a page shows, without its tags."""
    return unescape(re.sub("<[^>]*>", "", page.read_text()))


def test_a_reports_metrics_are_those_of_the_run_and_every_image_is_inside_the_file(
    tiny_run, tmp_path
):
    metrics = read_json(tiny_run / "metrics.json")
    path = report_of(tiny_run, f"--output={tmp_path / 'page.html'}")
    shown = text_of(path)
    for split, measured in (("test", metrics["test"]), ("validation", metrics["val"])):
        of = f"{measured['correct']} of {measured['total']}"
        assert f"{100 * measured['accuracy']:.2f}%{split} accuracy, {of}" in shown
    ends = proportion_ci(metrics["test"]["correct"], metrics["test"]["total"])
    assert f"95% interval {100 * ends.low:.1f} to {100 * ends.high:.1f}%" in shown
    if "top5" in (test := metrics["test"]):
        of = f"{test['top5_correct']}/{test['total']}; 95% interval "
        assert f"{100 * test['top5']:.2f}%top-5 accuracy, test, {of}" in shown
    text, places = "".join(shown.split()), []
    for name, row in zip(metrics["class_names"], class_rates(metrics["test"]), strict=True):
        cells = ""
        for total in (row["predicted"], row["total"]):
            ends = proportion_ci(row["hits"], total or 1)
            counts = f"{row['hits']}/{total},{100 * ends.low:.1f}to{100 * ends.high:.1f}%"
            cells += f"{100 * row['hits'] / total:.1f}%{counts}" if total else "-"
        places.append((text.index(f"{name}{cells}{row['f1']:.4f}"), row["f1"]))
    assert [f1 for _, f1 in sorted(places)] == sorted(f1 for _, f1 in places)
    record = read_json(tiny_run / "run.json")
    assert record["command"].startswith("python -m project.fit --data=SyntheticFlowersDataModule")
    assert all(str(text) in shown for name, text in record.items() if name != "resumed_step")
    assert f"Best on the validation set in epoch {metrics['epoch']}, by val/accuracy" in shown
    sources = re.findall(r"\s(?:src|href|srcset)=.(.{5})", path.read_text())
    assert {source for source in sources if source[0] != "#"} == {"data:"}
    images = re.findall(r"data:image/(\w+);base64,", path.read_text())
    wrong = metrics["test"]["total"] - (correct := metrics["test"]["correct"])
    matrix = np.array(metrics["test"]["confusion_matrix"])
    np.fill_diagonal(matrix, 0)
    confused = sorted(matrix[matrix > 0].tolist(), reverse=True)[:6]
    pairs = sum(min(count, 4) for count in confused)
    assert all(f": {count}/" in shown for count in confused)
    photos = min(wrong, 12) + 2 * (min(correct, 6) + min(wrong, 6)) + pairs
    assert (images.count("png"), images.count("jpeg")) == (7, photos)


def proportion_ci(hits, total):
    return binomtest(hits, total).proportion_ci(method="wilson")


def test_intervals_are_those_of_scipy_and_are_over_groups():
    """Of images that are each there four times the interval is as wide, if these are a group."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (80,), generator=generator)
    shares = (torch.randn(80, generator=generator) + labels).sigmoid()
    rows = torch.arange(80).repeat_interleave(4)
    probabilities = torch.stack([1 - shares, shares], dim=1)[rows]
    nothing: Any = None
    parts = (labels[rows], probabilities.argmax(1), shares[rows], shares[rows], probabilities)
    evaluation = Evaluation(nothing, nothing, *parts, probabilities, {})
    found = bootstrap_intervals(evaluation, rows, positive=0)
    data = (labels.numpy(), shares.numpy())
    measures: dict[str, Any] = {
        "accuracy": lambda true, share: ((share > 0.5) == true).mean(),
        "auroc": roc_auc_score,
        "sensitivity": lambda true, share: (share <= 0.5)[true == 0].mean(),
        "specificity": lambda true, share: (share > 0.5)[true == 1].mean(),
    }
    for name, measure in measures.items():
        options: Any = {"paired": True, "vectorized": False, "method": "percentile", "rng": 0}
        expected = bootstrap(data, measure, n_resamples=800, **options).confidence_interval
        assert found[name] == pytest.approx([*expected], abs=0.03)
    evaluation.predicted = torch.arange(320).div(16).sin().gt(-0.5).long()
    evaluation.labels = torch.ones_like(evaluation.predicted)
    right = evaluation.predicted.view(8, 40).double().mean(1).numpy()
    level = norm.cdf(math.sqrt(8 / 7) * t.ppf(0.025, 7))  # of few, farther out
    options = {"method": "percentile", "rng": 0, "confidence_level": 1 - 2 * level}
    expected = bootstrap((right,), np.mean, n_resamples=20_000, **options).confidence_interval
    found = bootstrap_intervals(evaluation, torch.arange(320) // 40)
    assert found["accuracy"] == pytest.approx([*expected], abs=0.04)
    evaluation.labels = labels[rows]
    evaluation.predicted = labels[rows]  # all right, which no draw says anything of
    intervals = bootstrap_intervals(evaluation, rows)
    assert [name for name, ends in intervals.items() if ends] == ["auroc"]


class Flat(nn.Sequential):
    """A network without the places that Grad-CAM needs."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))


def test_names_from_files_are_no_markup_and_what_a_run_does_not_have_is_left_out(workplace, capsys):
    names = ["<img src=x onerror=alert(1)>&amp;", "<script>alert(2)", "c"]
    make_folder(Path("images"), dict.fromkeys(names, 10))
    data = ["--data=images", *SMALL_FILES, "--data.batch_size=8"]
    fit(
        *data,
        *TINY_TRAINER,
        *QUIET,
        "--callbacks.best_checkpoint=false",
        "--trainer.max_steps=1",
        f"--model.arch={__name__}.Flat",
        "--name=<b>run",
    )
    run = Path("runs/<b>run")
    shown = text_of(report_of(run))
    assert all(name in shown for name in names)  # none of them is a tag
    assert "The last, after step 1." in shown
    assert "Where the network looks" not in shown
    assert "Grad-CAM is left out: no layer's output has spatial dimensions" in shown
    Path("images").rename("elsewhere")
    assert "No images are shown" in text_of(report_of(run))
    assert re.search(
        "without images: --root: the checkpoint was trained on the images in .* say where",
        capsys.readouterr().err,
    )
    assert "Most confident mistakes" in text_of(report_of(run, "--root=elsewhere"))
    shutil.copytree("elsewhere/c", "elsewhere/c/more")
    changed = text_of(report_of(run, "--root=elsewhere"))
    assert "shown: the test set has other images than when it was tested" in changed, (
        "a page must not show another test set: if your split took none of the copies, copy others"
    )


def test_no_finished_run_and_a_file_that_cannot_be_written_cost_no_measuring(
    tiny_run, checkpoint, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("lightning.pytorch.Trainer.test", None)
    with pytest.raises(UserError, match=r"is no finished run: it has no metrics\.json"):
        report_of(tmp_path)
    absent, metrics = tmp_path / "no" / "page.html", tiny_run / "metrics.json"
    measured = f"{checkpoint}"
    for complaint, command in (
        (
            "no predictions of",
            lambda: evaluate(
                measured,
                f"--output_predictions={shutil.copy(tiny_run / 'metrics.csv', tmp_path)}",
            ),
        ),
        ("directory does not exist", lambda: report_of(tiny_run, f"--output={absent}")),
        ("directory does not exist", lambda: evaluate(measured, f"--output={absent}")),
        ("be a .html file", lambda: report_of(tiny_run, f"--output={checkpoint}")),
        ("be a .html file", lambda: report_of(tiny_run, "--output=page.pdf")),
        ("already, and a run's own", lambda: evaluate(measured, f"--output={metrics}")),
        (
            "be a .csv file",
            lambda: evaluate(measured, f"--output_predictions={tiny_run}/config.yaml"),
        ),
        ("name that file", lambda: evaluate(measured, "--probabilities")),
        ("be a .json file", lambda: evaluate(measured, "--output=measured.csv")),
        ("be a .csv file", lambda: label(measured, "x.jpg", "--output=labels.parquet")),
    ):
        assert complaint in one_line(command, capsys)


@cases(
    "change complaint",
    ({"step": 7}, "is not the checkpoint whose metrics are in"),
    ({"val": {"accuracy": 0.5}}, "is not the checkpoint whose metrics are in"),
    ({}, "File too large"),
)
def test_a_report_that_fails_leaves_the_page_that_is_there(
    tiny_run, tmp_path, capsys, limit_files, change, complaint
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "metrics.json").write_text(json.dumps(read_json(run / "metrics.json") | change))
    (run / "report.html").write_text("of before")
    limit_files(50_000)
    assert complaint in one_line(lambda: report_of(run), capsys)
    assert [path.read_text() for path in run.glob("*report*")] == ["of before"]


def test_a_metric_with_to_in_its_name_is_no_interval():
    table = metrics_table({"test": {"accuracy": 0.5, "way to go": 2.0}}, has_groups=True)
    assert "way to go" in table
    assert "independent" not in table


def test_metrics_are_written_although_nobody_reads_the_table(checkpoint, monkeypatch):
    monkeypatch.setattr("project.evaluate.metrics_table", None)  # an error, as of ``| head``
    with pytest.raises(TypeError):
        evaluate(f"{checkpoint}")
    assert read_json(checkpoint.with_suffix(".test.metrics.json"))["per_class"]
