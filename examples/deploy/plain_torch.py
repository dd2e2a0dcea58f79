"""Labels photo.jpg with model.pt2: ``python plain_torch.py``."""

import json
from pathlib import Path

import torch
from prepare import open_photo, pixels

about = {"class_names": ""}
classify = torch.export.load("model.pt2", extra_files=about).module()
images = torch.from_numpy(pixels(open_photo(Path("photo.jpg").read_bytes()))[None].copy())
probabilities = classify(images)[0]
print(json.loads(about["class_names"])[probabilities.argmax()], probabilities.max().item())
