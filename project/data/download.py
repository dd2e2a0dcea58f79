"""Fetching an archive once: checked, unpacked beside its place, then moved there whole."""

import shutil
import tarfile
import tempfile
from pathlib import Path
from urllib.error import URLError

from torchvision.datasets.utils import check_integrity, download_url

from project.errors import UserError


def fetch_archive(url: str, md5: str, folder: Path) -> None:
    """Makes ``folder`` from the folder of the same name in a tar archive; does nothing where it is there already.

    A download that was broken off is noticed by its checksum and restarted. What is unpacked appears under its name
    only when it is complete, and nothing in the archive can reach outside its folder.

    Args:
        url: Where the archive is.
        md5: The archive's MD5, in hexadecimal.
        folder: Where the images shall lie; the archive is kept beside it until it is unpacked.

    Raises:
        UserError: The archive cannot be fetched, is not the expected one, or cannot be written.
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
        _unpack(archive, folder)
    except URLError as error:
        raise UserError(
            f"'{url}' cannot be reached ({error.reason}); connect to the network, or put the unpacked"
            f" images into '{folder}'"
        ) from error
    except RuntimeError as error:
        raise UserError(f"what came from '{url}' is not the expected file: {error}; try again later") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"'{folder}' cannot be made from '{url}': {error}") from error
    archive.unlink()


def _unpack(archive: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.move(Path(scratch) / folder.name, folder)
