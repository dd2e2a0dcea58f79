import json
import random
import re
import shlex
import shutil
import struct
import zlib
from itertools import count
from typing import Any

import numpy as np
import pytest
from PIL import Image

from project import check_data as command
from project.data import CSVDataModule, FolderDataModule
from project.fit import FitCLI
from tests.data.image_files import (
    cut_before_the_end,
    damage_deep_inside,
    noise,
    png_chunk,
    shortened,
    smooth,
    write_folder,
    zeroed,
)

CLASSES = {"daisy": 12, "rose": 10, "向日葵": 8}


def run(monkeypatch, *args):
    """The exit code of the command."""
    monkeypatch.setattr("sys.argv", ["check_data", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    return stop.value.code


@pytest.fixture
def inspected(tmp_path, monkeypatch, capsys):
    """Runs the command on a folder; gives the exit code, its JSON and what it printed."""

    def inspect(root, *args):
        code = run(monkeypatch, root, f"--output={tmp_path / 'found.json'}", *args)
        return code, json.loads((tmp_path / "found.json").read_text()), capsys.readouterr()

    return inspect


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "my images", CLASSES)


def png(colours):
    """A PNG file of 16-bit colours, which PIL does not write; big-endian (height, width, 3)."""
    height, width, _ = colours.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in colours))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(kind, data) for kind, data in ((b"IHDR", header), (b"IDAT", content), (b"IEND", b""))
    )


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_a_good_folder_can_train(root, inspected):
    code, found, printed = inspected(root)
    assert code == 0
    assert (found["trains"], found["refusal"], found["images"]) == (True, None, 30)
    assert (found["unreadable"], found["duplicates"]) == ([], [])
    training = sum(counts["train"] for counts in found["classes"].values())
    command = f"python -m project.fit --data FolderDataModule --data.root '{root}' --data.batch_size {training // 2}"
    assert command in printed.out


def test_classes_are_counted_in_the_splits_of_training(root, inspected):
    options: dict[str, Any] = {"val_fraction": 0.2, "test_fraction": 0.3, "split_seed": 5}
    _, found, printed = inspected(root, *(f"--{name}={value}" for name, value in options.items()))
    files = FolderDataModule(str(root), **options).files()
    expected = {name: {split: len(files[split][name]) for split in files} for name in files["train"]}
    assert found["classes"] == expected
    assert ["daisy", *(str(images) for images in expected["daisy"].values()), "12", "40.0%"] in rows(printed.out)
    assert ["30", "100.0%"] in [row[-2:] for row in rows(printed.out)]


def test_splits_that_are_given_are_taken_as_they_are(tmp_path, inspected):
    for split, images in {"train": 6, "val": 1, "test": 2}.items():
        write_folder(tmp_path / "root" / split, dict.fromkeys(CLASSES, images))
    _, found, _ = inspected(tmp_path / "root")
    assert found["classes"] == {name: {"train": 6, "val": 1, "test": 2} for name in CLASSES}
    assert {len(group["files"]) for group in found["duplicates"]} == {2, 3}
    assert all(group["across_splits"] for group in found["duplicates"])


def test_every_unreadable_file_is_named_even_where_only_decoding_tells(root, inspected):
    (root / "rose" / "empty.jpg").touch()
    (root / "rose" / "text.jpg").write_text("no image")
    (root / "rose" / "gone.jpg").symlink_to("nowhere")
    damage_deep_inside(root / "daisy" / "deep.png")
    code, found, printed = inspected(root)
    reasons = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    assert code == 1
    assert set(reasons) == {f"rose/{name}.jpg" for name in ("empty", "text", "gone")} | {"daisy/deep.png"}
    assert reasons["rose/text.jpg"] == "not an image"
    assert all(f"{file} ({reason})" in printed.out for file, reason in reasons.items())
    assert printed.err.splitlines()[-1] == f"error: {found['refusal']}"
    assert found["refusal"].startswith("4 of 34 files cannot be read")
    assert "--data.on_bad_image skip" in found["refusal"]
    assert "project.fit" not in printed.out


