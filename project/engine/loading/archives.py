"""Downloads an archive once: checked, unpacked beside its place, then moved there whole."""

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

from torchvision.datasets.utils import check_md5

from ..errors import UserError
from ..run.download import fetch_file, one_at_a_time


def fetch_archive(url: str, md5: str, folder: Path) -> None:
    """Makes ``folder`` from the folder of the same name in a .tgz archive; does nothing if it is there already."""
    if folder.is_dir():
        return
    archive = folder.with_name(url.rsplit("/", 1)[-1])
    with one_at_a_time(folder):
        if folder.is_dir():  # by now
            return
        fetch_file(url, archive)
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
