"""Files that appear whole or not at all: written, linked, or downloaded once."""

import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock

from ..errors import UserError, first_sentence, printable
from .progress import note


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a hidden path beside the target to write to; at the end, waits for the disk and renames.

    Where the block raises, the target stays as it was.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    partial.unlink(
        missing_ok=True
    )  # of a killed process, or a link to elsewhere that came with the folder
    try:
        yield partial
        _wait_for_disk(partial)
        partial.replace(path)
        _wait_for_disk(path.parent)  # a rename is on the disk when its folder is
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields the path of a new folder, hidden beside the target, which replaces it at the end.

    Where the block raises, the target stays as it was.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
        partial = Path(scratch) / path.name
        partial.mkdir()
        yield partial
        for file in partial.iterdir():
            _wait_for_disk(file)
        if path.exists():
            path.rename(Path(scratch) / "before")
        partial.rename(path)
        _wait_for_disk(path.parent)


def _wait_for_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hard_link(path: Path, name: str) -> None:
    """Makes a hard link to a file in its folder, in place of what had that name; does nothing where there is no file.

    Both names are whole files at every moment. Where the file system has no hard links, the file is renamed.
    """
    if path.exists():
        linked = path.with_name(f".{name}.partial")
        linked.unlink(missing_ok=True)
        try:
            linked.hardlink_to(path)
        except OSError:  # some file systems have no hard links
            path.replace(path.with_name(name))
        else:
            linked.replace(
                path.with_name(name)
            )  # which leaves the link where that is the same file already
            linked.unlink(missing_ok=True)


def one_at_a_time(path: Path) -> FileLock:
    """Returns a lock beside a file, by which concurrent processes download once; a killed one leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def fetch_file(url: str, path: Path, sha256: str = "") -> None:
    """Downloads a file that is not there yet, and compares the beginning of its SHA-256."""
    if path.exists():
        return
    import torch.hub  # here, as a command that writes a file need not import torch for --help

    try:
        with one_at_a_time(path):
            if not path.exists():
                note(f"downloading {printable(url)} to {printable(path.parent)}")
                torch.hub.download_url_to_file(
                    url, str(path), sha256 or None, progress=sys.stderr.isatty()
                )
    except (OSError, HTTPException, ValueError, RuntimeError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is an answer, too
        raise UserError(
            f"'{printable(path)}' is not there, and '{printable(url)}' cannot be fetched ({printable(first_sentence(error))});"
            " connect to the network, or put the file there"
        ) from error


def fetch_archive(url: str, md5: str, folder: Path) -> None:
    """Makes ``folder`` from the folder of the same name in a .tgz archive; does nothing if it is there already."""
    if folder.is_dir():
        return
    archive = folder.with_name(url.rsplit("/", 1)[-1])
    with one_at_a_time(folder):
        if folder.is_dir():  # by now
            return
        fetch_file(url, archive)
        from torchvision.datasets.utils import check_md5  # here, as torch above

        if not check_md5(str(archive), md5):
            archive.unlink()
            raise UserError(f"what came from '{url}' is not the expected file; try again later")
        try:
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
                with tarfile.open(archive) as tar:
                    tar.extractall(scratch, filter="data")
                shutil.move(Path(scratch) / folder.name, folder)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise UserError(f"'{folder}' cannot be made from '{archive}': {error}") from error
        archive.unlink()