def test_jpeg_and_webp_files_with_a_part_missing_are_named(root, inspected):
    for suffix in ("jpg", "webp"):
        path, dice = root / "daisy" / f"new.{suffix}", random.Random(0)
        noise(400, 300).save(path, quality=60)
        whole = path.read_bytes()
        (root / "rose" / f"cut.{suffix}").write_bytes(cut_before_the_end(whole, dice))
        (root / "rose" / f"short.{suffix}").write_bytes(shortened(whole, dice, 4096))
        (root / "rose" / f"zeroed.{suffix}").write_bytes(zeroed(whole, dice, 4096))
    code, found, printed = inspected(root)
    unreadable = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    holes = {entry["file"] for entry in found["holes"]}
    assert code == 1
    assert {f"rose/{kind}.{suffix}" for kind in ("cut", "short") for suffix in ("jpg", "webp")} <= set(unreadable)
    assert {f"rose/zeroed.{suffix}" for suffix in ("jpg", "webp")} <= set(unreadable) | holes
    assert "rose/zeroed.webp" in holes  # of which no decoder complains
    assert "premature end of data" in unreadable["rose/cut.jpg"]
    assert all(file.startswith("rose/") for file in holes.union(unreadable))
    assert ["perhaps", "damaged", str(len(holes))] in rows(printed.out)
    assert "rose/zeroed.webp (zeros inside" in printed.out


def test_padding_in_metadata_is_no_damage(root, inspected):
    padding = Image.Exif()
    padding[0xEA1C] = bytes(2000)  # room that Windows leaves
    for suffix in ("jpg", "webp"):
        smooth(40, 30).save(root / "rose" / f"padded.{suffix}", exif=padding)
        assert bytes(2000) in (root / "rose" / f"padded.{suffix}").read_bytes()
    _, found, _ = inspected(root)
    assert (found["unreadable"], found["holes"]) == ([], [])


def test_of_16_bits_that_hold_fewer_is_warned(root, inspected):
    values = np.random.default_rng(0).integers(0, 2**12, (30, 40), dtype=np.uint16)
    for suffix in ("png", "tif"):
        Image.fromarray(values).save(root / "rose" / f"12 bits.{suffix}")
        Image.fromarray(values << 4).save(root / "rose" / f"16 bits.{suffix}")
        Image.fromarray((values >> 8).astype(np.uint8)).save(root / "rose" / f"dark.{suffix}")
    colours = np.stack([values] * 3, axis=-1).astype(">u2")
    (root / "daisy" / "colours.png").write_bytes(png(colours))
    code, found, printed = inspected(root)
    assert {entry["file"]: entry["brightest"] for entry in found["dark"]} == {
        "daisy/colours.png": 15,
        "rose/12 bits.png": 15,
        "rose/12 bits.tif": 15,
    }
    assert code == 0
    assert ["nearly", "black", "3"] in rows(printed.out)
    assert "rose/12 bits.png (its brightest pixel is 15 of 255" in printed.out


def test_of_many_unreadable_files_the_table_lists_some_and_counts_all(root, inspected):
    for number in range(25):
        (root / "rose" / f"bad {number}.jpg").touch()
    _, found, printed = inspected(root)
    assert ["unreadable", "25"] in rows(printed.out)
    assert printed.out.count("(not an image)") == 10
    assert "and 15 more" in printed.out
    assert len(found["unreadable"]) == 25


def test_where_skipping_would_not_help_it_is_not_offered(root, inspected):
    for file in (root / "rose").iterdir():
        file.write_bytes(b"")
    code, found, _ = inspected(root)
    assert code == 1
    assert "class 'rose' has no training image that can be read" in found["refusal"]
    assert "on_bad_image" not in found["refusal"]


