"""A CSV of image files: what it may look like, where its images go, and what is refused with its line."""

import csv
import json
import sys
from hashlib import blake2b
from pathlib import Path
from unicodedata import normalize

import pytest
from lightkeeper.exact import UserError

from tests.image_files import write_folder, write_images
from tests.stubs import Files, Table, cases, write_parquet

ALIKE = ["Cat", "c\uff41 t"]
CATS = ("cat", "dog")


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "images", {"rose": 12, "daisy": 12})


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
    return Table(str(file), **options)


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
    assert data.files() == plain.files()
    assert data.layout == (
        "2 classes from the column label; not used: the column a note; or | more, quoted"
    )


def test_paths_and_labels_of_other_systems_are_found_in_the_same_splits(tmp_path):
    root = write_folder(tmp_path, {"caf\u00e9/new": 30, "tea": 30})
    rows = [(path, path.split("/")[0]) for path, _ in rows_of(root)]
    other = [[normalize("NFD", cell).replace("/", "\\") for cell in row] for row in rows]
    data = module(write(root / "windows.csv", other))
    assert data.class_names == ["caf\u00e9", "tea"]
    assert data.files() == module(write(root / "plain.csv", rows)).files()


def lines(*rows):
    return "\n".join(rows)


def each(count, line):
    return [line(number) for number in range(count)]


def write_tables(root, images, tables):
    """Writes files, so many of each pattern, and tables; returns the first of these."""
    write_images(root, images)
    for name, text in tables.items():
        (root / name).write_text(text)
    return root / next(iter(tables))


IMAGES = {"img/i{}.jpg": 12, "train/{}.jpg": 8, "test/{}.jpg": 2}
REST = "images without a class are left out: 10, such as test/0.jpg"


