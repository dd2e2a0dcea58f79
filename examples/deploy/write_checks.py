"""Writes a checkpoint's answers to photos, for check.py and check.mjs, to checks.jsonl.

python examples/deploy/write_checks.py runs/NAME/checkpoints/best.ckpt PHOTOS
"""

import base64
import json
import sys
from pathlib import Path

from prepare import open_photo, pixels

from project.model import ImageClassifier

model = ImageClassifier.load_from_checkpoint(sys.argv[1])
paths = sorted(path for path in Path(sys.argv[2]).rglob("*") if path.is_file())
with open("checks.jsonl", "w") as file:
    for path, prediction in zip(paths, model.predict_files(paths), strict=True):
        image = pixels(open_photo(path.read_bytes()))[None]
        check = {
            "shape": image.shape,
            "pixels": base64.b64encode(image.tobytes()).decode(),
            "probabilities": [*prediction.probabilities.values()],
        }
        file.write(json.dumps(check) + "\n")
