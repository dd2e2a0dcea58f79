"""A CSV of image files: what it may look like, where its images go, and what is refused with its line."""

import csv
import shutil
from unicodedata import normalize

import pytest
import torch

from project.data import CSVDataModule, FolderDataModule
from project.engine.errors import UserError
from tests.conftest import cases
from tests.data.stubs import attached
from tests.engine.loading.image_files import write_folder

CLASSES = {"rose": 12, "daisy": 12}


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "images", CLASSES)


def write(path, rows, header=("path", "label"), encoding="utf-8", **options):
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def rows_of(root):
    return [
        (file.relative_to(root).as_posix(), file.parent.name)
        for file in sorted(root.rglob("*.jpg"))
    ]


def module(file, **options):
    return CSVDataModule(
        str(file), **{"image_size": 16, "batch_size": 4, "num_workers": 0} | options
    )


def listed(data):
    return {
        split: {name: [*files] for name, files in classes.items()}
        for split, classes in data.files().items()
    }


def test_its_images_are_those_of_the_folder_in_the_same_splits(root):
    data = attached(module(write(root / "labels.csv", rows_of(root))))
    folder = attached(FolderDataModule(str(root), image_size=16, batch_size=4, num_workers=0))
    assert data.class_names == folder.class_names == sorted(CLASSES)
    for split in ("train", "val", "test"):
        assert [*data.splits[split].files] == [*folder.splits[split].files]
        keys = list(range(len(data.splits[split])))
        found, expected = (module.splits[split].__getitems__(keys) for module in (data, folder))
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "SLURM_LOCALID"])
@pytest.mark.parametrize("kind", ["CSV", "folder", "folders of splits"])
def test_processes_behind_the_first_find_classes_without_looking_for_files(
    tmp_path, monkeypatch, kind, variable
):
    classes = {"Ä b": 12, "a": 12, "B": 12}
    place = write_folder(tmp_path / "train" if kind == "folders of splits" else tmp_path, classes)
    (place / ".hidden").mkdir()
    file = write(tmp_path / "labels.csv", rows_of(tmp_path))
    first, other = (
        module(file) if kind == "CSV" else FolderDataModule(str(tmp_path)) for _ in range(2)
    )
    assert first.class_names == ["B", "a", "Ä b"]
    assert sum(first.expected_sizes().values()) == 36
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(other, "_split", None)
    for folder in classes:
        shutil.rmtree(place / folder)
        if kind != "CSV":
            (place / folder).mkdir()
    assert other.class_names == first.class_names
    assert other.expected_sizes() == {}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_spellings_of_spreadsheets_are_read_without_an_option(root, encoding, separator):
    names = {"rose": "Rose, wild; old|red", "daisy": "G\u00e4nsebl\u00fcmchen"}
    rows = [(path, names[label], "a,b;c|d") for path, label in rows_of(root)]
    header = ("path", "label", "a note; or | more, quoted")
    file = write(root / "labels.tsv", rows, header, encoding=encoding, delimiter=separator)
    data = module(file)
    assert data.class_names == [names["daisy"], names["rose"]]
    plain = module(write(root / "plain.csv", [row[:2] for row in rows]))
    assert listed(data) == listed(plain)
    assert data.layout == "2 classes from the column label"
    written = {"\t": "\\t"}.get(separator, separator)  # as a shell passes it
    assert listed(module(file, delimiter=written)) == listed(plain)


def test_a_separator_must_be_one_character(root):
    with pytest.raises(UserError, match=r"--data\.delimiter must be one character, got ', '"):
        module(root / "labels.csv", delimiter=", ")


def test_paths_and_labels_of_other_systems_are_found_in_the_same_splits(tmp_path):
    root = write_folder(tmp_path, {"caf\u00e9/new": 30, "tea": 30})
    rows = rows_of(root)
    plain = module(write(root / "plain.csv", [(path, path.split("/")[0]) for path, _ in rows]))
    other = [
        (normalize("NFD", path).replace("/", "\\"), normalize("NFD", path.split("/")[0]))
        for path, _ in rows
    ]
    data = module(write(root / "windows.csv", other))
    assert data.class_names == ["caf\u00e9", "tea"]
    assert listed(data) == listed(plain)