@cases(
    "tables names layout",
    (
        {  # beside others that are no splits of it
            "t.csv": lines("id,breed", *each(12, lambda i: f"i{i},{CATS[i % 2]}")),
            **dict.fromkeys(["val.csv", "dev.csv"], ""),
        },
        ["cat", "dog"],
        f"from the column breed; {REST}",
    ),
    (
        {"t.txt": lines(*each(12, lambda i: f"img/i{i}.jpg {9 + i % 2}"))},
        ["9", "10"],
        "from the column 2",
    ),
    (
        {
            "t.csv": lines(  # of Excel
                *("sep=,", "image,class,,"),
                *each(12, lambda i: f'img\\i{i}.jpg,"c, {i % 2}",,'),
                *(",,,", "\t", " , ,,"),
            )
        },
        ["c, 0", "c, 1"],
        f"from the column class; {REST}",
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
                "filename, cat, dog",
                *each(12, lambda i: f"img/i{i}.jpg, {i % 2}{'.0' if i % 3 else ''}, {1 - i % 2}.0"),
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
        "from the column label; splits from the column is_valid; test cut from train",
    ),
    (
        {
            "t.csv": lines(
                "path,label,data set",
                *each(12, lambda i: f"./img/i{i}.jpg,{CATS[i % 2]},{'eval' if i > 9 else 'Train'}"),
            )
        },
        ["cat", "dog"],
        "from the column label; splits from the column data set; val cut from train",
    ),
    (
        {
            "t.jsonl": lines(
                *each(
                    12,
                    lambda i: f'{{"file_name": "img/i{i}.jpg", "label": {i % 2}, "box": [{i}]}}',
                )
            ),
            "classes.txt": "cat\ndog\n",
        },
        ["cat", "dog"],
        "from the column label; their names from classes.txt; not used: the column box",
    ),
    (
        {
            "t.json": lines(
                *each(8, lambda i: json.dumps({"path": f"train/{i}.jpg", "label": 1 + i % 2}))
            ),
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
        "from the column label; their names from names.json; train from train.csv; val from"
        " valid.csv; 2 images of test.csv have no classes: they are for the command predict; images"
        " without a class are left out: 2, such as img/i10.jpg; test cut from train",
    ),
    (
        {"t.csv": lines("path,label", *each(12, lambda i: f"img/i{i}.jpg,{ALIKE[i % 2]}"))},
        ALIKE,
        "from the column label; Cat and c\uff41 t differ in case, width, spaces or invisible characters alone",
    ),
    (
        {
            f"{split}/_classes.csv": lines(
                "filename, a, b", *each(count, lambda i: f"{i}.jpg, {i % 2}, {1 - i % 2}")
            )
            for split, count in {"train": 8, "test": 2}.items()
        },
        ["a", "b"],
        "from the columns a and b; train from train/_classes.csv; test from test/_classes.csv;"
        " val cut from train",
    ),
    (
        {
            "t.csv": lines(
                "path,label", *each(8, lambda i: f"train/{i}.jpg,{i % 2}"), "test/0.jpg,1"
            )
        },
        ["0", "1"],
        "from the column label; splits from the folders test and train; images without a class are"
        " left out: 1, such as test/1.jpg; no test images of 0; val cut from train",
    ),
)
def test_the_tables_that_people_have_are_understood_and_said(tmp_path, tables, names, layout):
    (tmp_path / "folder.json").mkdir()
    data = module(write_tables(tmp_path, IMAGES, tables))
    assert data.class_names == names
    assert data.split_sizes()["val"] == (4 if "is_valid" in layout else 2)
    assert data.split_sizes()["test"] == (1 if "test and train" in layout else 2)
    assert data.layout == f"2 classes {layout}"


def table(*rows, header="path,label,split"):
    """A table of twelve good rows, and others."""
    good = each(12, lambda i: f"img/{i}.jpg,{CATS[i % 2]},")
    return {"t.csv": lines(header, *good, *rows)}


@cases(
    "tables message",
    (table("img/0.jpg,cat,"), r"line 14: '.*img/0.jpg' is in line 2, too"),
    (table("nowhere.jpg,cat,"), "line 14: there is no file 'nowhere.jpg' in '"),
    (
        table("no.jpg,cat,", ",cat,", "nor.jpg,cat,"),
        "14: there is no file .*, nor .* of 2 other lines",
    ),
    (table(",cat,"), "line 14: it has no path"),
    ({"t.csv": "path\nimg/0.jpg\nimg/1.jpg"}, "t.csv': it has no column of classes"),
    (table("other/0.jpg,,"), "line 14: it has no label"),
    (table("other/0.jpg"), "line 14 has 1 columns, not 3"),
    (table("other/0.jpg,cat,,y"), "line 14 has 4 columns, not 3"),
    (table('other/0.jpg,cat,"train'), "cannot be read as a table"),  # the quote is not closed
    (table("other/0.jpg,cat,fold1"), "line 2: the split must be train, val or test, got ''"),
    (
        {
            "t.csv": lines(
                "path,label,split", *each(12, lambda i: f"img/{i}.jpg,{CATS[i % 2]},{i % 2}")
            )
        },
        "line 2: the split must be train, val or test, got '0'; of 0 and 1, call it is_valid",
    ),
    (table(header="path,label,label"), "columns have one name: path, label and label"),
    ({"t.csv": "path,label\nimg/0.jpg,cat"}, "one class only, 'cat'"),
    ({"t.csv": "path,label\n"}, "names no image"),
    ({"t.csv": "a,b\n1,2"}, r"path_column: must name one of the columns a or b of"),
    (
        {"t.csv": "filename,cat,dog\nimg/0.jpg,1,1\n"},
        "line 2: it has 2 ones in the columns cat and dog; .* multi-label",
    ),
    ({"t.csv": "file,sex,dx\nimg/0.jpg,m,nv\n"}, "label_column: must name .* file, sex or dx of"),
    ({"t.csv": "image,label\n0,cat\n"}, "line 2: '0' may be img/0.jpg or other/0.jpg"),
    (
        {"t.csv": "image,file,label\nimg/0.jpg,other/0.jpg,cat\n"},
        "path_column: must name one of the columns image, file or label",
    ),
    (
        {"t.csv": "file,label\nimg/0.jpg,1\n", "a.json": '{"1": "x"}', "b.json": '{"1": "y"}'},
        r"/a\.json and .*/b\.json name the classes differently",
    ),
    (  # and no test set without classes
        {
            "train.csv": "path,label\nimg/0.jpg,cat\nimg/1.jpg,dog",
            "test.csv": "path,class\nother/0.jpg,cat",
        },
        r"test\.csv', line 2: it has no label",
    ),
    ({"t.csv": "file,label,split,valid\nimg/0.jpg,1,val,1\n"}, "split_column: must name"),
    ({"t.csv": "file,label\nimg/0.jpg,3\nimg/1.jpg,3.0\n"}, r"column label has '3' and '3\.0'"),
    ({"t.json": "[{}]"}, "each line must be the object of an image"),
    ({"t.json": "[\n {}\n]"}, "line 1, column 1: Expecting value; each line must be an image's"),
    ({"t.zip": "PK\3\4\0\0"}, "is no plain text .*: save a spreadsheet as CSV, unpack an arch"),
    ({"t.parquet": ""}, r"needs the package pyarrow: pip install pyarrow$"),
    ({"t.jsonl": "{"}, r"t\.jsonl' cannot be read as a table: line 1"),
    ({"t.jsonl": "{}\n\n{]"}, r"t\.jsonl' cannot be read as a table: line 3"),
    ({"t.jsonl": '{"path": ' + "[" * 100_000}, r"t\.jsonl' cannot be read as a table"),
    ({"t.jsonl": '{"path": 1}\n[]'}, r"t\.jsonl' cannot be read as a table"),
    ({"t.jsonl": '{"path": "img/0.jpg", "label": 1}\n\n{"path": "img/1.jpg"}'}, "', line 3: it"),
    (
        {"t.jsonl": '{"path": "img/0.jpg", "label": "a"}\n{"path": "img/1.jpg", "label": ["a"]}'},
        "line 2: it has no label that is a text or a number; .* multi-label",
    ),
    ({"t.jsonl": '{"path": "img/0.jpg", "a": {"id": 1}}'}, "line 1: it has no label that is"),
    ({"t.jsonl": '{"path": ["img/0.jpg"], "a": 1}'}, "line 1: it has no path"),
)
def test_what_is_wrong_or_open_is_named_with_its_line(tmp_path, monkeypatch, tables, message):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    file = write_tables(tmp_path, {"img/{}.jpg": 12, "other/{}.jpg": 1}, tables)
    with pytest.raises(UserError, match=message):
        module(file).files()


def test_a_row_that_lacks_its_group_is_named_and_a_group_that_is_written_in_two_ways(tmp_path):
    file = write_tables(tmp_path, {"img/{}.jpg": 12}, table(header="path,label,patient"))
    with pytest.raises(UserError, match="line 2: it has no patient"):
        module(file, group="patient").files()
    # as of ints and floats that were joined
    file.write_text("path,label,patient\nimg/0.jpg,a,7.0\nimg/1.jpg,b,7\n")
    with pytest.raises(UserError, match=r"file: the column patient has '7' and '7\.0': write each"):
        module(file, group="patient").files()


def test_a_split_is_the_same_wherever_the_folder_lies_and_however_its_paths_are_written(tmp_path):
    splits = []
    for place in ("here", "over/there"):
        root = write_folder(tmp_path / place, {"rose": 20, "daisy": 20})
        for start in ("", f"{root}/", f"../{root.name}/"):
            rows = [(start + path, label) for path, label in rows_of(root)]
            files = module(write(root / "labels.csv", rows)).files()
            splits.append([(file.path.removeprefix(f"{root}/"), file.split) for file in files])
    assert all(split == splits[0] for split in splits)


def cut_by_hash(names, start="0/"):
    """The split of each name, by a plain rule."""
    digests = {name: blake2b(f"{start}{name}".encode(), digest_size=8).digest() for name in names}
    ranks = {name: int.from_bytes(digest) / 2**64 for name, digest in digests.items()}
    return {
        name: "test" if rank < 0.1 else "val" if rank < 0.2 else "train"
        for name, rank in ranks.items()
    }


def splits_of(data):
    return {"/".join(Path(file.path).parts[-2:]): file.split for file in data.files()}


@pytest.mark.parametrize("group", [None, "image [0-9]+", "(.+)/image [0-9]+"])
def test_images_outside_the_tables_folder_are_cut_alike_wherever_both_lie(tmp_path, group):
    splits = []
    for place in ("here", "over/there"):
        root = write_folder(tmp_path / place / "images", {f"patient{at}": 20 for at in range(20)})
        plain = [(path, CATS[int(path.split(".")[0][-1]) % 2]) for path, _ in rows_of(root)]
        for folder in ("tables", "tables/deep"):
            (tmp_path / place / folder).mkdir()
            up = "../" * len(folder.split("/"))
            for start in (f"{root}/", f"{up}images/"):
                rows = [(start + path, label) for path, label in plain]
                file = write(tmp_path / place / folder / "labels.csv", rows)
                splits.append(splits_of(module(file, group=group)))
    assert all(split == splits[0] for split in splits)
    if group is None:
        assert splits[0] == cut_by_hash(splits[0])
        inside = write(root / "labels.csv", plain)
        assert splits_of(module(inside)) == splits[0]  # as those of the folder itself


@pytest.mark.parametrize("start", ["..", "{place}"])
def test_images_beside_a_tables_folder_are_found_through_a_link_to_that(tmp_path, start):
    place = tmp_path / "here"
    root = write_folder(place / "images", {"rose": 12, "daisy": 12})
    (place / "tables").mkdir()
    rows = [(f"{start.format(place=place)}/images/{path}", label) for path, label in rows_of(root)]
    file = write(place / "tables" / "labels.csv", rows)
    (tmp_path / "link").symlink_to(place / "tables")
    assert module(tmp_path / "link" / file.name).files() == module(file).files()
    assert {file.path for file in module(file).files()} == {*map(str, root.rglob("*.jpg"))}


def test_images_outside_the_tables_folder_that_share_a_name_need_a_root_where_splits_are_cut(
    tmp_path,
):
    root = write_folder(tmp_path / "images", {"1/left": 12, "2/left": 12})
    (tmp_path / "tables").mkdir()
    plain = [(path, CATS[path < "2"]) for path, _ in rows_of(root)]
    rows = [(f"{root}/{path}", label) for path, label in plain]
    file = write(tmp_path / "tables" / "labels.csv", rows)
    message = r"images/1/left/image 0.jpg' and '.*' lie outside '.*give the folder"
    with pytest.raises(UserError, match=message):
        module(file).files()
    inside = module(write(root / "labels.csv", plain)).files()
    assert module(file, root=str(root)).files() == inside
    splits = ["train", "train", "val", "test"]
    named = [(*row, splits[at % 4]) for at, row in enumerate(rows)]
    known = module(write(file, named, ("path", "label", "split")))
    assert known.split_sizes() == {"train": 12, "val": 6, "test": 6}


def test_a_folder_without_classes_names_the_command_that_reads_its_table(root):
    write(root / "train.csv", rows_of(root))
    write(root / "sample_submission.csv", rows_of(root))
    (root / "daisy").rename(root / "train_images")
    (root / "rose").rename(root / "test_images")
    with pytest.raises(UserError, match="or did you mean --data ") as error:
        Files(str(root)).files()
    assert str(error.value).endswith(f"--data {root / 'train.csv'}")


def test_parquet_is_read_and_one_that_holds_images_is_for_another_data_module(root):
    paths, labels = map(list, zip(*rows_of(root), strict=True))
    file = write_parquet(root / "t.parquet", {"file": paths, "label": labels})
    assert module(file).files() == module(write(root / "plain.csv", rows_of(root))).files()
    for columns, message in (
        (
            {"file": paths, "label": [float("nan"), *[1.0] * (len(paths) - 1)]},
            "line 1: it has no label",
        ),
        (
            {"file": paths, "label": [[label] for label in labels]},
            "line 1: it has no label that is a text or a number",
        ),
        (
            {"image": [{"bytes": b"", "path": ""}], "label": [0]},
            "holds the images themselves; --data hf:FOLDER reads it",
        ),
    ):
        write_parquet(file, columns)
        with pytest.raises(UserError, match=message):
            module(file).files()
    whole = file.read_bytes()
    file.write_bytes(whole[:-60] + b"\xff" * 40 + whole[-20:])
    with pytest.raises(UserError, match=r"t\.parquet"):
        module(file).files()
