"""The promises of ``python -m project.evaluate``, and of ``python -m project.report``, whose page shows what was measured."""

import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

from project.analysis.evaluation import evaluate_split
from project.analysis.page import image_sections, render
from project.analysis.tables import class_rates, class_table
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.engine.run.folder import read_metrics
from tests.conftest import (
    QUIET,
    ROOT,
    SLIM,
    SMALL_FILES,
    TINY,
    TINY_TRAINER,
    evaluate,
    fit,
    make_folder,
    opened,
    report_of,
)
from tests.data.test_torch_dataset import FAKE
from tests.engine.loading.image_files import write_folder
from tests.small import load, read_json


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    return shutil.copy(tiny_run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")


def right(model, files):
    """The number of images that the prediction from Python labels as their folders do."""
    labels = [prediction.label for prediction in model.predict_files(files)]
    return sum(file.parent.name == label for file, label in zip(files, labels, strict=True))


def test_a_checkpoint_alone_is_measured_into_a_table_and_a_file_beside_it(
    checkpoint, tmp_path, capsys
):
    evaluate(
        f"{checkpoint}", "--split=val"
    )  # that the metrics are those of the run is in test_metrics_by_hand.py
    rows = read_json(tmp_path / "alone.val.metrics.json")["per_class"]
    assert list(rows) == load(checkpoint)[ABOUT]["class_names"]
    assert class_table(list(rows), list(rows.values())) in capsys.readouterr().out


def test_a_run_in_half_precision_is_tested_in_float32_as_its_checkpoint_is(workplace):
    fit(*TINY, *SLIM, "--trainer.precision=bf16-true", "--name=half")
    evaluate("runs/half/checkpoints/best.ckpt", "--output=found.json")
    assert read_json("found.json")["loss"] == read_json("runs/half/metrics.json")["test"]["loss"]


def test_other_images_of_the_same_classes_can_be_measured(checkpoint, tmp_path, capsys):
    names = load(checkpoint)[ABOUT]["class_names"]
    root = make_folder(tmp_path / "images", dict.fromkeys(names, 5))
    data = ["--data=FolderDataModule", f"--data.root={root}", *SMALL_FILES]
    evaluate(
        f"{checkpoint}",
        *data,
        "--data.batch_size=8",
        "--data.resize=36",
        "--data.interpolation=bicubic",
    )
    written = read_json(tmp_path / "alone.test.metrics.json")
    assert written["total"] == len(names)
    assert written["data"]["class_path"] == "FolderDataModule"
    assert written["data"]["init_args"].items() >= {"root": str(root), "resize": 36}.items()


def test_all_images_of_another_folder_can_be_measured_but_no_training_images_by_any_name(
    checkpoint, tmp_path, capsys
):
    root, output = tmp_path / "images", tmp_path / "alone.all.metrics.json"
    content = load(checkpoint)
    content[ABOUT]["data"] = {
        "class_path": "FolderDataModule",
        "init_args": {"root": str(root), "image_size": 32},
    }
    torch.save(content, checkpoint)
    names = content[ABOUT]["class_names"]
    make_folder(root / "train", dict.fromkeys(names, 5))
    make_folder(root / "test", dict.fromkeys(names, 3))
    (tmp_path / "link").symlink_to(root / "train")
    files = [f"{file},{file.parent.name}" for file in sorted((root / "train").glob("*/*"))]
    (tmp_path / "images.csv").write_text("\n".join(["path,label", *files]))
    csv_file = [
        "--data=CSVDataModule",
        f"--data.file={tmp_path / 'images.csv'}",
        "--data.image_size=32",
    ]
    options = [f"{checkpoint}", "--split=all", "--data.num_workers=0", "--data.batch_size=8"]
    for data in ([], [f"--data={root}/../images/"], [f"--data={tmp_path / 'link'}"], csv_file):
        with pytest.raises(
            UserError, match="some of these images are those it was trained on; name others with"
        ):
            evaluate(*options, *data)
    with pytest.raises(UserError, match="image files"):
        evaluate(f"{checkpoint}", "--data=SyntheticFlowersDataModule", "--split=all")
    cli = evaluate(*options, f"--data={root / 'test'}")
    written, count = read_json(output), right(cli.model, sorted((root / "test").rglob("*.*")))
    assert (written["split"], written["correct"], written["total"]) == (
        "all",
        count,
        3 * len(names),
    )
    said = capsys.readouterr()
    assert f"({count}/{3 * len(names)})" in said.out
    assert "may be among them" not in said.err
    root.rename(tmp_path / "elsewhere")
    evaluate(*options, f"--data={tmp_path / 'elsewhere' / 'test'}")
    assert (
        "the images of training are not here, so these may be among them" in capsys.readouterr().err
    )


def test_the_line_that_a_run_prints_measures_any_torch_dataset(workplace, capsys):
    sizes = ["--data.train.size=60", "--data.test=torchvision.datasets.FakeData"]
    sizes += [
        "--data.test.size=30",
        "--data.test.image_size=[3,20,24]",
        "--data.test.num_classes=3",
    ]
    sizes += ["--data.image_size=16", "--data.num_workers=0", "--data.train.num_classes=3"]
    fit(*FAKE, *sizes, "--data.batch_size=8", *TINY_TRAINER, *QUIET, *SLIM, "--name=run")
    (line,) = re.findall(
        r"class by class +python -m project.evaluate (.*)", capsys.readouterr().out
    )
    evaluate(*shlex.split(line))
    measured = read_json("runs/run/checkpoints/best.test.metrics.json")
    assert measured["loss"] == read_json("runs/run/metrics.json")["test"]["loss"]


def test_images_are_fitted_as_the_checkpoint_says_or_not_at_all(checkpoint, tmp_path):
    content = load(checkpoint)
    for said in (content[ABOUT], content["hyper_parameters"]):
        said["preprocessing"] |= {"fit": "pad"}
    torch.save(content, checkpoint)
    root = write_folder(
        tmp_path / "images", dict.fromkeys(content[ABOUT]["class_names"], 5), size=(48, 20)
    )
    options = [f"{checkpoint}", f"--data={root}", "--data.num_workers=0", "--data.batch_size=8"]
    with pytest.raises(UserError, match=r"trained with --data\.fit pad, but would get crop"):
        evaluate(*options, "--data.fit=crop")
    cli: Any = evaluate(*options)
    measured = read_json(tmp_path / "alone.test.metrics.json")
    assert measured["correct"] == right(cli.model, cli.datamodule.splits["test"].files)


def test_other_classes_are_refused(checkpoint, tmp_path):
    with pytest.raises(
        UserError,
        match=r"has images of blue and red, but .* knows the 8 classes anemone",
    ):
        evaluate(
            f"{checkpoint}", f"--data={make_folder(tmp_path / 'images', {'blue': 5, 'red': 5})}"
        )


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_a_report_of_the_built_in_data_has_images_in_a_process_of_its_own(tiny_run, tmp_path):
    command = [sys.executable, "-m", "project.report", tiny_run, f"--output={tmp_path / 'x.html'}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "without images" not in run.stderr
    assert "Most confident mistakes" in (tmp_path / "x.html").read_text()


def test_a_reports_metrics_are_those_of_the_run_and_every_image_is_inside_the_file(
    tiny_run, tmp_path
):
    metrics, page = read_json(tiny_run / "metrics.json"), tmp_path / "report.html"
    page.symlink_to("page.html")
    assert report_of(tiny_run, f"--output={page}") == page
    found = Page(page)
    for split, measured in (("test", metrics["test"]), ("validation", metrics["val"])):
        of = f"{measured['correct']} of {measured['total']}"
        assert f"{100 * measured['accuracy']:.2f}%{split} accuracy, {of}" in found.text
    rows = class_table(metrics["class_names"], class_rates(metrics["test"])).splitlines()[1:]
    shown = "".join(found.text.split())
    places = [
        shown.index("".join(row.split()))
        for row in sorted(rows, key=lambda row: float(row.split()[-2]))
    ]
    assert places == sorted(places)
    assert f"Best on the validation set in epoch {metrics['epoch']}, by val/accuracy" in found.text
    for _, tag in found.tags:
        assert all(
            str(tag[name]).startswith("data:") for name in ("src", "href", "srcset") if name in tag
        )
    images = re.findall(r"data:image/(\w+);base64,", page.read_text())
    wrong = metrics["test"]["total"] - (correct := metrics["test"]["correct"])
    photos = min(wrong, 12) + 2 * (min(correct, 6) + min(wrong, 6))
    assert (images.count("png"), images.count("jpeg")) == (4, photos)


@pytest.mark.parametrize(
    "text",
    ["", '{"test"', "[]", '{"test": null}'],
    ids=range(4),
)
def test_a_damaged_file_of_metrics_is_one_line(tiny_run, tmp_path, text):
    assert read_metrics(tiny_run) == read_json(tiny_run / "metrics.json")
    (tmp_path / "metrics.json").write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=r"'.*metrics\.json' is damaged"):
        report_of(tmp_path)


def test_names_from_files_are_no_markup_and_without_its_images_a_run_still_has_a_page(
    tmp_path, capsys
):
    images, run, hostile = (
        tmp_path / "images",
        tmp_path / "runs" / "<b>run",
        "<img src=x onerror=alert(1)>&amp;",
    )
    make_folder(images, dict.fromkeys([hostile, "<script>alert(2)", "c"], 10))
    options = [
        f"--data={images}",
        *SMALL_FILES,
        "--data.batch_size=8",
        *TINY_TRAINER,
        *QUIET,
        *SLIM,
    ]
    fit(*options, f"--trainer.default_root_dir={tmp_path / 'runs'}", "--name=<b>run")
    page = Page(report_of(run))
    assert hostile in page.text
    assert not any(tag == "script" or "onerror" in attributes for tag, attributes in page.tags)
    images.rename(tmp_path / "elsewhere")
    assert "No images are shown" in Page(report_of(run)).text
    assert "without images:" in capsys.readouterr().err
    assert (
        "Most confident mistakes" in Page(report_of(run, f"--root={tmp_path / 'elsewhere'}")).text
    )


def test_sections_that_a_network_or_a_run_has_nothing_for_are_left_out(tiny_run):
    metrics = read_json(tiny_run / "metrics.json")
    about, (model, data) = load(tiny_run / "checkpoints" / "best.ckpt")[ABOUT], opened(tiny_run)
    model.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8))
    sections = image_sections(model, evaluate_split(model, data))
    text = render(tiny_run, dict(about), metrics | {"selection": None, "val": None}, sections)
    assert "Most confident mistakes" in text
    assert not any(part in text for part in ("Where the network looks", "validation accuracy"))
    assert f"The last, after step {metrics['step']}." in text


def test_no_finished_run_and_a_file_that_cannot_be_written_cost_no_measuring(
    tiny_run, checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setattr("project.analysis.evaluation.evaluate_split", None)
    monkeypatch.setattr("lightning.pytorch.Trainer.test", None)
    for no_run in (tmp_path, tiny_run / "checkpoints" / "best.ckpt"):
        with pytest.raises(UserError, match=r"is no finished run: it has no metrics\.json"):
            report_of(no_run)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        report_of(tiny_run, f"--output={tmp_path / 'no' / 'page.html'}")
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        evaluate(f"{checkpoint}", f"--output={tmp_path / 'no' / 'out.json'}")
