"""What ``python -m project.check_data`` says of a folder or a CSV, and the code that it ends with."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from project import check_data
from project.data import CSVDataModule, FolderDataModule
from project.fit import FitCLI
from tests.conftest import ROOT, call, draw_image, make_folder

CLASSES = {"daisy": 12, "rose": 10, "向日葵": 8}


@pytest.fixture
def inspected(tmp_path, capsys):
    """Runs the command on a folder; gives the exit code, its JSON and what it printed."""

    def inspect(root: Path, *args: str) -> Any:
        output = tmp_path / "facts.json"
        code = call(check_data, root, f"--output={output}", *args)
        return code, json.loads(output.read_text()), capsys.readouterr()

    return inspect


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "my images", CLASSES)


def counts(data: Any) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {name: {} for name in CLASSES}
    for file in data.files():
        found[file.label][file.split] = found[file.label].get(file.split, 0) + 1
    return found


def damage_deep_inside(path: Path) -> None:
    """Writes a PNG file, whatever its name, that only decoding all of it finds broken."""
    draw_image(0.5, 0, (64, 64)).save(path, format="PNG")
    data = bytearray(path.read_bytes())
    data[2000:2100] = bytes(100)
    path.write_bytes(data)


def test_names_of_any_length_are_printed_in_short(tmp_path, inspected):
    """Two that begin alike are two classes."""
    root = make_folder(tmp_path / "images", {"a": 12, "b": 12})
    paths = sorted(path.relative_to(root) for path in root.rglob("*.jpg"))
    rows = [f"{path},{100_000 * 'x'}{path.parent}" for path in paths]
    (root / "labels.csv").write_text("\n".join([f"path,{100_000 * 'y'}", *rows]))
    code, facts, printed = inspected(root / "labels.csv")
    assert (code, len(facts["classes"])) == (0, 2)
    lines = printed.out.splitlines()
    assert sum(line.startswith("  xxx") for line in lines) == 2
    assert max(map(len, lines)) <= 1002


def test_a_good_folder_can_train_and_its_classes_are_counted_in_the_splits_of_training(
    root, inspected
):
    options: dict[str, Any] = {"val_fraction": 0.2, "test_fraction": 0.3, "split_seed": 5}
    code, facts, printed = inspected(root, *(f"--{name}={x}" for name, x in options.items()))
    assert (code, facts["refusal"], facts["images"]) == (0, None, 30)
    assert (facts["unreadable"], facts["duplicates"]) == ([], [])
    expected = counts(FolderDataModule(str(root), **options))
    assert facts["classes"] == expected
    table = [line.split() for line in printed.out.splitlines()]
    assert ["daisy", *map(str, expected["daisy"].values()), "12", "40.0%"] in table
    assert ["30", "100.0%"] in [row[-2:] for row in table]
    fine_tuning, command = printed.out.splitlines()[-2:]
    assert f"python -m project.fit --data '{root}'" in command
    assert all(f" --data.{name} {value} " in command for name, value in options.items())
    train = sum(images["train"] for images in expected.values())
    assert command.endswith(f" --data.batch_size {train // 2}")
    assert (ROOT / fine_tuning.partition("--config ")[2].split()[0]).is_file()
    assert fine_tuning.endswith(command.partition("project.fit")[2])


def test_the_same_image_is_found_across_splits_and_classes(tmp_path, inspected):
    folders = ("train/a", "train/b", "val/a", "val/b", "test/a", "test/b")
    root = make_folder(tmp_path / "root", dict.fromkeys(folders, 3))
    shutil.copy(root / "train/a/0.jpg", root / "val/a/0.jpg")  # leaks
    shutil.copy(root / "train/a/1.jpg", root / "train/b/1.jpg")  # contradicts
    # the same pixels in another file
    Image.open(root / "train/b/2.jpg").save(root / "test/b/2.bmp")
    Image.new("I;16", (9, 9)).save(root / "test/b/deep.png")
    _, facts, printed = inspected(root)
    groups = [
        ([file["file"] for file in group["files"]], group["across_splits"], group["across_classes"])
        for group in facts["duplicates"]
    ]
    assert sorted(groups) == [
        (["train/a/0.jpg", "val/a/0.jpg"], True, False),
        (["train/a/1.jpg", "train/b/1.jpg"], False, True),
        (["train/b/2.jpg", "test/b/2.bmp"], True, False),
    ]
    assert "'train/a/1.jpg' (train) = 'train/b/1.jpg' (train)" in printed.out
    assert re.search(r"same image in two splits +2\n", printed.out)
    assert "of 1 images of 16 bits, the upper 8 are used" in printed.err


def write_csv(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["image,class", *lines]))
    return path


def test_a_csv_gives_the_report_of_its_folder(root, tmp_path, inspected):
    names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.jpg"))
    file = write_csv(tmp_path / "labels.csv", [f"{name},{name.split('/')[0]}" for name in names])
    options = ["--split_seed=3", "--val_fraction=0.2"]
    _, expected, _ = inspected(root, *options)
    options += [f"--root={root}", "--path_column=image", "--label_column=class"]
    code, facts, printed = inspected(file, *options)
    assert facts == expected | {name: facts[name] for name in ("data", "layout", "flags")}, (
        "of a folder and a table of the same images: where yours are split differently, delete this"
    )
    flags = shlex.split(printed.out.splitlines()[-1].partition("project.fit ")[2])
    data = FitCLI([*flags, "--data.num_workers=0"]).datamodule  # as it is printed
    assert isinstance(data, CSVDataModule)
    assert (code, counts(data)) == (0, facts["classes"])


def test_data_that_training_refuses_is_refused_in_one_line(root, inspected):
    file = write_csv(root / "labels.csv", ["rose/no.jpg,rose"])
    for path, args, message in (
        (
            file,
            ["--path_column=path"],
            "^--path_column: must name one of the columns image or class of",
        ),
        (file, [], "line 2: there is no file 'rose/no.jpg' in '"),
        (root / "missing.csv", [], "^there is no file '.*missing.csv'"),
        (root, ["--path_column=path"], "--path_column: requires a CSV"),
    ):
        code, facts, printed = inspected(path, *args)
        assert (code, printed.out) == (1, "")
        assert re.search(message, facts["refusal"])
        assert printed.err == f"error: {facts['refusal']}\n"


def test_every_unreadable_file_is_named_even_where_only_decoding_tells(root, inspected):
    (root / "rose" / "empty.jpg").touch()
    (root / "rose" / "text.jpg").write_text("no image")
    (root / "rose" / "gone.jpg").symlink_to("nowhere")
    (root / "rose" / "a\x1b[2J\nb.jpg").touch()  # this name must not move the cursor
    damage_deep_inside(root / "daisy" / "deep.png")
    code, facts, printed = inspected(root)
    reasons = {entry["file"]: entry["reason"] for entry in facts["unreadable"]}
    names = ("rose/empty", "rose/text", "rose/gone", "rose/a\x1b[2J\nb")
    assert reasons.keys() == {*(f"{name}.jpg" for name in names), "daisy/deep.png"}
    assert reasons["rose/text.jpg"] == "not an image: it begins with b'no image'"
    assert all(f"{file!r} ({reason})" in printed.out for file, reason in reasons.items())
    assert re.search(r"^error: 5 of 35 files cannot be .* skip them with --data\.on", printed.err)
    assert (code, "project.fit" in printed.out) == (1, False)
