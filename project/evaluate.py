"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

import re
import sys
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.cli import ArgsType, LightningArgumentParser

from project.analysis.data import (
    remembered_data,
    require_datasets,
    require_same_datasets,
    require_there,
    was_trained_on,
)
from project.analysis.evaluation import EVALUATED, CollectPredictions, evaluated_rows
from project.analysis.tables import class_table, metrics_table, replacing, require_writable, write_json
from project.cli import ProjectCLI
from project.data import FolderDataModule
from project.data.image_files import ImageFilesDataModule
from project.engine.cli.classes import find_class, is_folder
from project.engine.cli.command import one_line_errors, quiet_libraries
from project.engine.cli.command_line import IMPORT, import_modules, last_value, values_of, with_name
from project.engine.cli.help import Screen
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, About, read_checkpoint
from project.engine.run.matching import require_same_classes
from project.engine.run.rows import RowWriter, ending_of
from project.engine.run.settings import plain_options
from project.model import ImageClassifier
from project.model.pretrained import follow_preprocessing

DEFAULTS: dict[str, Any] = {
    "trainer.logger": False,
    "trainer.enable_checkpointing": False,
    "trainer.enable_model_summary": False,
}

SCREEN = Screen(
    ("accelerator", "devices", "num_nodes", "strategy", "precision", "limit_test_batches"),
    data=FolderDataModule,
    model=None,
    examples=(
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --split val --output val.json",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --data path/to/other/folder --split all",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --output_predictions test.csv",
    ),
    hidden=[f"--data.{name}" for name in ("crop_scale", "flip", "crop_padding", "cutout")],
)


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
        options = with_name("--checkpoint", list(map(str, args)) if isinstance(args, list) else sys.argv[1:])
        import_modules(values_of("--import", options))
        self._remembered = _remembered_data(options)
        self._root_is_given = is_folder(last_value("--data", options)) or any(
            re.match(r"--data(\.init_args)?\.root\b", option) for option in options
        )
        data = {"data": self._remembered} if self._remembered else {}
        super().__init__("project.evaluate", description, load_classifier, DEFAULTS | data, SCREEN, options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the place for the metrics."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--checkpoint",
            type=str,
            required=True,
            help="The checkpoint, as in runs/NAME/checkpoints/best.ckpt; the option's name may be left out.",
        )
        parser.add_argument("--import", **IMPORT)
        parser.add_argument(
            "--split",
            type=Literal["val", "test", "all"],
            default="test",
            help="The images to measure on: val, test, or all of a folder or CSV that it was not trained on.",
        )
        parser.add_argument(
            "--output",
            type=str | None,
            default=None,
            help="Where the metrics go, by default beside the checkpoint, as JSON.",
        )
        parser.add_argument(
            "--output_predictions",
            type=str | None,
            default=None,
            help="A .csv or .jsonl file for what the model says of each image, if anywhere.",
        )
        parser.link_arguments("checkpoint", "model.ckpt_path")

    def before_instantiate_classes(self) -> None:
        """Prepares images as the checkpoint says, where the options don't."""
        self._about: About = read_checkpoint(self.config.checkpoint)[ABOUT]
        follow_preprocessing(self.config.data.get("init_args", {}), self._about["preprocessing"])

    def evaluate(self) -> None:
        """Measures, prints a table, and writes the metrics."""
        path, split = self.config.checkpoint, self.config.split
        class_names = self.model.class_names
        if not self._root_is_given:
            require_there(self.datamodule, self._remembered.get("init_args", {}))
        require_same_classes(class_names, path, self.datamodule.class_names)
        require_same_datasets(self._about, self.datamodule)
        if split == "all":
            self._take_all()
        self._compare_preprocessing()
        output = Path(self.config.output or Path(path).with_suffix(f".{split}.metrics.json"))
        if self.config.output is None and output.is_symlink():  # which came with the checkpoint
            raise UserError(f"'{output}' is a link; remove it, or choose another file with --output")
        if self.trainer.is_global_zero:
            require_writable("--output", output)
        measured = "val" if split == "val" else "test"  # which has all images where all are measured
        self._measure(measured)
        if self.trainer.is_global_zero:
            metrics = self.model.results[measured]
            per_class = dict(zip(class_names, metrics.per_class, strict=True))
            kind = type(self.datamodule)
            data = {"class_path": kind.__name__, "init_args": plain_options(self.datamodule.hparams, kind)}
            found = {"checkpoint": path, "data": data, "split": split, **metrics.as_dict(), "per_class": per_class}
            write_json("--output", output, found)
            self.say(f"{class_table(class_names, metrics.per_class)}\n\n{metrics_table({split: metrics.as_dict()})}")
            self.say(f"\n  written to {output}")

    def _compare_preprocessing(self) -> None:
        """Refuses images of another size or fit than in training, and notes what else differs."""
        path, now, then = self.config.checkpoint, self.datamodule.preprocessing, self.model.preprocessing
        if now["crop"] != then["crop"]:
            raise UserError(
                f"'{path}' was trained on {then['crop']} pixels, but would get {now['crop']}; see --data.image_size"
            )
        fit = then.get("fit", "crop")
        if now.get("fit", fit) != fit:
            raise UserError(
                f"'{path}' was trained on images fitted by {fit}, but would get {now['fit']}; use --data.fit {fit}"
            )
        if now["resize"] != then["resize"]:
            sizes = f"{now['resize']} pixels before they are cut, in training it was {then['resize']}"
            self.note(f"images are scaled to {sizes}")
        ways = [found.get("interpolation", "bilinear") for found in (now, then)]
        if ways[0] != ways[1]:
            self.note(f"images are scaled by {ways[0]} interpolation, in training it was {ways[1]}")

    def _take_all(self) -> None:
        data = self.datamodule
        if not isinstance(data, ImageFilesDataModule):
            raise UserError("--split all takes image files; name a folder or a CSV with --data")
        seen = was_trained_on(self._about, data)
        if seen:
            raise UserError("--split all: some of these images are those it was trained on; name others with --data")
        if seen is None:
            self.note("what it was trained on is not here, so whether these images were among it is not known")
        data.tests_all = True

    def _measure(self, split: str) -> None:
        """Measures a split, and writes what the model says of each image where that is asked for."""
        measure = self.trainer.validate if split == "val" else self.trainer.test
        path: str | None = self.config.output_predictions
        if path is None:
            measure(self.model, datamodule=self.datamodule, verbose=False)
            return
        collect = CollectPredictions()
        self.trainer.callbacks.append(collect)  # type: ignore[attr-defined]  # set by a connector
        first = self.trainer.is_global_zero
        ending = ending_of("--output_predictions", path)
        if first:
            require_writable("--output_predictions", path)
        measure(self.model, datamodule=self.datamodule, verbose=False)
        if first and collect.predictions is not None:
            with replacing("--output_predictions", path) as partial, open(partial, "wb") as file:
                writer = RowWriter(file, EVALUATED, ending)
                for rows in evaluated_rows(collect.predictions, self.datamodule.splits[split], self.model.class_names):
                    writer.write(rows)
            self.say(f"  each image's prediction is in {path}\n")


def _remembered_data(options: list[str]) -> dict[str, Any]:
    """The data that the checkpoint named on the command line was trained with, as the default of ``--data``."""
    ckpt_path, data = last_value("--checkpoint", options), last_value("--data", options)
    if ckpt_path is None:  # the parser says that it is required
        return {}
    about: About = read_checkpoint(ckpt_path)[ABOUT]
    try:
        find_class("data", data)  # imports the user's own module, so that the checkpoint's class is found by its name
        found, remembered = remembered_data(about)
        if not any(option.startswith(("--data", "--config", "-c")) for option in options):
            require_datasets(about, ())
    except UserError:
        if data:
            return {}  # it is named, so nothing need be remembered
        raise
    return {"class_path": f"{found.__module__}.{found.__qualname__}", "init_args": remembered}


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        EvaluateCLI().evaluate()


if __name__ == "__main__":
    main()
