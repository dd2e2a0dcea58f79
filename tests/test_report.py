"""The report of a run: its metrics are the run's, its images are inside, nothing from a file is markup."""

import json
import re
import resource
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

from project.analysis.data import open_data
from project.analysis.evaluation import evaluate_split
from project.analysis.report import image_sections, render
from project.analysis.tables import class_table
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.model import ImageClassifier
from project.model.metrics import Metrics
from project.report import parse, report
from tests.conftest import fit, make_folder

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "<img src=x onerror=alert(1)>&amp;"


class Page(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

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
def page(tiny_run, tmp_path_factory):
    """The page, written through a link."""
    output = tmp_path_factory.mktemp("report") / "report.html"
    output.symlink_to("page.html")
    assert report(parse([str(tiny_run), f"--output={output}"])) == output
    return output


@pytest.fixture(scope="module")
def metrics(tiny_run):
    return json.loads((tiny_run / "metrics.json").read_text())


def test_metrics_are_those_of_the_run(page, metrics):
    text = Page(page).text
    for split, found in (("test", metrics["test"]), ("validation", metrics["val"])):
        assert f"{100 * found['accuracy']:.2f}%{split} accuracy, {found['correct']} of {found['total']}" in text
    confusion = Metrics(0.0, torch.tensor(metrics["test"]["confusion_matrix"]), None)
    for row in class_table(metrics["class_names"], confusion.per_class).splitlines()[1:]:
        assert "".join(row.split()) in "".join(text.split())
    assert all(version in text for version in metrics["versions"].values())


def test_every_image_is_inside_the_file(page, metrics):
    links = [
        value
        for _, attributes in Page(page).tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action") and not str(value).startswith("data:")
    ]
    assert links == []
    images = re.findall(r"data:image/(\w+);base64,", page.read_text())
    wrong = metrics["test"]["total"] - metrics["test"]["correct"]
    assert images.count("png") == 3
    assert images.count("jpeg") == min(wrong, 12) + 2 * (min(metrics["test"]["correct"], 6) + min(wrong, 6))


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A finished run whose classes, files and name are markup."""
    place = tmp_path_factory.mktemp("hostile")
    names = [HOSTILE, "<script>alert(2)", "c"]
    make_folder(place / "images", dict.fromkeys(names, 10))
    fit(
        "--data=FolderDataModule",
        f"--data.root={place / 'images'}",
        "--data.image_size=32",
        "--data.batch_size=8",
        "--data.num_workers=0",
        "--model.arch=resnet9_slim",
        "--trainer.accelerator=cpu",
        "--trainer.devices=1",
        "--trainer.max_steps=1",
        "--trainer.enable_progress_bar=false",
        "--trainer.num_sanity_val_steps=0",
        f"--trainer.default_root_dir={place / 'runs'}",
        "--name=<b>run",
    )
    return place


def test_names_from_files_are_no_markup(hostile_run):
    output = report(parse([str(hostile_run / "runs" / "<b>run")]))
    assert output == (hostile_run / "runs" / "<b>run" / "report.html").resolve()
    page = Page(output)
    assert HOSTILE in page.text
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert [tag for tag, _ in page.tags].count("script") == 1


@pytest.fixture
def own_run(tiny_run, tmp_path):
    """A copy of the run, to be written to."""
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def test_of_a_network_without_feature_maps_nothing_is_said_of_where_it_looks(tiny_run, page, metrics):
    checkpoint = tiny_run / "checkpoints" / "best.ckpt"
    about, model = read_checkpoint(checkpoint)[ABOUT], ImageClassifier.load_from_checkpoint(checkpoint)
    model.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8))
    sections = image_sections(model, evaluate_split(model, open_data(about)))
    assert sections["mistakes"]
    text = render(tiny_run, dict(about), metrics, sections)
    assert "Most confident mistakes" in text
    assert "Where the network looks" not in text
    assert "Where the network looks" in page.read_text()


def test_a_page_says_how_its_checkpoint_was_chosen(own_run, metrics):
    assert (
        f"Best on the validation set in epoch {metrics['epoch']}, by val/accuracy"
        in Page(report(parse([str(own_run)]))).text
    )
    (own_run / "metrics.json").write_text(json.dumps(metrics | {"selection": None}))
    text = Page(report(parse([str(own_run)]))).text
    assert f"The last, after step {metrics['step']}." in text
    assert "Best on" not in text


def test_where_the_disk_is_full_the_earlier_page_stays(own_run):
    (own_run / "report.html").write_text("earlier")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=r"--output: .*report\.html' cannot be written"):
            report(parse([str(own_run)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (own_run / "report.html").read_text() == "earlier"
    assert not list(own_run.glob("*partial*"))


def test_without_its_images_a_run_still_has_a_page(hostile_run, capsys, tmp_path):
    images = hostile_run / "images"
    images.rename(hostile_run / "elsewhere")
    try:
        run = str(hostile_run / "runs" / "<b>run")
        text = Page(report(parse([run, f"--output={tmp_path / 'a.html'}"]))).text
        assert "No images are shown" in text
        assert "without images:" in capsys.readouterr().err
        text = Page(report(parse([run, f"--output={tmp_path / 'b.html'}", f"--root={hostile_run / 'elsewhere'}"]))).text
        assert "Most confident mistakes" in text
    finally:
        (hostile_run / "elsewhere").rename(images)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is no finished run: it has no metrics.json"),
        ("[]", "holds no metrics of a run"),
        ("{", "holds no metrics"),
        ('{"val":' * 100_000, "holds no metrics"),
    ],
)
def test_what_is_no_finished_run_is_refused_in_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=message):
        report(parse([str(tmp_path)]))


def browse(page: Path, script: str, tmp_path: Path, size: str = "1200,900") -> tuple[str, str]:
    """Opens a copy of the page with one more script at its end; returns the document then, and the browser's console."""
    copy = tmp_path / "copy.html"
    copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    found = subprocess.run(
        [*command, profile, f"--window-size={size}", copy.as_uri()], capture_output=True, text=True, check=True
    )
    return found.stdout, "\n".join(line for line in found.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("name", ["a class of very many words " * 5, "a_class_of_one_word" * 5])
def test_a_phone_shows_and_sorts_all_numbers(page, tmp_path, name):
    script = f"""
        document.querySelector('tbody td').textContent = '{name}';
        document.querySelectorAll('th button')[2].click();
        const frame = document.querySelector('.scroll');
        document.title = frame.scrollWidth - frame.clientWidth
            + document.documentElement.scrollWidth - document.documentElement.clientWidth;
    """
    document, console = browse(page, script, tmp_path, "390,844")
    assert console == ""
    assert "<title>0</title>" in document
    recalls = [float(row) for row in re.findall(r"<tr><td>[^<]*</td><td>[\d.]+</td><td>([\d.]+)</td>", document)]
    assert len(recalls) == 8
    assert recalls == sorted(recalls)


def test_a_page_that_cannot_be_written_costs_no_measuring(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("project.report.evaluate_split", None)
    with pytest.raises(UserError, match=r"--output: '.*' cannot be written"):
        report(parse([str(tiny_run), f"--output={tmp_path / 'no' / 'page.html'}"]))
