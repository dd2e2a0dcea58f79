"""Downloading a file once, by one process of a machine; it appears whole or not at all."""

import sys
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

import torch
from filelock import FileLock

from ..errors import UserError, first_sentence, printable
from .progress import note


def one_at_a_time(path: Path) -> FileLock:
    """Returns a lock beside a file, by which concurrent processes download once; a killed one leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def fetch_file(url: str, path: Path, sha256: str = "") -> None:
    """Downloads a file that is not there yet, and compares the beginning of its SHA-256."""
    if path.exists():
        return
    try:
        with one_at_a_time(path):
            if not path.exists():
                note(f"downloading {printable(url)} to {printable(path.parent)}")
                torch.hub.download_url_to_file(url, str(path), sha256 or None, progress=sys.stderr.isatty())
    except (OSError, HTTPException, ValueError, RuntimeError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is an answer, too
        raise UserError(
            f"'{printable(path)}' is not there, and '{printable(url)}' cannot be fetched ({printable(first_sentence(error))});"
            " connect to the network, or put the file there"
        ) from error
