"""Names of classes: numbers in a table get the right ones or none, and no two classes share one."""

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from lightkeeper.exact import UserError
from lightkeeper.images import MapDatasetModule, predict_files
from lightkeeper.images._predictions import QUIET
from lightning.pytorch import Trainer
from PIL import Image

from tests.image_files import write_folder
from tests.stubs import Files, Samples, Table, cases
from tests.toy import PREPROCESSING, ToyClassifier, ToyData, fit, one_line

IMAGES = 12


def table(root: Path, labels: str, files: dict[str, str], **options: Any) -> Table:
    """A table of images with these labels in turns, beside other files."""
    named = (labels.split() * IMAGES)[:IMAGES]
    for number in range(IMAGES):
        Image.new("RGB", (8, 8)).save(root / f"{number:02}.png")
    rows = [f"{number:02}.png,{label}" for number, label in enumerate(named)]
    (root / "t.csv").write_text("\n".join(["path,species", *rows]))
    for name, text in files.items():
        (root / name).write_text(text)
    return Table(str(root / "t.csv"), **options)


def names_of(data: Table, labels: str) -> str:
    """The classes of the labels, in their order."""
    files = {Path(file.path).stem: file.label for file in data.files()}
    return " ".join(files[f"{number:02}"] for number in range(len(labels.split())))


@cases(
    "labels file text names",
    ("0 1", "classes.txt", "dog\ncat\n", "dog cat"),
    ("1 2", "classes.txt", "dog\r\n\r\ncat", "dog cat"),
    ("01 02", "classes.txt", "dog\ncat", "dog cat"),
    ("0.0 1.0", "classes.txt", "dog\ncat", "dog cat"),
    ("1 01 2.0", "classes.txt", "dog\ncat", "dog dog cat"),
    ("0 3", "classes.txt", "dog\nfox\nowl\ncat", "dog cat"),  # the last one counts
    ("2 4", "classes.txt", "fox\ndog\nowl\ncat", "dog cat"),
    ("1 3", "classes.txt", "0 fox\n1 dog\n2 owl\n3 cat\n4 elk", "dog cat"),
    ("1 2", "classes.txt", "number;name\n1;dog\n2;cat", "dog cat"),
    ("1 2", "classes.txt", "1. dog\n2. cat", "dog cat"),
    ("1 2", "classes.txt", "001.dog\n002.cat", "001.dog 002.cat"),
    ("0 1", "classes.txt", "cat 1\ndog 0", "dog cat"),
    ("0 1", "classes.txt", "Audi A4 2012\nBMW M3 2012", "Audi A4 2012 BMW M3 2012"),
    ("0 1", "names.json", '{"0": "dog", "1": "cat", "version": 2}', "dog cat"),
    ("0 1", "names.json", '{"00": "dog", "1.0": "cat"}', "dog cat"),
    ("0 1", "names.json", '{"cat": 1, "dog": 0}', "dog cat"),
    ("0 1", "names.json", '["dog", "cat"]', "dog cat"),
    ("1 2", "names.json", '["dog", "cat"]', "dog cat"),
)
def test_numbers_get_the_names_that_a_file_has_for_them(tmp_path, labels, file, text, names):
    data = table(tmp_path, labels, {file: text})
    assert names_of(data, labels) == names
    assert f"; their names from {file}" in data.layout


FIVE = "fox\ndog\ncat\nowl\nelk"


@cases(
    "labels text",
    ("1 2 3 4", FIVE),  # from 0 without the first, or from 1 without the last
    ("0 1 2 3", FIVE),  # the first line may be a heading
    ("0 1 2", FIVE),
    ("0 2 5", FIVE),
    ("1 2", "name\ndog\ncat"),
    ("0 1", "name\ndog\ncat"),
    ("0 1", "1 dog\n2 cat"),
    ("0 1", "dog 1\ncat 2"),
    ("7 8", "dog\ncat"),
    ("0 1", ""),
)
def test_names_that_may_be_another_numbers_are_refused_and_the_option_decides(
    tmp_path, labels, text
):
    data = table(tmp_path, labels, {"classes.txt": text})
    with pytest.raises(UserError, match=r"classes\.txt': it is not certain.* with class_names"):
        data.files()
    names = ["owl", "elk", "bee", "ant"][: len(labels.split())]
    data = table(tmp_path, labels, {}, class_names=names)
    assert names_of(data, labels) == " ".join(names)
    assert data.class_names == names
    assert "; their names from class_names" in data.layout
    lines = [f"{label} {name}" for label, name in zip(labels.split(), names, strict=True)]
    data = table(tmp_path, labels, {"classes.txt": "\n".join(["9 dodo", *lines])})
    assert names_of(data, labels) == " ".join(names)


@cases(
    "text",
    '{"0": ["n01", "dog"], "1": ["n02", "cat"]}',
    '{"dog": 1, "cat": 2}',
    '{"dog": 0, "cat": 0, "owl": 1}',
    '["images", "dog", "cat"]',
    '[["dog"], ["cat"]]',
    "[" * 10**5,
)
def test_a_json_file_that_does_not_name_the_numbers_is_named(tmp_path, text):
    data = table(tmp_path, "0 1", {"some.json": text})
    assert names_of(data, "0 1") == "0 1"
    assert "; no names for them in some.json" in data.layout


