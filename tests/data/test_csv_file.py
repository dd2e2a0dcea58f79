"""A CSV of image files: what it may look like, where its images go, and what is refused with its line."""

import csv
import json
import sys
from pathlib import Path
from unicodedata import normalize

import pytest
import torch

from project.data import CSVDataModule, FolderDataModule
from project.engine.errors import UserError
from tests.conftest import cases
from tests.data.stubs import attached, write_parquet
from tests.engine.loading.image_files import noise, write_folder

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


@pytest.mark.parametrize("kind", ["CSV", "folder", "folders of splits"])
def test_classes_are_sorted_and_sizes_known_before_images_are_loaded(tmp_path, kind):
    classes = {"Ä b": 12, "a": 12, "B": 12}
    place = write_folder(tmp_path / "train" if kind == "folders of splits" else tmp_path, classes)
    (place / ".hidden").mkdir()
    file = write(tmp_path / "labels.csv", rows_of(tmp_path))
    data = module(file) if kind == "CSV" else FolderDataModule(str(tmp_path))
    assert data.class_names == ["B", "a", "Ä b"]
    assert sum(data.split_sizes().values()) == 36


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
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
    unused = "not used: the column a note; or | more, quoted"
    assert data.layout == f"2 classes from the column label; {unused}"


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
        "line 26: there is no file 'nowhere.jpg' in --data.root",
    ),
    (lambda rows: [*rows, ("", "rose", "")], "line 26: it must have a path and a label"),
    (lambda rows: [*rows, (rows[0][0],)], "line 26 has 1 columns, not 3"),
    (lambda rows: [*rows, ("x", "rose", "", "y")], "line 26 has 4 columns, not 3"),
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
    with pytest.raises(UserError, match=r"--data.path_column must name one of the columns a or b"):
        module(write(root / "labels.csv", [], ("a", "b"))).files()
    grouped = write(
        root / "labels.csv", [(*row, "") for row in rows_of(root)], ("path", "label", "site")
    )
    with pytest.raises(UserError, match="line 2: it must have a path, a label and a group"):
        module(grouped, group="site").files()
    with pytest.raises(UserError, match=r"--data\.group: 'place' finds nothing in 'daisy"):
        module(grouped, group="place").files()
    with pytest.raises(UserError, match=r"split_column must name .* path, label or site, got 'x'"):
        module(grouped, split_column="x").files()
    for content, line in {
        "{": "line 1",
        "[1]": "",
        '{"path": 1}\n[]': "",
        "{}\n\n{]": "line 3",
    }.items():
        (root / "labels.jsonl").write_text(content)
        with pytest.raises(UserError, match=rf"labels\.jsonl' cannot be read as a table: {line}"):
            module(root / "labels.jsonl").files()
    (root / "labels.jsonl").write_text(
        '{"path": "rose/image 0.jpg", "label": 1}\n\n{"path": "x"}\n'
    )
    with pytest.raises(UserError, match=r"labels\.jsonl', line 3: it must have"):
        module(root / "labels.jsonl").files()
    twice = write(
        root / "labels.csv", [(*row, "b") for row in rows_of(root)], ("path", "label", "label")
    )
    with pytest.raises(UserError, match="two of its columns have one name: path, label and label"):
        module(twice).files()
    with pytest.raises(UserError, match=r"0.jpg' cannot be read as a table: it is no text"):
        module(root / "rose" / "image 0.jpg").files()


SPLITS = ["split", "Subset", "SPLIT", "data set"]


@pytest.mark.parametrize("column", SPLITS)
@pytest.mark.parametrize("option", [{}, {"split_column": True}])
def test_a_column_of_splits_is_followed_whatever_it_is_called(root, column, option):
    names = ("Train", "eval")
    rows = [(*row, names[number % 2]) for number, row in enumerate(rows_of(root))]
    file = write(root / "labels.csv", rows, ("path", "label", column))
    data = module(file, **dict.fromkeys(option, column))
    files = data.files()
    assert sorted(files["test"].paths) == [
        root / path for path, _, split in rows if split == "eval"
    ]
    assert all(files["val"].values())
    assert sum(len(classes.paths) for classes in files.values()) == len(rows)
    assert data.layout == f"2 classes from the column label; splits from the column {column}"


def lines(*rows):
    return "\n".join(rows)


