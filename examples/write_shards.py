"""Writes a folder of images as shards for ``examples/shards.py``: tar files, which WebDataset reads, too, and their index.

python -m examples.write_shards FOLDER SHARDS
"""

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jsonargparse import auto_cli
from lightkeeper.cli import run_command
from lightkeeper.exact import UserError
from lightkeeper.images import ImageFile

from project.data import FolderDataModule


def write_shards(folder: str, shards: Path, images: int = 1000) -> None:
    """Writes the splits of a folder, as ``FolderDataModule`` finds or cuts them.

    Args:
        folder: The folder of images.
        shards: A new folder for the shards.
        images: Images in a shard, about.
    """
    data = FolderDataModule(folder)
    data.files()  # refuses a wrong folder before there is one of shards
    if shards.is_file() or [*shards.glob("*")]:
        raise UserError(f"'{shards}' is there already; remove it, or take another", "shards")
    shards.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        files = [file for file in data.files() if file.split == split]
        labels = [data.class_names.index(file.label) for file in files]
        count = -(-len(files) // images)
        order = [row for shard in range(count) for row in range(shard, len(files), count)]
        names, places = [], []
        for shard in range(count):
            path = shards / "part"
            spans = write_shard(path, files[shard::count], labels[shard::count])
            digest = hashlib.blake2b(path.read_bytes(), digest_size=4).hexdigest()
            names.append(f"{split}-{shard:05}-{digest}.tar")  # never another shard's in a cache
            path.rename(shards / names[-1])
            places += [(shard, *span) for span in spans]
        np.savez(
            shards / f"{split}.npz",
            classes=data.class_names,
            files=names,
            places=places,
            labels=[labels[row] for row in order],
        )


def write_shard(
    path: Path, files: Sequence[ImageFile], labels: Sequence[int]
) -> list[tuple[int, int]]:
    """Writes a tar file of images and labels; returns where each image starts, and its length."""
    with tarfile.open(path, "w") as tar:
        for number, (file, label) in enumerate(zip(files, labels, strict=True)):
            suffix = Path(file.path).suffix.lower()
            for ending, content in (
                (suffix, Path(file.path).read_bytes()),
                (".cls", b"%d" % label),
            ):
                member = tarfile.TarInfo(f"{number:06}{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    with tarfile.open(path) as tar:
        return [(member.offset_data, member.size) for member in tar.getmembers()[::2]]


if __name__ == "__main__":
    run_command(lambda: auto_cli(write_shards))
