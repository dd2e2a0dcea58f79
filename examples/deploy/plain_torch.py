"""Labels photo.jpg with model.pt2: ``python plain_torch.py``."""

import json
from pathlib import Path

import torch
from prepare import answers, open_photo, pixels, require_rgb

names = ("class_names", "has_one_class", "thresholds", "positive", "bits", "mean")
about = dict.fromkeys(names, "")
classify = torch.export.load("model.pt2", extra_files=about).module()
require_rgb(about)
images = torch.from_numpy(pixels(open_photo(Path("photo.jpg").read_bytes()))[None].copy())
probabilities = classify(images)[0].tolist()
for at in answers(probabilities, about):
    print(json.loads(about["class_names"])[at], probabilities[at])