def each(count, line):
    return [line(number) for number in range(count)]


CATS = ("cat", "dog")
IMAGES = {"img/i{}.jpg": 12, "train/{}.jpg": 8, "test/{}.jpg": 2}
REST = "images without a class are left out: 10, such as test/0.jpg"


@cases(
    "tables names layout",
    (
        {"t.csv": lines("id,breed", *each(12, lambda i: f"i{i},{CATS[i % 2]}"))},
        ["cat", "dog"],
        f"from the column breed; {REST}",
    ),
    (
        {"t.txt": lines(*each(12, lambda i: f"img/i{i}.jpg {9 + i % 2}"))},
        ["9", "10"],
        "from the column 2",
    ),
    (
        {"t.csv": lines("'image','class'", *each(12, lambda i: f"'img\\i{i}.jpg','c, {i % 2}'"))},
        ["c, 0", "c, 1"],
        "from the column class",
    ),
    (
        {
            "t.csv": lines(
                ",imageId,file_name,Category", *each(12, lambda i: f"{i},{i},img/i{i}.jpg,{i % 2}")
            )
        },
        ["0", "1"],
        "from the column Category; not used: the column imageId",
    ),
    (
        {
            "t.csv": lines(
                "filename, cat, dog", *each(12, lambda i: f"img/i{i}.jpg, {i % 2}, {1 - i % 2}.0")
            )
        },
        ["cat", "dog"],
        "from the columns cat and dog",
    ),
    (
        {
            "t.csv": lines(
                "file,label,is_valid",
                *each(12, lambda i: f"img/i{i}.jpg,{CATS[i % 2]},{i % 6 > 3}"),
            )
        },
        ["cat", "dog"],
        "from the column label; splits from the column is_valid",
    ),
    (
        {
            "t.jsonl": lines(
                *each(12, lambda i: f'{{"file_name": "img/i{i}.jpg", "label": {i % 2}}}')
            ),
            "classes.txt": "cat\ndog\n",
        },
        ["cat", "dog"],
        "from the column label; their names from classes.txt",
    ),
    (
        {
            "t.json": f"[{','.join(each(8, lambda i: json.dumps({'path': f'train/{i}.jpg', 'label': 1 + i % 2})))}]",
            "classes.txt": "1 cat\n2 dog",
            "names.json": '{"1": "cat", "2": "dog"}',
            "other.json": '[{"a": 2}]',
        },
        ["cat", "dog"],
        "from the column label; their names from classes.txt",
    ),
    (
        {
            "train.csv": lines("path,label", *each(8, lambda i: f"img/i{i}.jpg,{i % 2}")),
            "valid.csv": lines("path,label", *each(2, lambda i: f"img/i{8 + i}.jpg,{i % 2}")),
            "test.csv": lines("path", "img/i10.jpg", "img/i11.jpg"),
            "names.json": '{"0": "cat", "1": "dog"}',
        },
        ["cat", "dog"],
        "from the column label; train from train.csv; their names from names.json; val from"
        " valid.csv; 2 images of test.csv have no classes: they are for the command predict; images"
        " without a class are left out: 2, such as img/i10.jpg",
    ),
    (
        {
            f"{split}/_classes.csv": lines(
                "filename, a, b", *each(count, lambda i: f"{i}.jpg, {i % 2}, {1 - i % 2}")
            )
            for split, count in {"train": 8, "test": 2}.items()
        },
        ["a", "b"],
        "from the columns a and b; train from train/_classes.csv; test from test/_classes.csv",
    ),
    (
        {
            "t.csv": lines(
                "path,label", *each(8, lambda i: f"train/{i}.jpg,{i % 2}"), "test/0.jpg,1"
            )
        },
        ["0", "1"],
        "from the column label; splits from the folders test and train; images without a class are"
        " left out: 1, such as test/1.jpg; no test images of 0",
    ),
)
def test_the_tables_that_people_have_are_understood_and_said(tmp_path, tables, names, layout):
    for pattern, count in IMAGES.items():
        for path in each(count, pattern.format):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            noise(8, 8).save(tmp_path / path)
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    data = module(tmp_path / next(iter(tables)))
    files = data.files()
    assert data.class_names == names
    assert data.layout == f"2 classes {layout}"
    given = {"val": ("valid.csv", "is_valid"), "test": ("test/_classes", "test and train")}
    sizes = {split: len(files[split].paths) for split in given}
    assert sizes["val"] == (4 if "is_valid" in layout else 2)
    assert sizes["test"] == (1 if "test and train" in layout else 2)


