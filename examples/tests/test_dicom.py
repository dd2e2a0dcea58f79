"""DICOM files become PNG files of what a viewer shows, in the same folders, with a patient's name in common."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from project.data import FolderDataModule
from tests.conftest import call, one_line

pydicom = pytest.importorskip("pydicom", reason="pydicom is no requirement: pip install pydicom")

PIXELS = np.random.default_rng(0).integers(0, 4096, (20, 24)).astype(np.uint16)
WINDOW = {"WindowCenter": [300, 0], "WindowWidth": [700, 1]}  # of which the first is shown
SCALE = {"RescaleSlope": 2.0, "RescaleIntercept": -1024.0}


def write(path: Path, pixels: Any, patient: str = "Ada", **fields: Any) -> None:
    """A file as those of a scanner, with the least that a viewer needs."""
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    bits = 8 * pixels.dtype.itemsize
    basic = {
        "SOPClassUID": pydicom.uid.CTImageStorage,
        "SOPInstanceUID": pydicom.uid.generate_uid(),
        "PatientID": patient,
        "Rows": 20,
        "Columns": 24,
        "SamplesPerPixel": 3 if pixels.shape[-1] == 3 else 1,
        "PhotometricInterpretation": "RGB" if pixels.shape[-1] == 3 else "MONOCHROME2",
        "BitsAllocated": bits,
        "BitsStored": 12 if bits == 16 else 8,
        "HighBit": 11 if bits == 16 else 7,
        "PixelRepresentation": 0,
        "PlanarConfiguration": 0,
        "PixelData": pixels.tobytes(),
    }
    for name, value in {**basic, **fields}.items():
        setattr(dataset, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)


def windowed(values: Any, centre: float, width: float) -> Any:
    """The function LINEAR of DICOM's PS3.3, C.11.2.1.2.1, from 0 to 255."""
    inside = (values - (centre - 0.5)) / (width - 1) + 0.5
    low, high = values <= centre - 0.5 - (width - 1) / 2, values > centre - 0.5 + (width - 1) / 2
    return 255 * np.where(low, 0, np.where(high, 1, inside))


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({**WINDOW, **SCALE}, (), windowed(2.0 * PIXELS - 1024, 300, 700)),
        (SCALE, ("--window=[40,400]",), windowed(2.0 * PIXELS - 1024, 40, 400)),
        (
            {**WINDOW, "PhotometricInterpretation": "MONOCHROME1"},
            (),
            255 - windowed(1.0 * PIXELS, 300, 700),
        ),
        ({}, (), 255 * (PIXELS - PIXELS.min()) / np.ptp(PIXELS)),
    ],
    ids=["the window of the file", "one's own window", "inverted", "no window"],
)
def test_grey_levels_are_those_of_the_window(workplace, fields, options, expected):
    from examples import dicom

    write(Path("scans/ill/1.2.3"), PIXELS, **fields)
    call(dicom, "scans", "images", *options)
    (path,) = Path("images/ill").iterdir()
    found = np.asarray(Image.open(path))
    assert found.dtype == np.uint8
    assert found.shape == PIXELS.shape
    assert np.abs(found - expected).max() <= 0.5 + 1e-6
    assert 0 < found.mean() < 255


def test_each_patient_stays_in_one_split_and_colours_stay(workplace, capsys):
    from examples import dicom

    colours = np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    for number in range(24):
        label = "ill" if number % 2 else "well"
        write(Path("scans", label, f"{number}.dcm"), colours, patient=f"Patient {number // 6}")
    Path("scans/notes.txt").write_text("no image")
    call(dicom, "scans", "images")
    assert (np.asarray(Image.open(next(Path("images/ill").iterdir()))) == colours).all()
    data = FolderDataModule("images", group="([0-9a-f]{8})_[^/]*$", image_size=16)
    groups = defaultdict[str, set[str]](set)
    for file in data.files():
        groups[Path(file.path).name.partition("_")[0]].add(file.split)
    assert len(groups) == 4
    assert all(len(splits) == 1 for splits in groups.values())
    assert "target: 'images' exists" in one_line(lambda: call(dicom, "scans", "images"), capsys)
    write(Path("films/1.dcm"), np.stack([PIXELS] * 2), NumberOfFrames=2)
    said = one_line(lambda: call(dicom, "films", "others"), capsys)
    assert "1.dcm' has MONOCHROME2 pixels of shape (2, 20, 24)" in said
    Path("none").mkdir()
    assert "no DICOM files" in one_line(lambda: call(dicom, "none", "others"), capsys)
    write(broken := Path("broken/1.dcm"), PIXELS)
    broken.write_bytes(broken.read_bytes()[:-100])
    said = one_line(lambda: call(dicom, "broken", "half"), capsys)
    assert "'broken/1.dcm': The number of bytes of pixel data is less" in said
    assert "remove 'half' and try again" in said