def test_the_same_image_is_found_across_splits_and_classes(tmp_path, inspected):
    seeds = count()
    for split in ("train", "val", "test"):
        for name in "ab":
            (tmp_path / "root" / split / name).mkdir(parents=True)
            for number in range(3):
                noise(20, 20, next(seeds)).save(tmp_path / "root" / split / name / f"{number}.png")
    root = tmp_path / "root"
    shutil.copy(root / "train/a/0.png", root / "val/a/0.png")  # leaks
    shutil.copy(root / "train/a/1.png", root / "train/b/1.png")  # contradicts
    Image.open(root / "train/b/2.png").save(root / "test/b/2.bmp")  # the same pixels in another file
    _, found, printed = inspected(root)
    groups = {tuple(entry["file"] for entry in group["files"]): group for group in found["duplicates"]}
    flags = {files: (g["same"], g["across_splits"], g["across_classes"]) for files, g in groups.items()}
    assert flags == {
        ("train/a/0.png", "val/a/0.png"): ("bytes", True, False),
        ("train/a/1.png", "train/b/1.png"): ("bytes", False, True),
        ("train/b/2.png", "test/b/2.bmp"): ("pixels", True, False),
    }
    assert "train/a/1.png (train) = train/b/1.png (train)" in printed.out
    assert ["same", "image", "in", "two", "splits", "2"] in rows(printed.out)


def test_sizes_formats_modes_frames_and_turns_are_counted(root, inspected):
    frames = [smooth(32, 32), noise(32, 32)]
    for suffix in ("gif", "webp"):
        frames[0].save(root / "rose" / f"moving.{suffix}", save_all=True, append_images=frames[1:])
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth(60, 20).save(root / "rose" / "turned.jpg", exif=exif)
    smooth(500, 10).convert("L").save(root / "rose" / "panorama called.jpg", format="PNG")
    _, found, printed = inspected(root)
    assert found["width"] == {"min": 20, "median": 30, "max": 500}
    assert found["height"] == {"min": 10, "median": 24, "max": 60}
    assert found["formats"] == {"JPEG": 31, "GIF": 1, "PNG": 1, "WEBP": 1}
    assert found["modes"]["L"] == 1
    assert (found["animated"], found["turned_by_exif"]) == (2, 1)
    assert "20 to 500 pixels, median 30" in printed.out


def test_the_same_folder_gives_the_same_report_anywhere(root, tmp_path, inspected):
    there = shutil.copytree(root, tmp_path / "there")
    first, second = (inspected(place)[1] for place in (root, there))
    assert first | {"data": None} == second | {"data": None}
    assert list(first["formats"]) == list(second["formats"])


def test_files_in_folders_within_class_folders_are_counted_and_listed(tmp_path, inspected):
    write_folder(root := tmp_path / "root", {"a": 2, "a/x": 3, "b": 4})
    _, found, printed = inspected(root)
    assert found["in_sub_folders"] == [f"a/x/image {number}.jpg" for number in range(3)]
    assert "in folders within classes 3, as a/x/image 0.jpg" in " ".join(printed.out.split())


def write_csv(path, lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["image,class", *lines]))
    return path


def test_a_csv_gives_the_report_of_its_folder(root, tmp_path, inspected):
    names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.jpg"))
    file = write_csv(tmp_path / "lists" / "labels.csv", [f"{name},{name.split('/')[0]}" for name in names])
    columns = ["--path_column=image", "--label_column=class"]
    options = ["--split_seed=3", "--val_fraction=0.2"]
    _, expected, _ = inspected(root, *options)
    code, found, printed = inspected(file, f"--root={root}", *columns, *options)
    del expected["in_sub_folders"]
    assert (code, found) == (0, expected | {"data": str(file)})
    (command,) = [line for line in printed.out.splitlines() if "project.fit" in line]
    cli = FitCLI([*shlex.split(command.partition("project.fit ")[2]), "--data.num_workers=0"])  # as it is printed
    assert isinstance(cli.datamodule, CSVDataModule)
    files = cli.datamodule.files()
    assert {name: {split: len(files[split][name]) for split in files} for name in CLASSES} == found["classes"]