@cases(
    "tables message",
    (
        {"t.csv": "filename,cat,dog\nimg/0.jpg,1,1\n"},
        "line 2: it has 2 ones in the columns cat and dog; .* multi-label",
    ),
    ({"t.csv": "file,sex,dx\nimg/0.jpg,m,nv\n"}, "label_column must name .* file, sex or dx"),
    ({"t.csv": "image,label\n0,cat\n"}, "'0' may be img/0.jpg or other/0.jpg"),
    (
        {"t.csv": "image,file,label\nimg/0.jpg,other/0.jpg,cat\n"},
        "path_column must name one of the columns image, file or label",
    ),
    (
        {"t.csv": "file,label\nimg/0.jpg,1\n", "a.json": '{"1": "x"}', "b.json": '{"1": "y"}'},
        "a.json and b.json name its classes differently|b.json and a.json name",
    ),
    ({"t.csv": "file,label,split,valid\nimg/0.jpg,1,val,1\n"}, "split_column must name"),
)
def test_what_a_table_leaves_open_is_asked_for(tmp_path, tables, message):
    for folder in ("img", "other"):
        (tmp_path / folder).mkdir()
        noise(8, 8).save(tmp_path / folder / "0.jpg")
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        module(tmp_path / "t.csv").files()


def test_a_table_beside_its_images_is_read_from_the_folder_itself(root, monkeypatch):
    monkeypatch.chdir(root / "rose")
    for file in [*Path().iterdir()]:
        file.rename(file.name.replace("image ", ""))
    for name, path in {"plain": "{}.jpg", "dots": "./{}.jpg", "ids": "{}"}.items():
        rows = [f"{path.format(number)},{number % 2}" for number in range(8)]
        Path(f"{name}.csv").write_text(lines("image,label", *rows))
        data = module(f"{name}.csv")
        assert sum(len(classes.paths) for classes in data.files().values()) == 8
        assert data.layout.endswith("left out: 4, such as 10.jpg")


def test_a_folder_without_classes_names_the_command_that_reads_its_table(root):
    write(root / "train.csv", rows_of(root))
    write(root / "sample_submission.csv", rows_of(root))
    (root / "daisy").rename(root / "train_images")
    (root / "rose").rename(root / "test_images")
    with pytest.raises(UserError, match=r"or did you mean python -m project\.fit --data ") as error:
        FolderDataModule(str(root)).files()
    assert str(error.value).endswith(f"--data {root / 'train.csv'}")


def test_parquet_is_read_and_one_that_holds_images_is_for_another_data_module(root):
    paths, labels = zip(*rows_of(root), strict=True)
    file = write_parquet(root / "t.parquet", {"file": paths, "label": labels})
    plain = module(write(root / "plain.csv", rows_of(root)))
    assert listed(module(file)) == listed(plain)
    write_parquet(file, {"image": [{"bytes": b"", "path": ""}], "label": [0]})
    with pytest.raises(UserError, match="holds the images themselves; --data hf:FOLDER reads it"):
        module(file).files()


def test_a_label_that_is_no_number_is_missing(root):
    paths, _ = zip(*rows_of(root), strict=True)
    labels = [float("nan"), *[1.0] * (len(paths) - 1)]
    file = write_parquet(root / "t.parquet", {"file": paths, "label": labels})
    with pytest.raises(UserError, match="line 1: it must have a path and a label"):
        module(file).files()


def test_without_pyarrow_one_line_says_what_to_install(root, monkeypatch):
    (root / "t.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow: pip install .*\[tables\]"):
        module(root / "t.parquet").files()


def test_a_regular_expression_finds_groups_and_labels_in_a_tables_paths(root):
    file = write(root / "labels.csv", rows_of(root))
    data = module(file, group="image ([0-9]+)")
    files = {split: {*classes.paths} for split, classes in data.files().items()}
    numbers = {split: {path.name for path in paths} for split, paths in files.items()}
    assert sum(map(len, numbers.values())) == len(set.union(*numbers.values())) == 12
    assert listed(module(file, label_from="(.*)/")) == listed(module(file))
