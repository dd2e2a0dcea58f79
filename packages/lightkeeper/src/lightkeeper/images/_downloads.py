"""Downloads of weights and archives, once, by one process at a time."""

import re
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from ..exact._errors import UserError, first_sentence, note

_HASH = re.compile(r"-([0-9a-f]{8,})\.[^.]+$")  # torch.hub's convention for names of files


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