def test_absolute_paths_of_a_csv_are_named_as_they_are(root, tmp_path, inspected):
    (root / "rose" / "image 0.jpg").write_bytes(b"")
    lines = [f"{file},{file.parent.name}" for file in root.rglob("*.jpg")]
    file = write_csv(tmp_path / "lists" / "labels.csv", lines)
    code, found, _ = inspected(file, "--path_column=image", "--label_column=class")
    assert code == 1
    assert [entry["file"] for entry in found["unreadable"]] == [str(root / "rose" / "image 0.jpg")]


def test_a_csv_that_training_refuses_is_refused_in_one_line(root, inspected):
    file = write_csv(root / "labels.csv", ["rose/no.jpg,rose"])
    for args, message in (
        ((), "line 1: there is no column 'path' among image, class; .* with --path_column"),
        (("--path_column=image", "--label_column=class"), "line 2: there is no file .*; --root says what paths"),
    ):
        code, found, printed = inspected(file, *args)
        assert (code, printed.out) == (1, "")
        assert re.search(message, found["refusal"])
        assert printed.err == f"error: {found['refusal']}\n"
    assert inspected(root / "missing.csv")[1]["refusal"] == f"there is no file '{root / 'missing.csv'}'"


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (None, "there is no folder"),
        ({}, "has no images"),
        ({"a": 5, "empty": 0}, "empty' has no images"),
        ({"only": 9}, "one class only"),
        ({"a": 5, "small": 2}, "'small' has 2 image"),
        ({"train/a": 5, "train/b": 5, "val/a": 1, "val/c": 1}, "differ in: b, c"),
    ],
    ids=str,
)
def test_a_folder_that_training_refuses_is_refused_in_one_line(tmp_path, inspected, folders, reason):
    if folders is not None:
        write_folder(tmp_path / "root", folders).mkdir(exist_ok=True)
    code, found, printed = inspected(tmp_path / "root")
    assert (code, found["trains"], printed.out) == (1, False, "")
    assert reason in found["refusal"]
    assert printed.err == f"error: {found['refusal']}\n"
    assert "--data." not in printed.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--val_fraction=2"], "--val_fraction and --test_fraction must be above 0"),
        (["--split_seed=x"], "--split_seed: expected int, not 'x'"),
        (["--val_fracton=0.1"], "there is no option '--val_fracton'; did you mean --val_fraction"),
        (["--label_column=x"], "--label_column goes with a CSV, but '"),
        (["--output=nowhere/found.json"], "--output: 'nowhere/found.json' cannot be written"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_in_one_line(root, monkeypatch, capsys, args, message):
    assert run(monkeypatch, root, *args) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}")
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_help_explains_every_option(monkeypatch, capsys):
    assert run(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("data", "--output", "--val_fraction", "--test_fraction", "--split_seed"))
    assert "a CSV, as --data.file of CSVDataModule" in " ".join(text.split())
    assert all(f"--{name}" in text for name in ("root", "path_column", "label_column", "split_column"))


def test_ctrl_c_ends_with_one_line(root, monkeypatch, capsys):
    def interrupted(file):
        raise KeyboardInterrupt

    monkeypatch.setattr("project.data.checks._facts", interrupted)
    assert run(monkeypatch, root) == 130
    assert capsys.readouterr().err == "\nstopped\n"


def test_a_name_cannot_move_the_cursor(root, inspected):
    (root / "rose" / "a\x1b[2J\nb.jpg").touch()
    _, found, printed = inspected(root)
    assert "rose/a\\x1b[2J\\nb.jpg (not an image)" in printed.out
    assert found["unreadable"][0]["file"] == "rose/a\x1b[2J\nb.jpg"
