"""A checkpoint and images to label, and the command in this process."""

import csv
import io
from pathlib import Path

import pytest

from project.predict import parse, predict
from tests.conftest import as_in_a_terminal, draw_image
from tests.distributed.job import classifier, flowers, trainer

CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--num_workers=0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A small network that takes images for several classes, with confidences in between."""
    path: Path = tmp_path_factory.mktemp("checkpoint") / "some.ckpt"
    with as_in_a_terminal():
        one = trainer(1)
        one.test(classifier(), datamodule=flowers(32, 12, 4), verbose=False)
        one.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Images of several sizes, with two files among them that are none."""
    root: Path = tmp_path_factory.mktemp("photos")
    (root / "more").mkdir()
    for number in range(9):
        place = root if number % 2 else root / "more"
        draw_image(number / 9, seed=number, size=(40 + 7 * number, 50)).save(place / f"{number}.png")
    (root / "2 notes.jpg").write_text("no image")
    (root / "more" / "empty.jpg").touch()
    return root


def label(*args: str | Path) -> int:
    """Runs the command in this process."""
    with as_in_a_terminal():
        return predict(parse([*map(str, args), *CPU]))


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))
