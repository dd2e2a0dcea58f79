"""The report of a run: its metrics are the run's, its images are inside, nothing from a file is markup."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

from project.analysis.evaluation import evaluate_split
from project.analysis.tables import class_table
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.model.metrics import Metrics
from project.report import image_sections, render
from tests.conftest import QUIET, SLIM, TINY_TRAINER, fit, make_folder, opened, report_of

HOSTILE = "<img src=x onerror=alert(1)>&amp;"


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


@pytest.fixture(scope="module")
def metrics(tiny_run):
    return json.loads((tiny_run / "metrics.json").read_text())


def test_metrics_are_those_of_the_run_and_every_image_is_inside_the_file(tiny_run, tmp_path, metrics):
    page = tmp_path / "report.html"
    page.symlink_to("page.html")
    assert report_of(tiny_run, f"--output={page}") == page
    found = Page(page)
    for split, measured in (("test", metrics["test"]), ("validation", metrics["val"])):
        of = f"{measured['correct']} of {measured['total']}"
        assert f"{100 * measured['accuracy']:.2f}%{split} accuracy, {of}" in found.text
    confusion = Metrics(0.0, torch.tensor(metrics["test"]["confusion_matrix"]), None)
    rows = class_table(metrics["class_names"], confusion.per_class).splitlines()[1:]
    shown = "".join(found.text.split())
    places = [shown.index("".join(row.split())) for row in sorted(rows, key=lambda row: float(row.split()[-2]))]
    assert places == sorted(places)
    assert f"Best on the validation set in epoch {metrics['epoch']}, by val/accuracy" in found.text
    links = [tag[name] for _, tag in found.tags for name in ("src", "href", "srcset") if name in tag]
    assert all(str(link).startswith("data:") for link in links)
    images = re.findall(r"data:image/(\w+);base64,", page.read_text())
    wrong = metrics["test"]["total"] - metrics["test"]["correct"]
    assert images.count("png") == 4
    assert images.count("jpeg") == min(wrong, 12) + 2 * (min(metrics["test"]["correct"], 6) + min(wrong, 6))


def test_names_from_files_are_no_markup_and_without_its_images_a_run_still_has_a_page(tmp_path, capsys):
    images, run = tmp_path / "images", tmp_path / "runs" / "<b>run"
    make_folder(images, dict.fromkeys([HOSTILE, "<script>alert(2)", "c"], 10))
    data = [f"--data={images}", "--data.image_size=32", "--data.batch_size=8", "--data.num_workers=0"]
    fit(*data, *TINY_TRAINER, *QUIET, *SLIM, f"--trainer.default_root_dir={tmp_path / 'runs'}", "--name=<b>run")
    page = Page(report_of(run))
    assert HOSTILE in page.text
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert [tag for tag, _ in page.tags].count("script") == 0
    images.rename(tmp_path / "elsewhere")
    assert "No images are shown" in Page(report_of(run)).text
    assert "without images:" in capsys.readouterr().err
    assert "Most confident mistakes" in Page(report_of(run, f"--root={tmp_path / 'elsewhere'}")).text


def test_sections_that_a_network_or_a_run_has_nothing_for_are_left_out(tiny_run, metrics):
    about, (model, data) = read_checkpoint(tiny_run / "checkpoints" / "best.ckpt")[ABOUT], opened(tiny_run)
    model.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8))
    sections = image_sections(model, evaluate_split(model, data))
    text = render(tiny_run, dict(about), metrics | {"selection": None, "val": None}, sections)
    assert "Most confident mistakes" in text
    assert "Where the network looks" not in text
    assert "validation accuracy" not in text
    assert f"The last, after step {metrics['step']}." in text


def test_no_finished_run_and_a_page_that_cannot_be_written_cost_no_measuring(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("project.report.evaluate_split", None)
    for no_run in (tmp_path, tiny_run / "checkpoints" / "best.ckpt"):
        with pytest.raises(UserError, match=r"is no finished run: it has no metrics\.json"):
            report_of(no_run)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        report_of(tiny_run, f"--output={tmp_path / 'no' / 'page.html'}")
