"""Workings of ``evaluate``: a checkpoint's data opened again, measured exactly, and written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from ..cli.command import ClassParser, Command
from ..cli.command_line import CommandLine, find_class
from ..cli.entry import run_command
from ..cli.parser import import_modules
from ..errors import UserError
from ..loading.image_files import ImageFilesDataModule
from ..loading.remembered import (
    remembered_data,
    require_datasets,
    require_there,
    was_trained_on,
)
from ..loading.scan import spelt
from ..preprocessing import Preprocessing, bands_of
from ..run.checkpoint import ABOUT, About, read_checkpoint
from ..run.rows import Row, RowWriter
from ..run.settings import plain_options
from ..training.module import ClassifierModule
from ..training.predictions import Predictions
from .command import OutputFile

COLUMNS = ["path", "label", "confidence", "error", "true_label", "correct"]


class EvaluateCommand(Command):
    """Measures a checkpoint on its own data, or on other images of its classes.

    A subclass defines what people change: the rates of each class, and the tables.
    """

    class_rates: Callable[[Mapping[str, Any]], Sequence[Mapping[str, float]]]
    """Computes the rates of each class from metrics; a static method."""

    def default_classes(self, line: CommandLine) -> dict[str, type]:
        """Returns the data that the checkpoint was trained with."""
        if not line.positionals and not any("help" in word for word in line.words):
            raise UserError("the checkpoint is missing; see --help")
        for names in line.values("--import"):
            import_modules(names)
        roots = ("--data.root", "--data.init_args.root")
        self._root_is_given = any(word.startswith(roots) for word in line.words)
        self._remembered: dict[str, Any] = {}
        if not line.positionals:  # as with --help
            return {}
        self._about: About = read_checkpoint(line.positionals[-1])[ABOUT]
        *_, data = ("", *line.values("--data"))
        try:
            # imports the user's own module, so that the checkpoint's class is found by its name
            find_class(self.data_class, data)
            cls, self._remembered = remembered_data(self._about)
            if not any(word.startswith(("--data", "--config", "-c")) for word in line.words):
                require_datasets(self._about, ())
        except UserError:
            if data:
                return {}  # it is named, so nothing need be remembered
            raise
        self.default_arguments = {cls: self._remembered}
        return {"data": cls}

    def prepare_options(self, config: Namespace, preprocessing: Preprocessing) -> None:
        """Changes options before classes are built; the preprocessing is the checkpoint's."""

    def show_results(self, metrics: dict[str, Any], split: str) -> None:
        """Prints metrics; the rates of each class are ``per_class``, by name."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the files to write."""
        super().add_arguments_to_parser(parser)
        checkpoint = "The checkpoint, as in runs/NAME/checkpoints/best.ckpt."
        split = (
            "Images to measure on: val, test, or all of a folder or CSV that it was not trained on."
        )
        output = "A JSON file for the metrics, by default beside the checkpoint."
        predictions = "A CSV file for the predictions of each image, by default none."
        option = parser.add_argument
        option("checkpoint", type=str, help=checkpoint)
        assert isinstance(parser, ClassParser)
        parser.add_import()
        option("--split", type=Literal["val", "test", "all"], default="test", help=split)
        option("--output", type=str | None, default=None, help=output)
        option("--output_predictions", type=str | None, default=None, help=predictions)
        parser.link_arguments("checkpoint", "model.ckpt_path")

    def before_instantiate_classes(self) -> None:
        """Prepares images as the checkpoint says, where the options don't."""
        self.prepare_options(self.config, self._about["preprocessing"])

    @classmethod
    def main(cls) -> NoReturn:
        """Runs the command as a program."""
        run_command(lambda: cls().evaluate())

    def evaluate(self) -> None:
        """Measures, writes the metrics, and shows them."""
        checkpoint = self.config.checkpoint
        split = self.config.split
        beside = Path(checkpoint).with_suffix(f".{split}.metrics.json")
        output = OutputFile("--output", self.config.output, default=beside)
        files = [output]
        if self.config.output_predictions:
            files.append(OutputFile("--output_predictions", self.config.output_predictions))
        self._require_fitting_data()
        if split == "all":
            self._take_all()
        if self.trainer.is_global_zero:
            for file in files:
                file.require_writable()
        measure = self.trainer.validate if split == "val" else self.trainer.test
        measure(self.model, datamodule=self.datamodule, verbose=False)
        if not self.trainer.is_global_zero:
            return
        for file in files[1:]:
            self._write_predictions(file)
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
        output.write_json(metrics)
        self.show_results(metrics, split)
        self.say(f"\n  written to {output.path}")

    def _write_predictions(self, file: OutputFile) -> None:
        """Writes a row for each image."""
        if self.model.predictions is None:
            kind = type(self.model).__name__
            raise UserError(f"--output_predictions needs a {kind} whose steps measure with indices")
        with file.replaced() as target, RowWriter.open(target, COLUMNS) as writer:
            writer.write(rows_of(self.model.predictions, self.model))
        self.say(f"  each image's prediction is in {file.path}\n")

    def _require_fitting_data(self) -> None:
        """Refuses classes, image sizes and fits other than in training; notes other resizing."""
        path, data, about = self.config.checkpoint, self.datamodule, self._about
        if not self._root_is_given:
            require_there(data, self._remembered)
        data.expect_classes(self.model.class_names, path)
        if about["data"] is not None and about["data"]["class_path"] == type(data).__name__:
            require_datasets(about, data.hparams)
        now, then = (_described(part.preprocessing) for part in (data, self.model))
        for option, value in now.items():
            if option != "resize" and value != then[option]:
                raise UserError(
                    f"'{path}' was trained with --data.{option} {then[option]}, but would get"
                    f" {value}"
                )
        if now["resize"] != then["resize"]:
            self.note(f"images are scaled to {now['resize']}; in training it was {then['resize']}")

    def _take_all(self) -> None:
        """Measures all images of a data module of files, unless it was trained on some of them."""
        data = self.datamodule
        if not isinstance(data, ImageFilesDataModule):
            raise UserError("--split all takes image files; name a folder or a CSV with --data")
        data.test_on("all")
        was_seen = was_trained_on(self._about, data)
        if was_seen:
            raise UserError(
                "--split all: some of these images are those it was trained on; name others with"
                " --data"
            )
        if was_seen is None:
            self.note("the images of training are not here, so these may be among them")


def _described(preprocessing: Preprocessing) -> dict[str, Any]:
    """Returns the preprocessing as the options that decide it."""
    interpolation = preprocessing.get("interpolation", "bilinear")
    return {
        "image_size": preprocessing["crop"],
        "fit": preprocessing.get("fit", "crop"),
        "channels": len(preprocessing["mean"]),
        "bits": (bands_of(preprocessing) or (3, 8))[1],
        "resize": f"{preprocessing['resize']} pixels, {interpolation}",
    }


def rows_of(predictions: Predictions, model: ClassifierModule) -> Iterator[Row]:
    """Makes a row for each image of a split."""
    images = predictions.images
    files = getattr(images, "files", None)
    known = predictions.known.tolist()
    correct = predictions.correct.tolist()
    for at, index in enumerate(predictions.indices.tolist()):
        row: dict[str, object] = dict.fromkeys(COLUMNS)
        row["path"] = images.name(index) if files is None else spelt(str(files[index]))
        if known[at]:
            row["label"] = model.label_names(predictions.predicted[at])
            row["confidence"] = float(predictions.confidence[at])
            row["true_label"] = model.label_names(predictions.labels[at])
            row["correct"] = correct[at]
        else:
            row["error"] = "has no label, or cannot be read as an image"
        yield row
