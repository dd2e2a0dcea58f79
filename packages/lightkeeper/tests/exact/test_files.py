"""Checkpoints and the folders of archives are there whole or not at all."""

import hashlib
import io
import os
import signal
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.cli._entry import describe_error
from lightkeeper.exact import AtomicCheckpointIO, UserError
from lightkeeper.exact._files import whole_file
from lightkeeper.images import read_weights
from lightkeeper.images._downloads import fetch_archive
from torchvision.datasets.utils import download_and_extract_archive

from tests.processes import fork
from tests.toy import cases, load


def save(content: object, path: Path) -> None:
    AtomicCheckpointIO(path.parent).save_checkpoint({"content": content}, path)


def test_a_checkpoint_that_finds_no_room_is_named(tmp_path, limit_files):
    """Also where torch raises an error of its own for that of the system, as of large tensors."""
    limit_files(100_000)
    with pytest.raises((OSError, RuntimeError)) as full:
        save(torch.zeros(10**6), tmp_path / "last.ckpt")
    described = describe_error(full.value)
    assert described is not None
    assert described.startswith(f"[Errno 27] File too large: '{tmp_path / 'last.ckpt'}'")


@cases("when", "torch.save", "os.fsync")
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    save(1, path)
    monkeypatch.setattr(when, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(2, path)
    assert load(path) == {"content": 1}
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt"]


def test_of_two_processes_that_write_a_file_neither_publishes_what_the_other_has_begun(tmp_path):
    path = tmp_path / "best [1].ckpt"

    def write_half() -> None:
        with whole_file(path) as partial:
            partial.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    with whole_file(path) as partial:
        partial.write_text("whole")
        other = fork(write_half, {})
        other.join(60)
    assert path.read_text() == "whole"
    assert len(os.listdir(tmp_path)) == 2
    save(1, path)  # and removes what a killed process has left
    assert os.listdir(tmp_path) == ["best [1].ckpt"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    path, synced, sync = tmp_path / "last.ckpt", [], os.fsync

    def witness(descriptor):
        synced.append((os.path.isfile(descriptor), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", witness)
    save(1, path)
    assert synced == [(True, False), (False, True)]  # the file, then its folder


CONTENT = {
    "flowers/rose/1.jpg": os.urandom(3000),
    "flowers/rose/2.jpg": b"two",
    "flowers/daisy/1.jpg": b"three",
}


@pytest.fixture
def address(tmp_path, monkeypatch):
    """Where a server has the files of a folder."""
    monkeypatch.setenv("no_proxy", "*")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, poll_interval=0.01)
        yield f"http://127.0.0.1:{server.server_port}/flowers.tgz"
        server.shutdown()


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_archive(path: Path) -> str:
    """Writes an archive, and returns its checksum."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in CONTENT.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return md5(path)


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.parent.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(root.parent)): path.read_bytes() for path in files}


@pytest.mark.filterwarnings("ignore:Python 3.14 will")  # of torchvision's own unpacking
@cases("fault", "not there", "cut short")
def test_what_is_not_the_archive_is_refused_whole_and_the_next_time_one_of_several_runs_fetches_it(
    tmp_path, monkeypatch, address, fault
):
    folder, path = tmp_path / "far" / "away" / "flowers", tmp_path / "flowers.tgz"
    digest = write_archive(path)
    if fault == "not there":
        path.unlink()
    if fault == "cut short":
        os.truncate(path, 1000)
    with pytest.raises(UserError, match=r"flowers\.tgz' cannot be fetched"):
        fetch_archive(address, digest, folder)
    assert tree(folder) == {}
    digest = write_archive(path)
    download = Mock(side_effect=download_and_extract_archive)
    monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", download)
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: fetch_archive(address, digest, folder), "abcd"):
            assert tree(folder) == CONTENT
    assert download.call_count == 1


def test_weights_at_an_address_are_downloaded_once_by_those_that_start_together(
    tmp_path, monkeypatch
):
    wanted: list[str] = []

    def download(url: str, path: str, digest: str | None, progress: bool) -> None:
        wanted.append(url)
        assert digest == ("01234567" if "01234567" in url else None)  # torch compares it
        torch.save({"count": torch.tensor(len(wanted))}, f"{path}.part")
        Path(f"{path}.part").rename(path)  # as torch does: the file appears whole

    def count(url: str) -> int:
        return int(read_weights(url).tensors["count"])

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(count, ["http://a/net-01234567.pth"] * 4)] == [1] * 4
    # files of one name at two addresses are two
    runs = ("first", "second", "first")
    assert [count(f"http://a/{run}/best.ckpt") for run in runs] == [2, 3, 2]
