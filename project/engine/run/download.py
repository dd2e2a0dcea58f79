"""Fetching a file once: by one process of a machine, checked, and under its name only when it is whole."""

import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from filelock import FileLock
from tqdm import tqdm

from ..errors import UserError, first_sentence, printable
from .progress import note

_PATIENCE = 30.0  # seconds without a byte
_PIECE = 2**20


def one_at_a_time(path: Path) -> FileLock:
    """What keeps processes that start together from downloading into each other's files; a killed one leaves no lock.

    Args:
        path: What is downloaded; the lock is a hidden file beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def fetch_file(url: str, path: Path, sha256: str = "") -> None:
    """Downloads a file where it is not there yet.

    Args:
        url: Where it is, by http or https.
        path: Where it shall be.
        sha256: The first digits of its SHA-256, in hexadecimal; a file that is there already is checked, too.

    Raises:
        UserError: It cannot be fetched or written, or is not the expected one.
    """
    name = printable(path)
    if path.exists():
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if not found.startswith(sha256):
            raise UserError(f"'{name}' is not the expected file: its SHA-256 is not {sha256}…; remove it")
        return
    try:
        with one_at_a_time(path):
            if not path.exists():
                _download(url, path, sha256)
    except (OSError, HTTPException, ValueError) as error:
        raise UserError(
            f"'{name}' is not there, and '{printable(url)}' cannot be fetched ({printable(_reason(error))}); connect to"
            " the network, or put the file there"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        error.close()  # it is an answer, too
    elif isinstance(error, URLError) and isinstance(error.reason, Exception):
        return first_sentence(error.reason)
    return first_sentence(error)


def _download(url: str, path: Path, sha256: str) -> None:
    note(f"downloading {printable(url)} to {printable(path.parent)}")
    partial, digest = path.with_name(f".{path.name}.partial"), hashlib.sha256()
    try:
        with urlopen(url, timeout=_PATIENCE) as response, open(partial, "wb") as file:
            size = int(response.headers.get("Content-Length") or -1)
            with tqdm(total=max(size, 0) or None, unit="B", unit_scale=True, disable=None) as bar:
                while piece := response.read(_PIECE):
                    file.write(piece)
                    digest.update(piece)
                    bar.update(len(piece))
            _require_whole(file.tell(), size)
        if not digest.hexdigest().startswith(sha256):
            raise OSError(f"its SHA-256 is {digest.hexdigest()[:8]}…, not {sha256}…")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _require_whole(received: int, size: Any) -> None:
    if size >= 0 and received != size:
        raise OSError(f"the connection was cut after {received:,} of {size:,} bytes")
