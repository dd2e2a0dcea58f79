"""Shared by tests: tiny runs of the real command, and folders of small images."""

import colorsys
import gc
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightkeeper.exact._quiet import quiet_libraries
from matplotlib.figure import Figure
from PIL import Image

from project import predict, report
from project.data import ImageDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.engine import toy
from tests.engine.conftest import surroundings as surroundings, workplace as workplace
from tests.engine.toy import (
    LAST as LAST,
    RUN as RUN,
    SmallNetwork as SmallNetwork,
    cases as cases,
    load as load,
    one_line as one_line,
    read_json as read_json,
    require_same_end as require_same_end,
    rows as rows,
)

ROOT = Path(__file__).parents[1]

ONE_CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1"]
TINY_DATA = [
    *("--data.train_size=64", "--data.val_size=24", "--data.test_size=26"),
    *("--data.image_size=32", "--data.batch_size=16"),
]
SMALL_FILES = ["--data.image_size=32", "--data.num_workers=0"]
TINY_TRAINER = [
    "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
]
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.num_sanity_val_steps=0"]
TINY = [*TINY_DATA, *TINY_TRAINER, *QUIET]
SLIM = ["--model.arch=resnet9_slim"]
SMALL = ["--trainer.precision=32-true", "--trainer.max_epochs=2", "--name=run"]
"""Two epochs of four steps each."""
MULTILABEL = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]
PAIRS = ["--data=examples.multilabel.FlowerPairs", *TINY_DATA]


def pytest_collection_finish() -> None:
    """Keeps Python from looking for garbage among what was imported, which takes longer than some tests do."""
    gc.freeze()


@contextmanager
def as_in_a_terminal() -> Iterator[None]:
    """Silences what the commands silence."""
    with warnings.catch_warnings():
        quiet_libraries()
        yield


@contextmanager
def empty_figures() -> Iterator[None]:
    """Leaves the figures of runs empty: to draw them takes several times as long as a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("image_grid", "confusion_figure", "curves_figure", "class_figure"):
            patch.setattr(f"project.analysis.plots.{name}", lambda *_: Figure(figsize=(0.1, 0.1)))
        yield


def fit(*args: str, drawn: bool = False) -> FitCLI:
    """Runs ``python -m project.fit`` in this process, with something in its figures where a test looks at them."""
    with as_in_a_terminal(), nullcontext() if drawn else empty_figures():
        cli = FitCLI([*args])
        cli.fit()
    return cli


def small(
    *args: str, data=(*TINY_DATA, "--data.cutout=8"), callbacks=(), network=SmallNetwork
) -> FitCLI:
    """Runs ``python -m project.fit`` with a network that takes no time, by default on drawn flowers, with further callbacks."""
    own = FitCLI._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "project.model.classifier.build_network", lambda arch, classes, args: network(classes)
        )
        patch.setattr(FitCLI, "_callbacks", lambda cli: [*own(cli), *callbacks])
        return fit(*data, *TINY_TRAINER, *QUIET, *SMALL, *args)


stop_at = partial(toy.stop_at, fit=small)


def evaluate(*args: str) -> EvaluateCLI:
    with as_in_a_terminal():
        cli = EvaluateCLI([*args, *QUIET[:1], *ONE_CPU])
        cli.evaluate()
        return cli


def call(command: Any, *args: str | Path) -> int:
    """Runs a command's module in this process; its exit code."""
    with as_in_a_terminal():
        return command.main(command.parser().parse_args([*map(str, args)])) or 0


def label(*args: str | Path) -> int:
    """Runs ``python -m project.predict`` in this process."""
    return call(predict, *ONE_CPU, "--num_workers=0", *args)


def report_of(run: Path, *args: str) -> Path:
    """Runs ``python -m project.report`` in this process; the page."""
    options = report.parser().parse_args([str(run), *args])
    with as_in_a_terminal():
        report.main(options)
    return Path(options.output or run / "report.html")


def opened(run: Path) -> tuple[ImageClassifier, ImageDataModule]:
    """The model of a run's best checkpoint, and its data."""
    best = run / "checkpoints" / "best.ckpt"
    data = ImageDataModule.load_from_checkpoint(best)
    data.setup("test")
    return ImageClassifier.load_from_checkpoint(best).eval(), data


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> Path:
    """The folder of a finished run, to be read only."""
    root: Path = tmp_path_factory.mktemp("session") / "runs"
    fit(
        *TINY,
        *SLIM,
        "--model.optimizer.lr=0.1",
        f"--trainer.default_root_dir={root}",
        "--name=tiny",
    )
    return root / "tiny"


@pytest.fixture(scope="session")
def multilabel(tmp_path_factory) -> Path:
    """The folder of a finished run of the multi-label classifier, with all its plots."""
    root: Path = tmp_path_factory.mktemp("multilabel")
    fit(
        *TINY,
        *PAIRS,
        *MULTILABEL,
        *SLIM,
        f"--trainer.default_root_dir={root}",
        "--name=run",
        drawn=True,
    )
    return root / "run"


@pytest.fixture
def without_initialisation(monkeypatch):
    """Leaves the weights of networks as memory has them, for commands that train nothing: it takes less time."""
    for name in ("kaiming_normal_", "kaiming_uniform_", "trunc_normal_", "normal_", "uniform_"):
        monkeypatch.setattr(f"torch.nn.init.{name}", lambda tensor, *_args, **_options: tensor)


def draw_image(hue: float, seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """A noisy image of one colour."""
    noise = np.random.default_rng(seed).normal(0, 12, (size[1], size[0], 3))
    colour = 255 * np.array(colorsys.hsv_to_rgb(hue, 0.8, 0.8))
    return Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8))


def make_folder(root: Path, classes: dict[str, int]) -> Path:
    """A folder of image files for each class, with that many files each."""
    for position, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True)
        for number in range(count):
            draw_image(position / len(classes), seed=number).save(root / name / f"{number}.jpg")
    return root


def write_csv(folder: Path) -> None:
    """A CSV of the images in ``images``, with their class, and with further labels."""
    rows = ["path,label,labels"]
    for file in sorted((folder / "images").rglob("*.jpg")):
        name, odd = file.parent.name, "odd" * (int(file.stem[-1]) % 2)
        rows.append(f"{file.relative_to(folder)},{name},{name} {odd}")
    (folder / "labels.csv").write_text("\n".join(rows))


def write_coco(file: Path) -> None:
    """Annotations of two boxes in each of twelve images, of two categories."""
    paths = sorted(make_folder(file.parent, {"pets": 12}).glob("pets/*"))
    images = [{"id": at, "file_name": f"pets/{path.name}"} for at, path in enumerate(paths)]
    boxes = [
        {"image_id": at, "category_id": category, "bbox": [category, 2, 20, 18]}
        for at in range(len(paths))
        for category in (3, 7)
    ]
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    coco = {"images": images, "annotations": boxes, "categories": categories}
    file.write_text(json.dumps(coco))


def write_pets(root: Path) -> None:
    """Files as those of torchvision's ``OxfordIIITPet``, which it then does not download."""
    names = [f"{kind}_{number}" for kind in ("Abyssinian", "beagle") for number in range(8)]
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    for split in ("trainval", "test"):
        lines = [f"{name} {1 + name.startswith('beagle')} 1 1" for name in names]
        (root / "annotations" / f"{split}.txt").write_text("\n".join(lines))
    for seed, name in enumerate(names):
        draw_image(0.5, seed).save(root / "images" / f"{name}.jpg")
