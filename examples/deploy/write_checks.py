"""Writes a checkpoint's answers to photos, for check.py and check.mjs, to checks.jsonl.

python examples/deploy/write_checks.py runs/NAME/checkpoints/best.ckpt PHOTOS
"""

import base64
import json
from pathlib import Path

from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from prepare import open_photo, pixels

from project.model import ImageClassifier


def main(options):
    """Writes a line for each photo, once all are labelled."""
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    if model.preprocessing.get("bits") == 16 or len(model.preprocessing["mean"]) != 3:
        raise UserError("must be of RGB images of 8 bits, as prepare.py makes", "checkpoint")
    paths = sorted(path for path in options.photos.rglob("*") if path.is_file())
    if not paths:
        raise UserError(f"there are no photos in '{options.photos}'")
    lines = []
    for path, prediction in zip(paths, model.predict_files(paths), strict=True):
        image = pixels(open_photo(path.read_bytes()))[None]
        check = {
            "shape": image.shape,
            "pixels": base64.b64encode(image.tobytes()).decode(),
            "probabilities": [*prediction.probabilities.values()],
        }
        lines.append(json.dumps(check) + "\n")
    Path("checks.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    parser = CommandParser(prog="write_checks.py", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument("photos", type=Path, help="A folder of photos.")
    parser.add_import()
    run_command(lambda: main(parser.parse_args()))
