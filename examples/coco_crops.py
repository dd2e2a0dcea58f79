"""A dataset of torch: the boxes of COCO's annotations, each cropped, with their categories as classes.

python -m project.fit --data TorchDatasetModule --data.train examples.coco_crops.CocoCrops --data.train.annotations FILE.json
"""

import json
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset


class CocoCrops(Dataset[Any]):
    """One image for each box; ``folder`` holds the images, by default that of the annotations."""

    def __init__(self, annotations: str, folder: str | None = None) -> None:
        coco = json.loads(Path(annotations).read_text())
        self.folder = Path(folder or Path(annotations).parent)
        self.files = {image["id"]: image["file_name"] for image in coco["images"]}
        names = {category["id"]: category["name"] for category in coco["categories"]}
        self.classes = [*names.values()]
        self.boxes = [(box["image_id"], *box["bbox"]) for box in coco["annotations"]]
        self.targets = [[*names].index(box["category_id"]) for box in coco["annotations"]]

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        image, x, y, width, height = self.boxes[index]
        with Image.open(self.folder / self.files[image]) as photo:
            return photo.crop((x, y, x + width, y + height)), self.targets[index]
