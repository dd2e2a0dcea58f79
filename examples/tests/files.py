"""Files of the kinds that examples and pages name."""

import json
from pathlib import Path

from tests.conftest import draw_image, make_folder


def write_coco(file: Path) -> None:
    """Annotations of two boxes in each of twelve images, of two categories."""
    paths = sorted(make_folder(file.parent, {"pets": 12}).glob("pets/*"))
    images = [{"id": at, "file_name": f"pets/{path.name}"} for at, path in enumerate(paths)]
    boxes = [
        {"image_id": at, "category_id": category, "bbox": [category, 2, 20, 18]}
        for at in range(len(paths))
        for category in (3, 7)
    ]
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    coco = {"images": images, "annotations": boxes, "categories": categories}
    file.write_text(json.dumps(coco))


def write_pets(root: Path) -> None:
    """Files as those of torchvision's ``OxfordIIITPet``, which it then does not download."""
    names = [f"{kind}_{number}" for kind in ("Abyssinian", "beagle") for number in range(8)]
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    for split in ("trainval", "test"):
        lines = [f"{name} {1 + name.startswith('beagle')} 1 1" for name in names]
        (root / "annotations" / f"{split}.txt").write_text("\n".join(lines))
    for seed, name in enumerate(names):
        draw_image(0.5, seed).save(root / "images" / f"{name}.jpg")


def write_imagenet(folder: Path) -> None:
    """Images in the folders that the configs of ImageNet name, with others for the test."""
    for split, count in {"train": 14, "test": 3}.items():
        make_folder(folder / "imagenet" / split, dict.fromkeys("abc", count), (80, 72))


def write_csv(folder: Path) -> None:
    """A CSV of the images in ``images``, with their class, and with further labels."""
    rows = ["path,label,labels"]
    for file in sorted((folder / "images").rglob("*.jpg")):
        name, odd = file.parent.name, "odd" * (int(file.stem[-1]) % 2)
        rows.append(f"{file.relative_to(folder)},{name},{name} {odd}")
    (folder / "labels.csv").write_text("\n".join(rows))
