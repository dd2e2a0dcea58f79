"""A command: DICOM files as PNG files, which all other commands read; needs pip install pydicom.

python -m examples.dicom DICOM images
python -m project.check_data images --group '([0-9a-f]{8})_[^/]*$'
"""

from hashlib import sha256
from pathlib import Path

import numpy as np
from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from PIL import Image
from pydicom import Dataset, dcmread
from pydicom.misc import is_dicom
from pydicom.pixels import apply_modality_lut, apply_voi_lut


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(prog="python -m examples.dicom", description="Writes DICOM as PNG.")
    parser.add_argument("source", type=Path, help="A folder of DICOM files, in folders of classes.")
    parser.add_argument("target", type=Path, help="A new folder for PNG files in such folders.")
    window = "Centre and width of the grey levels, as in [40,400]; by default each file's first."
    parser.add_argument("--window", type=tuple[float, float] | None, default=None, help=window)
    return parser


def to_image(dataset: Dataset, window: tuple[float, float] | None) -> Image.Image:
    """Returns what a viewer shows, 8 bits; without a window, the smallest value is black.

    Dark and light change places in MONOCHROME1, where the smallest value is white.
    """
    if window is not None:
        dataset.WindowCenter, dataset.WindowWidth = window
    pixels, kind = dataset.pixel_array, dataset.PhotometricInterpretation
    if pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.dtype == np.uint8:
        return Image.fromarray(pixels)
    if pixels.ndim != 2 or kind not in ("MONOCHROME1", "MONOCHROME2"):
        raise UserError(f"'{dataset.filename}' has {kind} pixels of shape {pixels.shape}")
    values = apply_modality_lut(pixels, dataset)
    ends = [-1e9, 1e9] if "WindowWidth" in dataset else [values.min(), values.max()]
    shown = apply_voi_lut(np.append(values, ends), dataset, prefer_lut=False)
    black, white = shown[-2:]
    grey = (255 * (shown[:-2] - black) / ((white - black) or 1)).round().reshape(pixels.shape)
    return Image.fromarray((255 - grey if kind == "MONOCHROME1" else grey).astype(np.uint8))


def main(options: Namespace) -> None:
    """Writes a PNG file for each DICOM file.

    Its name begins with a hash of the patient's id or, in a file that has none, of the file's name.
    """
    files = [path for path in options.source.rglob("*") if path.is_file() and is_dicom(path)]
    if not files:
        raise UserError(f"there are no DICOM files in '{options.source}'", "source")
    if options.target.exists():
        raise UserError(f"'{options.target}' exists", "target")
    for path in files:
        dataset = dcmread(path)
        patient = sha256(str(dataset.get("PatientID") or path.name).encode()).hexdigest()[:8]
        folder = options.target / path.relative_to(options.source).parent
        folder.mkdir(parents=True, exist_ok=True)
        try:
            image = to_image(dataset, options.window)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(
                f"'{path}': {error}; remove '{options.target}' and try again"
            ) from error
        image.save(folder / f"{patient}_{path.name}.png")
    print(f"{len(files):,} files in {options.target}")


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
