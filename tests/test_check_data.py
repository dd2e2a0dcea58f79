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
from tests.engine.loading.image_files import damage_deep_inside, write_folder
from tests.engine.loading.stubs import by_class

CLASSES = {"daisy": 12, "rose": 10, "向日葵": 8}


@pytest.fixture
def inspected(tmp_path, monkeypatch, capsys):
    """Runs the command on a folder; gives the exit code, its JSON and what it printed."""

    def inspect(root, *args):
        output = tmp_path / "found.json"
        monkeypatch.setattr("sys.argv", ["check_data", str(root), f"--output={output}", *args])
        with pytest.raises(SystemExit) as stop:
            check_data.parser().run(check_data.main)
        return stop.value.code, json.loads(output.read_text()), capsys.readouterr()

    return inspect


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "my images", CLASSES)


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_a_good_folder_can_train_and_its_classes_are_counted_in_the_splits_of_training(
    root, inspected
):
    options: dict[str, Any] = {"val_fraction": 0.2, "test_fraction": 0.3, "split_seed": 5}
    code, found, printed = inspected(
        root, *(f"--{name}={value}" for name, value in options.items())
    )
    assert (code, found["trains"], found["refusal"], found["images"]) == (0, True, None, 30)
    assert (found["unreadable"], found["duplicates"]) == ([], [])
    files = by_class(FolderDataModule(str(root), **options))
    expected = {
        name: {split: len(files[split][name]) for split in files} for name in files["train"]
    }
    assert found["classes"] == expected
    assert [
        "daisy",
        *(str(images) for images in expected["daisy"].values()),
        "12",
        "40.0%",
    ] in rows(printed.out)
    assert ["30", "100.0%"] in [row[-2:] for row in rows(printed.out)]
    command = printed.out.splitlines()[-1]
    assert f"python -m project.fit --data '{root}'" in command
    assert command.endswith(
        f" --data.batch_size {sum(images['train'] for images in expected.values()) // 2}"
    )
    assert all(f" --data.{name} {value} " in command for name, value in options.items())


def test_groups_are_counted(root, inspected):
    _, found, printed = inspected(root, "--group=image ([0-9]+)")
    assert found["groups"] == 12
    assert "12, each in one split" in printed.out
    assert "--data.group 'image ([0-9]+)'" in printed.out


def test_the_same_image_is_found_across_splits_and_classes(tmp_path, inspected):
    folders = ("train/a", "train/b", "val/a", "val/b", "test/a", "test/b")
    root = write_folder(tmp_path / "root", dict.fromkeys(folders, 3))
    shutil.copy(root / "train/a/image 0.jpg", root / "val/a/image 0.jpg")  # leaks
    shutil.copy(root / "train/a/image 1.jpg", root / "train/b/image 1.jpg")  # contradicts
    Image.open(root / "train/b/image 2.jpg").save(
        root / "test/b/2.bmp"
    )  # the same pixels in another file
    _, found, printed = inspected(root)
    groups = {
        tuple(entry["file"] for entry in group["files"]): group for group in found["duplicates"]
    }
    flags = {files: (g["across_splits"], g["across_classes"]) for files, g in groups.items()}
    assert flags == {
        ("train/a/image 0.jpg", "val/a/image 0.jpg"): (True, False),
        ("train/a/image 1.jpg", "train/b/image 1.jpg"): (False, True),
        ("train/b/image 2.jpg", "test/b/2.bmp"): (True, False),
    }
    assert "'train/a/image 1.jpg' (train) = 'train/b/image 1.jpg' (train)" in printed.out
    assert ["same", "image", "in", "two", "splits", "2"] in rows(printed.out)


def write_csv(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["image,class", *lines]))
    return path


def test_a_csv_gives_the_report_of_its_folder(root, tmp_path, inspected):
    names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.jpg"))
    file = write_csv(
        tmp_path / "lists" / "labels.csv", [f"{name},{name.split('/')[0]}" for name in names]
    )
    columns = ["--path_column=image", "--label_column=class"]
    options = ["--split_seed=3", "--val_fraction=0.2"]
    _, expected, _ = inspected(root, *options)
    code, found, printed = inspected(file, f"--root={root}", *columns, *options)
    others = ("data", "layout", "flags")
    assert [code, *(found.pop(name) for name in others)][:2] == [0, str(file)]
    assert found == {name: value for name, value in expected.items() if name not in others}
    fine_tuning, command = [line for line in printed.out.splitlines() if "project.fit" in line]
    assert fine_tuning.partition("--data ")[2] == command.partition("--data ")[2]
    assert (Path(__file__).parents[1] / fine_tuning.partition("--config ")[2].split()[0]).is_file()
    cli = FitCLI(
        [*shlex.split(command.partition("project.fit ")[2]), "--data.num_workers=0"]
    )  # as it is printed
    assert isinstance(cli.datamodule, CSVDataModule)
    files = by_class(cli.datamodule)
    assert {name: {split: len(files[split][name]) for split in files} for name in CLASSES} == found[
        "classes"
    ]


def test_a_csv_that_training_refuses_is_refused_in_one_line(root, inspected):
    file = write_csv(root / "labels.csv", ["rose/no.jpg,rose"])
    for args, message in (
        (["--path_column=path"], "--path_column must name one of the columns image or class"),
        ([], "line 2: there is no file 'rose/no.jpg' in --root, which is '.*'"),
    ):
        code, found, printed = inspected(file, *args)
        assert (code, printed.out) == (1, "")
        assert re.search(message, found["refusal"])
        assert printed.err == f"error: {found['refusal']}\n"
    assert (
        inspected(root / "missing.csv")[1]["refusal"]
        == f"there is no file '{root / 'missing.csv'}'"
    )


def test_every_unreadable_file_is_named_even_where_only_decoding_tells(root, inspected):
    (root / "rose" / "empty.jpg").touch()
    (root / "rose" / "text.jpg").write_text("no image")
    (root / "rose" / "gone.jpg").symlink_to("nowhere")
    (root / "rose" / "a\x1b[2J\nb.jpg").touch()  # this name must not move the cursor
    damage_deep_inside(root / "daisy" / "deep.png")
    code, found, printed = inspected(root)
    reasons = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    assert code == 1
    names = {f"rose/{name}.jpg" for name in ("empty", "text", "gone", "a\x1b[2J\nb")}
    assert set(reasons) == names | {"daisy/deep.png"}
    assert reasons["rose/text.jpg"] == "not an image"
    assert all(f"{file!r} ({reason})" in printed.out for file, reason in reasons.items())
    assert printed.err.splitlines()[-1] == f"error: {found['refusal']}"
    assert found["refusal"].startswith("5 of 35 files cannot be read")
    assert "--data.on_bad_image skip" in found["refusal"]
    assert "project.fit" not in printed.out
