"""Fetching an archive once: checked, unpacked beside its place, then moved there whole."""

import gzip
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from urllib.error import URLError

from torchvision.datasets.utils import check_integrity, download_url

from project.errors import UserError

_CHUNK = 2**20


def fetch_archive(url: str, md5: str, folder: Path, max_bytes: int, max_files: int) -> None:
    """Makes ``folder`` from the folder of the same name in a .tgz archive; does nothing where it is there already.

    A download that was broken off is noticed by its checksum and restarted. What is unpacked appears under its name
    only when it is complete, and nothing in the archive can reach outside its folder.

    Args:
        url: Where the archive is.
        md5: The archive's MD5, in hexadecimal.
        folder: Where the images shall lie; the archive is kept beside it until it is unpacked.
        max_bytes: How large the archive may become; nothing is written of one that becomes larger.
        max_files: How many files and folders it may have.

    Raises:
        UserError: The archive cannot be fetched, is not the expected one, is too large, or cannot be written.
    """
    if folder.is_dir():
        return
    archive = folder.parent / url.rsplit("/", 1)[-1]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not check_integrity(str(archive), md5):
            archive.unlink(missing_ok=True)
            print(f"downloading {url}")
            download_url(url, str(folder.parent), archive.name, md5)
        _require_harmless(archive, max_bytes, max_files)
        _unpack(archive, folder)
    except URLError as error:
        raise UserError(
            f"'{url}' cannot be reached ({error.reason}); connect to the network, or put the unpacked"
            f" images into '{folder}'"
        ) from error
    except RuntimeError as error:
        raise UserError(f"what came from '{url}' is not the expected file: {error}; try again later") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"'{folder}' cannot be made from '{url}': {error}") from error
    archive.unlink()


def _unpack(archive: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.move(Path(scratch) / folder.name, folder)


def _require_harmless(archive: Path, max_bytes: int, max_files: int) -> None:
    """Refuses a small archive that becomes a huge one, and what images do not need: links and devices.

    Raises:
        TarError: It is refused.
    """
    unpacked = size = 0
    with gzip.open(archive) as stream:  # first, as tarfile reads a name of a gigabyte whole
        while chunk := stream.read(_CHUNK):
            unpacked += len(chunk)
            _require_few(unpacked, max_bytes, "bytes")
    with tarfile.open(archive, "r:gz") as tar:
        for count, member in enumerate(tar, start=1):
            size += member.size  # of a file with holes it is more than the archive holds
            _require_few(size, max_bytes, "bytes")
            _require_few(count, max_files, "files and folders")
            if not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"'{member.name}' in it is a link or a device")


def _require_few(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise tarfile.TarError(f"it unpacks to more than the {limit:,} {what} that are expected")
