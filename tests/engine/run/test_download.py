import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from project.engine.errors import UserError
from project.engine.run.files import fetch_archive
from tests.engine.run.archives import md5, serving, write_archive

CONTENT = {"flowers/rose/1.jpg": os.urandom(3000), "flowers/rose/2.jpg": b"two", "flowers/daisy/1.jpg": b"three"}


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
    return {str(path.relative_to(root.parent)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def left_over(folder):
    return sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock")


def test_an_archive_is_fetched_once_by_concurrent_runs_and_not_kept(server, folder):
    source = offer(server)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch_archive(*source, folder), range(4)))
    assert server.answers == 1
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]
    (folder / "rose" / "2.jpg").write_bytes(b"mine")
    fetch_archive(*source, folder)
    assert server.answers == 1
    assert tree(folder) == CONTENT | {"flowers/rose/2.jpg": b"mine"}


def test_an_archive_that_reaches_outside_is_refused_whole(tmp_path, server, folder):
    with pytest.raises(UserError, match="cannot be made from"):
        fetch_archive(*offer(server, CONTENT | {"flowers/../../../escaped.txt": b"x"}), folder)
    assert left_over(folder) == ["flowers.tgz"]
    assert not list(tmp_path.rglob("escaped*"))


def test_what_is_not_the_expected_archive_or_not_there_is_refused(server, folder):
    url, _ = offer(server)
    with pytest.raises(UserError, match="not the expected file"):
        fetch_archive(url, "0" * 32, folder)
    (server.folder / "flowers.tgz").write_bytes(b"<html>sign in first</html>")
    with pytest.raises(UserError, match="cannot be made from"):
        fetch_archive(url, md5(server.folder / "flowers.tgz"), folder)
    with pytest.raises(UserError, match=r"nothing\.tgz' cannot be fetched"):
        fetch_archive(server.url("nothing.tgz"), "0" * 32, folder)
    assert not folder.exists()


@pytest.mark.parametrize("share", [0, 0.9])
def test_a_download_that_breaks_off_is_reported_and_succeeds_the_next_time(server, folder, share):
    source, server.share = offer(server), share
    with pytest.raises(UserError, match=r"flowers\.tgz"):
        fetch_archive(*source, folder)
    assert not folder.exists()
    server.share = 1
    fetch_archive(*source, folder)
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]