@cases(
    "change text",
    (
        lambda rows: [*rows, (rows[0][0], "rose", "")],
        "line 26: 'daisy/image 0.jpg' is in line 2, too",
    ),
    (
        lambda rows: [*rows, ("nowhere.jpg", "rose", "")],
        "line 26: there is no file '.*nowhere.jpg'",
    ),
    (lambda rows: [*rows, ("", "rose", "")], "line 26: it must have a path and a label"),
    (lambda rows: [*rows, (rows[0][0],)], "line 26: it must have a path and a label"),
    (lambda rows: [*rows, ("x", "rose", "", "y")], "line 26: it must have a path and a label"),
    (
        lambda rows: [(*row[:2], "fold1") for row in rows],
        "line 2: the split must be train, val or test, got 'fold1'",
    ),
    (
        lambda rows: [(*rows[0][:2], "val"), *rows[1:]],
        "line 3: the split must be train, val or test, got ''",
    ),
    (lambda rows: rows[:12], "one class only, 'daisy'"),
    (lambda rows: [], "names no image"),
)
def test_what_is_wrong_is_said_with_its_line(root, change, text):
    rows = [(*row, "") for row in rows_of(root)]
    with pytest.raises(UserError, match=text):
        module(write(root / "labels.csv", change(rows), ("path", "label", "split"))).files()


def test_a_file_that_cannot_be_read_as_a_table_is_refused(root):
    with pytest.raises(UserError, match="there is no file"):
        module(root / "labels.csv").files()
    with pytest.raises(
        UserError, match=r"line 1: there is no column 'path' among a, b.*--data.path_column"
    ):
        module(write(root / "labels.csv", [], ("a", "b"))).files()
    grouped = write(
        root / "labels.csv", [(*row, "") for row in rows_of(root)], ("path", "label", "site")
    )
    with pytest.raises(UserError, match="line 2: it must have a path, a label and a site"):
        module(grouped, group="site").files()
    with pytest.raises(
        UserError, match=r"line 1: there is no column 'place' among .*; --data\.group names it"
    ):
        module(grouped, group="place").files()
    (root / "labels.csv").write_text("[" + '{"path":"a.jpg"},' * 999 + "]")
    with pytest.raises(UserError, match="no column 'path' among") as caught:
        module(root / "labels.csv").files()
    assert len(str(caught.value)) < 500 + len(str(root))
    (root / "labels.csv").write_bytes("path,label\nx,Gänse\n".encode("latin-1"))
    with pytest.raises(UserError, match="is not UTF-8"):
        module(root / "labels.csv").files()


OTHERWISE = [
    ("subset", {"split_column": "Subset"}),
    ("Split", {}),
    ("SPLIT", {}),
    ("split", {"split_column": "Split"}),
]


@pytest.mark.parametrize(("column", "options"), OTHERWISE)
def test_a_column_of_splits_is_followed_and_one_that_is_called_otherwise_not_ignored(
    root, column, options
):
    names = ("Train", "eval")
    rows = [(*row, names[number % 2]) for number, row in enumerate(rows_of(root))]
    file = write(root / "labels.csv", rows, ("path", "label", column))
    wanted = options.get("split_column", "split")
    with pytest.raises(
        UserError, match=f"no column '{wanted}' among path, label, {column};.*--data.split_column"
    ):
        module(file, **options).files()
    files = module(file, split_column=column).files()
    assert sorted(files["test"].paths) == [
        root / path for path, _, split in rows if split == "eval"
    ]
    assert all(files["val"].values())
    assert sum(len(classes.paths) for classes in files.values()) == len(rows)
