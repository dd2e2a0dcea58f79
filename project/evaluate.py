"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

import argparse
import contextlib
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.cli import ArgsType, LightningArgumentParser

from project.cli import ProjectCLI, one_line_errors, quiet_libraries
from project.errors import UserError
from project.explore.data import remembered_data, require_there
from project.explore.tables import class_table, metrics_table, write_json
from project.model import ImageClassifier
from project.run.checkpoint import ABOUT, About, read_checkpoint, require_same_classes

DEFAULTS: dict[str, Any] = {
    "trainer.logger": False,
    "trainer.enable_checkpointing": False,
    "trainer.enable_model_summary": False,
}


def load_classifier(ckpt_path: str) -> ImageClassifier:
    """Builds the model that a checkpoint holds.

    Args:
        ckpt_path: The checkpoint.
    """
    return ImageClassifier.load_from_checkpoint(ckpt_path)


class EvaluateCLI(ProjectCLI):
    """Measures a checkpoint."""

    def __init__(self, args: ArgsType = None) -> None:
        description = "Measures a checkpoint on the data it was trained with, or on what --data says."
        options = list(map(str, args)) if isinstance(args, list) else sys.argv[1:]
        self._remembered = _remembered_data(options)
        self._root_is_given = any(re.match(r"--data(\.init_args)?\.root\b", option) for option in options)
        data = {"data": self._remembered} if self._remembered else {}
        super().__init__("project.evaluate", description, load_classifier, DEFAULTS | data, args)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the place for the metrics."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--ckpt_path", type=str, required=True, help="The checkpoint, as in runs/NAME/checkpoints/best.ckpt."
        )
        parser.add_argument("--split", type=Literal["val", "test"], default="test", help="The images to measure on.")
        parser.add_argument(
            "--output",
            type=str | None,
            default=None,
            help="Where the metrics go, by default beside the checkpoint, as JSON.",
        )
        parser.link_arguments("ckpt_path", "model.ckpt_path")

    def evaluate(self) -> None:
        """Measures, prints a table, and writes the metrics."""
        path, split = self.config.ckpt_path, self.config.split
        class_names = self.model.class_names
        if not self._root_is_given:
            require_there(self.datamodule, self._remembered.get("init_args", {}))
        require_same_classes(class_names, path, self.datamodule.class_names)
        prepared, expected = self.datamodule.preprocessing["crop"], self.model.preprocessing["crop"]
        if prepared != expected:
            raise UserError(
                f"'{path}' was trained on {expected} pixels, but would get {prepared}; see --data.image_size"
            )
        scaled, meant = self.datamodule.preprocessing["resize"], self.model.preprocessing["resize"]
        if scaled != meant:
            self.say(f"images are scaled to {scaled} pixels before they are cut, in training it was {meant}")
        measure = self.trainer.test if split == "test" else self.trainer.validate
        measure(self.model, datamodule=self.datamodule, verbose=False)
        if self.trainer.is_global_zero:
            metrics = self.model.results[split]
            output = Path(self.config.output or Path(path).with_suffix(f".{split}.metrics.json"))
            per_class = dict(zip(class_names, metrics.per_class, strict=True))
            found = {"checkpoint": path, "split": split, **metrics.as_dict(), "per_class": per_class}
            write_json("--output", output, found)
            self.say(f"{class_table(class_names, metrics.per_class)}\n\n{metrics_table({split: metrics.as_dict()})}")
            self.say(f"\n  written to {output}")


def _remembered_data(options: list[str]) -> dict[str, Any]:
    """The data that the checkpoint named on the command line was trained with, as the default of ``--data``."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--ckpt_path", nargs="?")  # the real parser complains where the path is missing
    parser.add_argument("--data", nargs="?")
    known, _ = parser.parse_known_args(options)
    if not known.ckpt_path:
        return {}
    about: About = read_checkpoint(known.ckpt_path)[ABOUT]
    try:
        _import_module_of(known.data)
        found, remembered = remembered_data(about)
    except UserError:
        if known.data:
            return {}  # it is named, so nothing need be remembered
        raise
    return {"class_path": f"{found.__module__}.{found.__qualname__}", "init_args": remembered}


def _import_module_of(data: str | None) -> None:
    """Imports the user's own data module that the command line names, so that it is found by its name."""
    module = (data or "").rpartition(".")[0]
    if module:
        with contextlib.suppress(ImportError):  # the real parser explains it
            import_module(module)


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        EvaluateCLI().evaluate()


if __name__ == "__main__":
    main()
