"""Files that appear whole or not at all, written or downloaded once, and YAML from anywhere."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from filelock import FileLock
from jsonargparse import get_loader

from ..errors import UserError, first_sentence, note

_HASH = re.compile(r"-([0-9a-f]{8,})\.[^.]+$")  # torch.hub's convention for names of files

CSV: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
"""Arguments of ``open`` for files of rows."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a hidden path beside the target to write to, which replaces it at the end.

    Where the block raises, the target stays as it was. A link is replaced, not followed.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    # of a killed process, or a link to elsewhere that came with the folder
    partial.unlink(missing_ok=True)
    try:
        yield partial
        _wait_for_disk(partial)
        partial.replace(path)
        _wait_for_disk(path.parent)  # a rename is on the disk when its folder is
    finally:
        partial.unlink(missing_ok=True)


def _wait_for_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a whole file of text."""
    with whole_file(Path(path)) as partial:
        partial.write_text(text)


def require_new(option: str, path: str | os.PathLike[str] | None, overwrite: bool) -> None:
    """Refuses the file of an option that is there already, unless it may be replaced."""
    if path is not None and os.path.exists(path) and not overwrite:
        raise UserError(f"{option}: '{path}' is there already; --overwrite replaces it")


def one_at_a_time(path: Path) -> FileLock:
    """Returns a lock beside a file, by which concurrent processes download once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def fetch_weights(url: str) -> Path:
    """Downloads a file once, into torch.hub's cache, and compares the SHA-256 in its name."""
    import torch.hub  # here, as a command that writes a file need not import torch for --help

    name = Path(urlsplit(url).path).name or "weights"
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    digest = _HASH.search(name)
    if digest is None:  # many files are called best.ckpt
        folder /= sha256(url.encode()).hexdigest()[:16]
    path = folder / name
    prefix = digest[1] if digest else None
    progress = sys.stderr.isatty()
    _fetch(url, path, lambda: torch.hub.download_url_to_file(url, str(path), prefix, progress))
    return path


def fetch_archive(url: str, md5: str, folder: Path) -> None:
    """Makes ``folder`` from the one of the same name in a .tgz archive, unless it is there."""
    from torchvision.datasets.utils import download_and_extract_archive  # here, as torch above

    def download() -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
            download_and_extract_archive(url, scratch, md5=md5)
            Path(scratch, folder.name).rename(folder)

    _fetch(url, folder, download)


def _fetch(url: str, path: Path, download: Callable[[], None]) -> None:
    """Downloads in one process at a time, unless the path is there."""
    if path.exists():  # perhaps where nothing can be written
        return
    with one_at_a_time(path):
        if path.exists():
            return
        note(f"downloading {url} to {path.parent}")
        try:
            download()
        except (OSError, HTTPException, ValueError, RuntimeError) as error:
            raise UserError(
                f"'{path}' is not there, and '{url}' cannot be fetched ({first_sentence(error)});"
                " connect to the network, or put it there"
            ) from error


def read_yaml(text: str, name: str) -> object:
    """Reads YAML; ``name`` says in messages where it is from."""
    try:
        return get_loader("yaml")(text)  # which reads 1e-3 as a number
    except yaml.YAMLError as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error