def test_two_files_of_one_name_that_differ_are_refused(tmp_path):
    (images := tmp_path / "images").mkdir()
    table(images, "0 1", {"classes.txt": "cat\ndog"})
    (images / "t.csv").rename(tmp_path / "t.csv")
    (tmp_path / "classes.txt").write_text("dog\ncat")
    with pytest.raises(UserError, match=r"images/classes\.txt name the classes differently"):
        Table(str(tmp_path / "t.csv"), root=str(images)).files()


def test_numbers_beyond_what_python_reads_are_names(tmp_path):
    data = table(tmp_path, f"{'1' * 5000} 2", {"classes.txt": "cat\ndog"})
    assert {*data.class_names} == {"1" * 5000, "2"}


def test_names_are_read_in_the_encodings_of_windows(tmp_path):
    data = table(tmp_path, "0 1", {})
    for encoding in ("utf-16", "cp1252", "utf-8-sig"):
        (tmp_path / "classes.txt").write_text("G\u00e4nsebl\u00fcmchen\nRose", encoding)
        data.expect_classes([], "")
        assert names_of(data, "0 1") == "G\u00e4nsebl\u00fcmchen Rose"


def test_classes_in_an_order_of_the_users_keep_the_names_that_a_file_gives(tmp_path):
    names = ["owl", "cat", "dog"]
    data = table(tmp_path, "0 1", {"classes.txt": "dog\ncat"}, class_names=names)
    assert names_of(data, "0 1") == "dog cat"
    assert data.class_names == names


def test_a_checkpoints_classes_which_may_be_sorted_are_no_names_of_numbers(tmp_path):
    data = table(tmp_path, "0 1", {})
    data.expect_classes(["cat", "dog"], "best.ckpt")
    with pytest.raises(UserError, match=r"images of 0 and 1, but best\.ckpt knows the 2 classes"):
        data.files()


@cases(
    "file text",
    ("classes.txt", "crane\nheron\ncrane"),
    ("classes.txt", "2 crane\n1 heron\n0 crane"),
    ("names.json", json.dumps({"0": normalize("NFC", "caf\u00e9"), "1": "x", "2": "cafe\u0301"})),
)
def test_two_numbers_of_one_name_are_no_class(tmp_path, file, text):
    data = table(tmp_path, "0 1 2", {file: text})
    with pytest.raises(UserError, match=rf"^by {file}, the labels 0 and 2 have one name, 'c"):
        data.files()
    data = table(tmp_path, "0 1 2", {}, class_names=["bird", "heron", "machine"])
    assert names_of(data, "0 1 2") == "bird heron machine"


@cases(
    "names complaint",
    (["a", "b", "a"], "^the classes 0 and 2 have one name, 'a'; give each its own"),
    (["caf\u00e9", "x", "cafe\u0301"], "^the classes 0 and 2 have one name"),
    (["x", "a\x1b", "a\x1b", "a\x1b"], r"^the classes 1, 2 and 3 have one name, 'a\\x1b'"),
    ([True, False], "^the names of classes must be texts, got True$"),
    (["1", 2], "^the names of classes must be texts, got 2$"),
)
def test_names_are_texts_that_differ_wherever_they_come_from(tmp_path, names, complaint):
    write_folder(tmp_path, {"a": 1, "b": 1})
    folder = Files(str(tmp_path), class_names=names)
    samples: Any = Samples()
    pairs = MapDatasetModule(samples, class_names=names)
    classifier = ToyClassifier(names, PREPROCESSING)
    trainer = Trainer(max_steps=1, accelerator="cpu", **QUIET)
    for use in (
        folder.files,
        lambda: pairs.class_names,
        lambda: trainer.fit(classifier, datamodule=ToyData()),
        lambda: predict_files(classifier, []),
    ):
        with pytest.raises(UserError, match=complaint):
            use()


def test_two_classes_of_a_dataset_have_two_names():
    cranes: Any = Samples(classes=["crane", "heron", "crane"])
    with pytest.raises(UserError, match="the classes 0 and 2 have one name, 'crane'"):
        _ = MapDatasetModule(cranes).class_names
    names = ["bird", "heron", "machine"]
    assert MapDatasetModule(cranes, class_names=names).class_names == names


class Answers(Files):
    """What YAML makes of yes and no."""

    class_names: Any = [True, False]


def test_names_that_yaml_reads_as_other_types_are_an_error_of_one_line(workplace, capsys):
    write_folder(Path("images"), {"yes": 1, "no": 1})
    data = [f"--data={__name__}.Answers", "--data.root=images"]
    assert "must be texts, got True" in one_line(lambda: fit(*data), capsys)
    data = ["--data=tests.stubs.Files", "--data.root=images", "--data.class_names=[yes, no]"]
    assert "Expected a <class 'str'>. Got value: True" in one_line(lambda: fit(*data), capsys)
