"""Checkpoints and the folders of archives are there whole or not at all, files of rows are continued wherever they were cut off."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from project.engine.errors import UserError
from project.engine.run.checkpoint import AtomicCheckpointIO
from project.engine.run.files import fetch_archive, hard_link
from project.engine.run.rows import RowWriter, resume_rows
from tests.engine.toy import cases, load, rows

COLUMNS = ["path", "label", "confidence", "correct", "error"]
ODD = [
    "a,b",
    'say "cheese"',
    "two\nlines",
    "ünï 花",
    "",
    " ",
    "-1",
    "\\x",
    "line\u2028separator",
]
CONFIDENCES = [float(np.float32(value)) for value in (0.1, 1 / 3, 1e-12, 1.0, 0.0)]
ROWS = [
    dict(
        zip(
            COLUMNS,
            (f"{number} {odd}", odd or None, CONFIDENCES[number % 5], number % 2 == 0, None),
            strict=True,
        )
    )
    for number, odd in enumerate(ODD)
]


def write(path: Path, content=ROWS) -> bytes:
    with RowWriter.open(path, COLUMNS) as writer:
        writer.write(content[:4])
        writer.write(content[4:])
    return path.read_bytes()


def test_pythons_csv_reads_what_was_written(tmp_path):
    write(tmp_path / "rows.csv")
    written = rows(tmp_path / "rows.csv")
    assert [row["path"] for row in written] == [row["path"] for row in ROWS]
    assert [row["label"] for row in written] == ODD
    assert [np.float32(row["confidence"]) for row in written] == [row["confidence"] for row in ROWS]
    assert [json.loads(row["correct"]) for row in written] == [row["correct"] for row in ROWS]


def test_a_file_is_continued_wherever_it_was_cut_off(tmp_path):
    whole = write(tmp_path / "rows.csv")
    cut = tmp_path / "cut.csv"
    counts = set()
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        done = len(resume_rows(cut, COLUMNS))
        with RowWriter.open(cut, COLUMNS, append=True) as writer:
            writer.write(ROWS[done:])
        assert cut.read_bytes() == whole
        counts.add(done)
    assert counts == set(range(len(ROWS) + 1))


@cases("line", "", "5", "null", "{}", "x,y")
def test_a_line_of_another_kind_is_refused_and_the_file_stays(tmp_path, line):
    path = tmp_path / "rows.csv"
    content = write(path) + f"{line}\n".encode()
    path.write_bytes(content)
    with pytest.raises(UserError, match="has other rows or columns"):
        resume_rows(path, COLUMNS)
    assert path.read_bytes() == content


def save(content: object, path: Path) -> None:
    AtomicCheckpointIO(path.parent).save_checkpoint({"content": content}, path)


@cases("when", "torch.save", "os.fsync")
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    save(1, path)
    monkeypatch.setattr(when, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(2, path)
    assert load(path) == {"content": 1}
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    path, seen, sync = tmp_path / "last.ckpt", [], os.fsync

    def witness(descriptor):
        seen.append(
            (os.fstat(descriptor).st_size > 0 and os.path.isfile(descriptor), path.exists())
        )
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", witness)
    save(1, path)
    assert seen == [(True, False), (False, True)]  # the file, then its folder


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_the_earlier_file_is_kept_under_another_name(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    path, earlier = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for left in (".last.partial.ckpt", ".previous.ckpt.partial"):  # by a killed process
        (tmp_path / left).write_text("a part")
    for number in range(3):
        for _ in range(
            2
        ):  # where a process was killed while it wrote the file, the next one links again
            hard_link(path, "previous.ckpt")
        assert path.exists() == (links and number > 0)
        save(number, path)
        assert load(path) == {"content": number}
        assert not number or load(earlier) == {"content": number - 1}
        other = "previous.ckpt" if number else ".previous.ckpt.partial"
        assert {*os.listdir(tmp_path)} == {"last.ckpt", other}


def test_files_written_elsewhere_can_be_replaced(tmp_path):
    io = AtomicCheckpointIO(tmp_path / "run")
    io.save_checkpoint({}, tmp_path / "elsewhere" / "old.ckpt")
    for name in ("elsewhere/theirs.ckpt", "run/own.ckpt", "run/config.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "run" / "link.ckpt").symlink_to(tmp_path / "elsewhere" / "theirs.ckpt")
    for name in ("elsewhere/old", "elsewhere/theirs", "run/own", "run/link"):
        io.remove_checkpoint(tmp_path / f"{name}.ckpt")
    for name in ("run/config.yaml", "run"):
        io.remove_checkpoint(tmp_path / name)
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        "theirs.ckpt",
        "config.yaml",
        "link.ckpt",
    }


CONTENT = {
    "flowers/rose/1.jpg": os.urandom(3000),
    "flowers/rose/2.jpg": b"two",
    "flowers/daisy/1.jpg": b"three",
}


def write_archive(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return md5(path)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves the files of a folder on this machine, or the first ``share`` of each; counts its ``answers``."""

    share = 1.0
    answers = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.folder = folder

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def copyfile(self, source, outputfile) -> None:
        self.server.answers += 1
        data = source.read()
        outputfile.write(data[: int(self.server.share * len(data))])

    def log_message(self, *args) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, poll_interval=0.01)
        try:
            yield server
        finally:
            server.shutdown()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "far" / "away" / "flowers"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as running:
        yield running


def offer(server, members=CONTENT) -> tuple[str, str]:
    return server.url("flowers.tgz"), write_archive(server.folder / "flowers.tgz", members)


def tree(root):
    return {
        str(path.relative_to(root.parent)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def left_over(folder):
    return sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock")


def test_an_archive_is_fetched_once_by_concurrent_runs_and_not_kept(server, folder):
    source = offer(server)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch_archive(*source, folder), range(4)))
    assert server.answers == 2  # torchvision asks where the address leads
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]
    (folder / "rose" / "2.jpg").write_bytes(b"mine")
    fetch_archive(*source, folder)
    assert server.answers == 2  # torchvision asks where the address leads
    assert tree(folder) == CONTENT | {"flowers/rose/2.jpg": b"mine"}


def test_what_reaches_outside_or_is_not_the_expected_archive_or_not_there_is_refused_whole(
    tmp_path, server, folder
):
    url, escaping = offer(server, CONTENT | {"flowers/../../../escaped.txt": b"x"})
    (server.folder / "page.tgz").write_bytes(b"<html>sign in first</html>")
    for address, checksum in (
        (server.url("nothing.tgz"), escaping),
        (url, "0" * 32),
        (server.url("page.tgz"), md5(server.folder / "page.tgz")),
        (url, escaping),
    ):
        with pytest.raises(UserError, match="cannot be made from"):
            fetch_archive(address, checksum, folder)
    assert left_over(folder) == []
    assert not list(tmp_path.rglob("escaped*"))


@cases("share", 0, 0.9)
def test_a_download_that_breaks_off_is_reported_and_succeeds_the_next_time(server, folder, share):
    source, server.share = offer(server), share
    with pytest.raises(UserError, match=r"flowers\.tgz"):
        fetch_archive(*source, folder)
    assert not folder.exists()
    server.share = 1
    fetch_archive(*source, folder)
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]
