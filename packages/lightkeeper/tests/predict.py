"""``python -m tests.predict``: a toy command that labels image files, as a project writes it."""

from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import Path_fc
from lightkeeper.cli import CommandParser, label_files, run_command
from torch import Tensor, nn

from tests.toy import ToyClassifier


class Labelling(ToyClassifier):
    """Returns probabilities where it predicts, and names the layer whose input is an embedding."""

    @property
    def network_head(self) -> nn.Module:
        return self.network.get_submodule("fc")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.probabilities(self(batch.images))


def parser() -> CommandParser:
    parser = CommandParser(prog="label")
    parser.add_argument("checkpoint", type=str)
    parser.add_argument("paths", nargs="+", type=str)
    for option in ("--output", "--embeddings"):
        parser.add_argument(option, type=Path_fc)
    for option in ("--resume", "--overwrite", "--shares"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--top_k", type=int, default=1)
    parser.add_argument("--abstain", type=float, default=0.0)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--trainer.accelerator", type=str, default="cpu")
    parser.add_argument("--trainer.devices", type=int | str, default=1)
    return parser


def columns(names: list[str], options: Namespace, probabilities: Tensor) -> dict[str, object]:
    """The most probable classes, of which an unsure one has no label, and each class's share."""
    shares = probabilities.numpy()
    best, *others = shares.argsort()[::-1][: options.top_k].tolist()
    label = names[best] if shares[best] >= options.abstain else None
    row = {"label": label, "confidence": shares[best]}
    row |= {f"label_{place}": names[position] for place, position in enumerate(others, 2)}
    if options.shares:
        row |= {f"share_{name}": share for name, share in zip(names, shares, strict=True)}
    return row


def label(*args: str | Path) -> int:
    """Labels the files that the arguments name."""
    options = parser().parse_args([*map(str, args)])
    model = Labelling.load_from_checkpoint(options.checkpoint)
    return label_files(model, partial(columns, model.class_names, options), options)


if __name__ == "__main__":
    import sys

    run_command(lambda: label(*sys.argv[1:]))
