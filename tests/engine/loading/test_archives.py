import os
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from project.engine.errors import UserError
from project.engine.loading.archives import fetch_archive
from tests.engine.loading.archives import link, md5, serving, write_archive

CONTENT = {"flowers/rose/1.jpg": os.urandom(3000), "flowers/rose/2.jpg": b"two", "flowers/daisy/1.jpg": b"three"}


@pytest.fixture(autouse=True)
def _directly(monkeypatch):
    """Never through a proxy."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def folder(tmp_path):
    """Where the images shall lie: nothing on the way there exists yet."""
    return tmp_path / "far" / "away" / "flowers"


@pytest.fixture
def server(tmp_path):
    (tmp_path / "served").mkdir()
    with serving(tmp_path / "served") as running:
        yield running


@pytest.fixture
def source(server):
    """URL and MD5 of a good archive."""
    return offer(server, CONTENT)


def offer(server, members):
    return server.url("flowers.tgz"), write_archive(server.folder / "flowers.tgz", members)


def fetch(source, folder):
    url, checksum = source
    fetch_archive(url, checksum, folder)


def tree(root):
    return {str(path.relative_to(root.parent)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def left_over(folder):
    return sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock")


def test_an_archive_is_unpacked_and_not_kept(source, folder):
    fetch(source, folder)
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]


def test_what_is_there_is_not_fetched_again(server, source, folder):
    fetch(source, folder)
    (folder / "rose" / "2.jpg").write_bytes(b"mine")
    asked = server.answers
    fetch(source, folder)
    assert server.answers == asked > 0
    assert tree(folder) == CONTENT | {"flowers/rose/2.jpg": b"mine"}


def test_of_runs_that_start_together_one_fetches(tmp_path, server, source, folder):
    fetch(source, tmp_path / "alone" / "flowers")
    alone = server.answers
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch(source, folder), range(4)))
    assert server.answers == 2 * alone
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]


def test_a_partial_archive_that_lies_there_is_replaced(server, source, folder):
    folder.parent.mkdir(parents=True)
    (folder.parent / "flowers.tgz").write_bytes((server.folder / "flowers.tgz").read_bytes()[:200])
    fetch(source, folder)
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]


@pytest.mark.parametrize(
    "intruder",
    [
        pytest.param({"../escaped.txt": b"x"}, id="a path upwards"),
        pytest.param({"flowers/../../../escaped.txt": b"x"}, id="a path upwards, hidden"),
        pytest.param({"flowers/out": link("flowers/out", "/etc")}, id="an absolute link"),
        pytest.param({"flowers/out": link("flowers/out", "../../..")}, id="a link upwards"),
        pytest.param({"flowers/out": link("flowers/out", "../../etc", tarfile.LNKTYPE)}, id="a hard link upwards"),
        pytest.param({"flowers/disk": link("flowers/disk", "", tarfile.BLKTYPE)}, id="a device"),
        pytest.param({"flowers/pipe": link("flowers/pipe", "", tarfile.FIFOTYPE)}, id="a pipe"),
    ],
)
def test_an_archive_that_reaches_outside_is_refused_whole(tmp_path, server, folder, intruder):
    with pytest.raises(UserError, match="cannot be made from"):
        fetch(offer(server, CONTENT | intruder), folder)
    assert left_over(folder) == ["flowers.tgz"]
    assert not list(tmp_path.rglob("escaped*"))


def test_an_absolute_path_stays_inside(tmp_path, server, folder):
    outside = tmp_path / "escaped.txt"
    fetch(offer(server, CONTENT | {str(outside): b"x"}), folder)
    assert not outside.exists()
    assert tree(folder) == CONTENT


@pytest.mark.parametrize("content", [b"", b"<html>sign in first</html>"])
def test_a_file_that_is_no_archive_is_refused(server, folder, content):
    path = server.folder / "flowers.tgz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be made from"):
        fetch((server.url(path.name), md5(path)), folder)
    assert left_over(folder) == ["flowers.tgz"]


@pytest.mark.parametrize("name", ["flowers.tgz", "nobody is there"])
def test_an_address_that_cannot_be_reached_is_named(server, folder, name):
    url = server.url(name) if name == "flowers.tgz" else "http://127.0.0.1:9/flowers.tgz"
    with pytest.raises(UserError, match=rf"'{url}' cannot be reached"):
        fetch((url, "0" * 32), folder)
    assert not folder.exists()


@pytest.mark.parametrize("share", [0, 0.9])
def test_a_download_that_breaks_off_is_reported_and_succeeds_the_next_time(server, source, folder, share):
    server.share = share
    with pytest.raises(UserError, match=r"flowers\.tgz"):
        fetch(source, folder)
    assert not folder.exists()
    server.share = 1
    fetch(source, folder)
    assert tree(folder) == CONTENT
    assert left_over(folder) == ["flowers"]
