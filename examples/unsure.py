"""A command: the images of a folder that a checkpoint is least sure of, the first to label by hand.

Those nearest to the threshold, if it decides by one, as that of examples/binary.py. Or those that
most resemble no class, with --by energy.

python -m examples.unsure runs/NAME/checkpoints/best.ckpt photos --count 50 > unsure.csv
"""

import csv
import sys
from pathlib import Path
from typing import Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError, note


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(prog="python -m examples.unsure", description="Lists unsure images.")
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument("folder", type=Path, help="A folder of images, at any depth.")
    parser.add_argument("--count", type=PositiveInt, default=20, help="How many to list.")
    parser.add_argument(
        "--by", type=Literal["confidence", "energy"], default="confidence", help="What to sort by."
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Prints a row for each image: path, label and confidence or energy, the least sure first."""
    from torch import float64, tensor  # here: --help need not import it
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from examples.recipes.energy import energy, file_logits
    from project.model import ImageClassifier

    suffixes = {*IMG_EXTENSIONS, ".jpe", ".gif", ".avif", ".jp2"}
    files = [path for path in sorted(options.folder.rglob("*")) if path.suffix.lower() in suffixes]
    names = [f"/{path.relative_to(options.folder).as_posix()}" for path in files]
    paths = [path for path, name in zip(files, names, strict=True) if "/." not in name]  # hidden
    if not paths:
        raise UserError(f"there are no images in '{options.folder}'", "folder")
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    logits = file_logits(model, paths)
    known = [i for i, row in enumerate(logits) if not row.isnan().any()]
    if broken := len(paths) - len(known):
        note(f"left out, as they cannot be read: {broken:,}; project.predict says why")
    paths, logits = [paths[i] for i in known], logits[known]
    probabilities = model.probabilities(logits)
    best = model.predicted(probabilities) if model.has_one_class else probabilities.argmax(1)
    confidence = probabilities.gather(1, best[:, None])[:, 0]
    by_energy = options.by == "energy"
    raw = logits * model.about.get("temperature", 1.0)  # the paper's, whatever a calibration says
    scores = order = energy(raw) if by_energy else confidence
    if not by_energy and model.has_one_class and len(thresholds := model.thresholds or {}) == 2:
        # logits, which are finite: a threshold that no image reaches is above 1
        odds = model.probabilities(logits.double())[:, 1].logit(1e-12)
        least = tensor(thresholds[model.class_names[1]], dtype=float64).logit(1e-12)
        order = (odds - least).abs()
    unsure = order.argsort(stable=True, descending=by_energy)[: options.count].tolist()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["path", "label", options.by])
    writer.writerows([paths[i], model.label_names(best[i]), f"{scores[i]:.4f}"] for i in unsure)


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
