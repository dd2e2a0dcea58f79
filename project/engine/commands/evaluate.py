"""Workings of ``evaluate``: a checkpoint's data opened again, measured exactly, and written."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse.typing import Path_fc
from lightning.pytorch.cli import LightningArgumentParser

from ..cli.command import ClassParser, Command
from ..cli.command_line import CommandLine
from ..cli.entry import run_command
from ..errors import UserError
from ..loading.image_files import ImageFilesDataModule
from ..loading.remembered import remembered_data, require_datasets, require_there, was_trained_on
from ..loading.scan import spelt
from ..preprocessing import Preprocessing
from ..run.checkpoint import ABOUT, About, read_checkpoint
from ..run.files import CSV, write_text
from ..run.settings import plain_options
from ..training.module import ClassifierModule
from ..training.predictions import Predictions

COLUMNS = ["path", "label", "confidence", "error", "true_label", "correct"]


class EvaluateCommand(Command):
    """Measures a checkpoint on its own data, or on other images of its classes.

    A subclass defines what people change: the rates of each class, and the tables.
    """

    class_rates: Callable[[Mapping[str, Any]], Sequence[Mapping[str, float]]]
    """Computes the rates of each class from metrics; a static method."""
    about: About
    """Facts of the checkpoint about itself."""

    def default_classes(self, line: CommandLine, named: Mapping[str, type]) -> Mapping[str, type]:
        """Returns the data that the checkpoint was trained with."""
        if not line.positionals:  # as with --help
            return {}
        self.about = read_checkpoint(line.positionals[-1])[ABOUT]
        try:
            cls, self._remembered = remembered_data(self.about)
        except UserError:
            if "data" not in named:
                raise
            self._remembered = {}
            return {}
        if named.get("data", cls) is cls:
            require_datasets(self.about, {name.removeprefix("data.") for name in line.names})
        if "data.root" in line.names:
            self._remembered.pop("root", None)
        self.default_arguments = {cls: self._remembered}
        return {"data": cls}

    def show_results(self, metrics: dict[str, Any], split: str) -> None:
        """Prints metrics; the rates of each class are ``per_class``, by name."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the files to write."""
        super().add_arguments_to_parser(parser)
        assert isinstance(parser, ClassParser)
        option = parser.add_argument
        option(
            "checkpoint", type=str, help="The checkpoint, as in runs/NAME/checkpoints/best.ckpt."
        )
        parser.add_import()
        option(
            "--split",
            type=Literal["val", "test", "all"],
            default="test",
            help="Images to measure on: val, test, or all of a folder or CSV that it was not trained"
            " on.",
        )
        option(
            "--output",
            type=Path_fc,
            help="A JSON file for the metrics, by default beside the checkpoint.",
        )
        option(
            "--output_predictions",
            type=Path_fc,
            help="A CSV file for the predictions of each image, by default none.",
        )
        parser.link_arguments("checkpoint", "model.ckpt_path")

    @classmethod
    def main(cls) -> NoReturn:
        """Runs the command as a program."""
        run_command(lambda: cls().evaluate())

    def evaluate(self) -> None:
        """Measures, writes the metrics, and shows them."""
        checkpoint = self.config.checkpoint
        split = self.config.split
        self._require_fitting_data()
        if split == "all":
            self._take_all()
        measure = self.trainer.validate if split == "val" else self.trainer.test
        measure(self.model, datamodule=self.datamodule, verbose=False)
        if not self.trainer.is_global_zero:
            return
        if self.config.output_predictions is not None:
            self._write_predictions(self.config.output_predictions)
        data = type(self.datamodule)
        metrics = {
            "checkpoint": checkpoint,
            "data": {
                "class_path": data.__name__,
                "init_args": plain_options(self.datamodule.hparams, data),
            },
            "split": split,
            **self.model.results["val" if split == "val" else "test"],
        }
        rates = self.class_rates(metrics)
        metrics["per_class"] = dict(zip(self.model.class_names, rates, strict=True))
        self.show_results(metrics, split)
        output = self.config.output or Path(checkpoint).with_suffix(f".{split}.metrics.json")
        write_text(output, json.dumps(metrics, indent=2) + "\n")
        self.say(f"\n  written to {output}")

    def _write_predictions(self, path: Path_fc) -> None:
        """Writes a row for each image."""
        if self.model.predictions is None:
            kind = type(self.model).__name__
            raise UserError(f"--output_predictions needs a {kind} whose steps measure with indices")
        with open(path, "w", **CSV) as file:
            rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            rows.writeheader()
            rows.writerows(rows_of(self.model.predictions, self.model))
        self.say(f"  each image's prediction is in {path}\n")

    def _require_fitting_data(self) -> None:
        """Refuses classes, image sizes and fits other than in training."""
        path, data = self.config.checkpoint, self.datamodule
        require_there(data, self._remembered)
        data.expect_classes(self.model.class_names, path)
        trained = _as_options(self.model.preprocessing)
        for option, value in _as_options(data.preprocessing).items():
            if value != trained[option]:
                raise UserError(
                    f"'{path}' was trained with --data.{option} {trained[option]}, but would get"
                    f" {value}"
                )

    def _take_all(self) -> None:
        """Measures all images of a data module of files, unless it was trained on some of them."""
        data = self.datamodule
        if not isinstance(data, ImageFilesDataModule):
            raise UserError("--split all takes image files; name a folder or a CSV with --data")
        data.test_on_all()
        was_seen = was_trained_on(self.about, data)
        if was_seen:
            raise UserError(
                "--split all: some of these images are those it was trained on; name others with"
                " --data"
            )
        if was_seen is None:
            self.note("the images of training are not here, so these may be among them")


def _as_options(preprocessing: Preprocessing) -> dict[str, object]:
    """Returns the options of data that decide what a network sees, but for its exact scale."""
    return {
        "image_size": preprocessing["crop"],
        "fit": preprocessing.get("fit", "crop"),
        "channels": len(preprocessing["mean"]),
        "bits": preprocessing.get("bits", 8),
    }


def rows_of(predictions: Predictions, model: ClassifierModule) -> Iterator[dict[str, object]]:
    """Makes a row for each image of a split."""
    images = predictions.images
    files = getattr(images, "files", None)
    known = predictions.known.tolist()
    correct = predictions.correct.tolist()
    confidence = predictions.confidence.numpy()  # float32, which has the shortest text
    for at, index in enumerate(predictions.indices.tolist()):
        path = images.name(index) if files is None else spelt(str(files[index]))
        if known[at]:
            yield {
                "path": path,
                "label": model.label_names(predictions.predicted[at]),
                "confidence": confidence[at],
                "true_label": model.label_names(predictions.labels[at]),
                "correct": json.dumps(correct[at]),
            }
        else:
            yield {"path": path, "error": "has no label, or cannot be read as an image"}
