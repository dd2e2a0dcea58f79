"""Downloads an archive once: checked, unpacked beside its place, then moved there whole."""

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from urllib.error import URLError

from torchvision.datasets.utils import check_integrity, download_url

from ..errors import UserError
from ..run.download import one_at_a_time
from ..run.progress import note


def fetch_archive(url: str, md5: str, folder: Path) -> None:
    """Makes ``folder`` from the folder of the same name in a .tgz archive; does nothing if it is there already.

    The archive is kept beside it until it is unpacked.
    """
    if folder.is_dir():
        return
    try:
        with one_at_a_time(folder):
            if not folder.is_dir():
                _fetch(url, md5, folder)
    except URLError as error:
        raise UserError(
            f"'{url}' cannot be reached ({error.reason}); connect to the network, or put the unpacked"
            f" images into '{folder}'"
        ) from error
    except RuntimeError as error:
        raise UserError(f"what came from '{url}' is not the expected file: {error}; try again later") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"'{folder}' cannot be made from '{url}': {error}") from error


def _fetch(url: str, md5: str, folder: Path) -> None:
    archive = folder.with_name(url.rsplit("/", 1)[-1])
    if not check_integrity(str(archive), md5):
        archive.unlink(missing_ok=True)
        note(f"downloading {url}")
        download_url(url, str(folder.parent), archive.name, md5)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.move(Path(scratch) / folder.name, folder)
    archive.unlink()
