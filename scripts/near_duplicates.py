"""Finds images that are probably the same photo: ``python scripts/near_duplicates.py DATA pairs.csv``; needs imagehash.

DATA is a folder or a CSV, as of ``project.check_data``, which finds equal files; this finds resized, compressed, mirrored and
recoloured ones, too. Writes a row for each pair (distance, and path, label and split of both), those of two labels or two splits first,
and ``pairs.jpg`` of the first 20 pairs. Look at them: a pair in two splits makes the metrics too good.

By perceptual hashes of 64 bits (Zauner, 2010, https://www.phash.org/docs/pubs/thesis_zauner.pdf), of which a pair differs in 6 at most.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from label_errors import WHOLE, draw, require_new
from lightkeeper.cli import run_command
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing, prepare
from PIL import Image, ImageOps

from project.data import CSVDataModule, FolderDataModule

LARGEST, SHOWN, AT_ONCE = 6, 20, 1024
SQUASHED: Preprocessing = {**WHOLE, "fit": "squash"}
SIDES = ("path", "label", "split")
COLUMNS = ["distance", *SIDES, *(f"other_{side}" for side in SIDES)]


def bits(path: str) -> list[np.ndarray]:
    """Computes the hashes of an image and of its mirror image, 64 bits each; none of a file that cannot be read."""
    try:
        from imagehash import phash
    except ModuleNotFoundError:
        sys.exit('error: this needs a package: pip install --editable ".[labels]"')
    try:
        pixels = prepare(path, SQUASHED).permute(1, 2, 0).numpy()
    except UserError as error:
        print(f"note: {path} is left out: {error}", file=sys.stderr)
        return []
    upright = Image.fromarray(pixels).convert("L")
    return [
        phash(view).hash.ravel().astype(np.float32) for view in (upright, ImageOps.mirror(upright))
    ]


def pairs(hashes: np.ndarray) -> list[tuple[int, int, int]]:
    """Finds pairs of similar images by their hashes, float32 (N, 2, 64): distance and positions."""
    ones, found = hashes.sum(2), list[tuple[int, int, int]]()
    for start in range(0, len(hashes), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        both = [
            ones[some, :1] + ones[:, view] - 2 * hashes[some, 0] @ hashes[:, view].T
            for view in (0, 1)
        ]
        distances = np.triu(np.minimum(*both) - 65, start + 1) + 65  # each pair once: 65 is none
        rows, columns = np.nonzero(distances <= LARGEST)
        near = distances[rows, columns].astype(int)
        found += zip(near.tolist(), (rows + start).tolist(), columns.tolist(), strict=True)
    return found


def main(data: str, output: str) -> None:
    """Lists the pairs, and draws the first."""
    require_new(Path(output))
    module = CSVDataModule(data) if Path(data).is_file() else FolderDataModule(data)
    images = [(file.path, file.label, file.split) for file in module.files()]
    hashed = [(image, views) for image in images if (views := bits(image[0]))]
    found = [
        [d, *hashed[one][0], *hashed[other][0]]
        for d, one, other in pairs(np.array([views for _, views in hashed]))
    ]
    found.sort(key=lambda row: (row[2] == row[5] and row[3] == row[6], row[0]))
    with open(output, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *found])
    labels, apart = (sum(row[at] != row[at + 3] for row in found) for at in (2, 3))
    print(f"{output}: {len(found):,} pairs, {labels:,} of two labels, {apart:,} in two splits")
    shown = [(d, row[at : at + 3]) for d, *row in found[:SHOWN] for at in (0, 3)]
    titles = [f"{label}, {split}\n{distance} bits" for distance, (_, label, split) in shown]
    draw((str(path) for _, (path, *_) in shown), titles, Path(output))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python scripts/near_duplicates.py DATA pairs.csv")
    run_command(lambda: main(*sys.argv[1:]))
