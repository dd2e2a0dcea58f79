"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from lightning.pytorch.cli import LightningArgumentParser

from project.analysis.data import remembered_data, require_datasets, require_there, was_trained_on
from project.analysis.evaluation import EVALUATED, evaluated_rows
from project.analysis.tables import (
    chosen_output,
    class_table,
    metrics_table,
    replacing,
    require_writable,
    write_json,
)
from project.cli import ProjectCLI
from project.data import FolderDataModule, ImageDataModule
from project.engine import CollectPredictions, ImageFilesDataModule
from project.engine.cli.class_parser import ClassParser, Screen
from project.engine.cli.classes import find_class
from project.engine.cli.command_line import CommandLine
from project.engine.cli.entry import one_line_errors
from project.engine.cli.parser import import_modules
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, About, read_checkpoint
from project.engine.run.rows import RowWriter, ending_of
from project.engine.run.settings import plain_options
from project.model import ImageClassifier
from project.model.metrics import class_rates
from project.model.pretrained import follow_preprocessing


def load_classifier(ckpt_path: str) -> ImageClassifier:
    """Builds the model that a checkpoint holds."""
    return ImageClassifier.load_from_checkpoint(ckpt_path)


class EvaluateCLI(ProjectCLI):
    """Measures a checkpoint."""

    module = "project.evaluate"
    description = "Measures a checkpoint on the data it was trained with, or on what --data says."
    build_model = staticmethod(load_classifier)
    classes: ClassVar[dict[str, Any]] = {}
    defaults = dict.fromkeys(
        ("trainer.logger", "trainer.enable_checkpointing", "trainer.enable_model_summary"), False
    )
    screen = Screen(
        trainer=(
            "accelerator",
            "devices",
            "num_nodes",
            "strategy",
            "precision",
            "limit_test_batches",
        ),
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

    def default_classes(self, line: CommandLine) -> dict[str, Any]:
        """Returns the data that the checkpoint was trained with."""
        if not line.positionals and not any("help" in flag for flag in line.flags):
            raise UserError("the checkpoint is missing; see --help")
        import_modules(line.values("--import"))
        self._remembered = _remembered_data(line)
        self._root_is_given = any(
            word.startswith(("--data.root", "--data.init_args.root")) for word in line.words
        )
        return {"data": self._remembered} if self._remembered else {}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the files to write."""
        super().add_arguments_to_parser(parser)
        split = "The images to measure on: val, test, or all of a folder or CSV that it was not trained on."
        output = "A JSON file for the metrics, by default beside the checkpoint."
        predictions = "A .csv or .jsonl file for the predictions of each image, by default none."
        parser.add_argument(
            "checkpoint", type=str, help="The checkpoint, as in runs/NAME/checkpoints/best.ckpt."
        )
        assert isinstance(parser, ClassParser)
        parser.add_import()
        parser.add_argument(
            "--split", type=Literal["val", "test", "all"], default="test", help=split
        )
        parser.add_argument("--output", type=str | None, default=None, help=output)
        parser.add_argument("--output_predictions", type=str | None, default=None, help=predictions)
        parser.link_arguments("checkpoint", "model.ckpt_path")

    def before_instantiate_classes(self) -> None:
        """Prepares images as the checkpoint says, where the options don't."""
        self._about: About = read_checkpoint(self.config.checkpoint)[ABOUT]
        follow_preprocessing(self.config.data.get("init_args", {}), self._about["preprocessing"])

    def evaluate(self) -> None:
        """Measures, prints a table, and writes the metrics."""
        path, split, first = self.config.checkpoint, self.config.split, self.trainer.is_global_zero
        output = chosen_output(self.config.output, Path(path).with_suffix(f".{split}.metrics.json"))
        predictions: str | None = self.config.output_predictions
        self._require_fitting_data()
        if split == "all":
            self._take_all()
        ending = ending_of("--output_predictions", predictions) if predictions else ""
        if first:
            require_writable("--output", output)
            if predictions:
                require_writable("--output_predictions", predictions)
        measured = (
            "val" if split == "val" else "test"
        )  # which has all images where all are measured
        collect = CollectPredictions()
        if predictions:
            self.trainer.callbacks.append(collect)  # type: ignore[attr-defined]  # set by a connector
        measure = self.trainer.validate if split == "val" else self.trainer.test
        measure(self.model, datamodule=self.datamodule, verbose=False)
        if measured not in self.model.results:
            raise UserError(
                f"nothing was measured; see --trainer.limit_{measured}_batches, or the model's {measured}_step"
            )
        if not first:
            return
        class_names = self.model.class_names
        if predictions and collect.predictions is not None:
            with (
                replacing("--output_predictions", predictions) as partial,
                open(partial, "wb") as file,
            ):
                writer = RowWriter(file, EVALUATED, ending)
                for rows in evaluated_rows(
                    collect.predictions, self.datamodule.splits[split], class_names
                ):
                    writer.write(rows)
            self.say(f"  each image's prediction is in {predictions}\n")
        metrics, kind = self.model.results[measured], type(self.datamodule)
        data = {
            "class_path": kind.__name__,
            "init_args": plain_options(self.datamodule.hparams, kind),
        }
        rates = class_rates(metrics)
        per_class = dict(zip(class_names, rates, strict=True))
        found = {
            "checkpoint": path,
            "data": data,
            "split": split,
            **metrics,
            "per_class": per_class,
        }
        write_json("--output", output, found)
        self.say(f"{class_table(class_names, rates)}\n\n{metrics_table({split: metrics})}")
        self.say(f"\n  written to {output}")

    def _require_fitting_data(self) -> None:
        """Refuses classes, image sizes and fits other than in training; notes other differences of preprocessing."""
        path, data = self.config.checkpoint, self.datamodule
        if not self._root_is_given:
            require_there(data, self._remembered.get("init_args", {}))
        data.expect_classes(self.model.class_names, path)
        if (
            self._about["data"] is not None
            and self._about["data"]["class_path"] == type(data).__name__
        ):
            require_datasets(self._about, data.hparams)
        now, then = data.preprocessing, self.model.preprocessing
        (crop, fit), (crop_then, fit_then) = (
            (one["crop"], one.get("fit", "crop")) for one in (now, then)
        )
        scaled, scaled_then = (
            f"{one['resize']} pixels, {one.get('interpolation', 'bilinear')}" for one in (now, then)
        )
        if crop != crop_then:
            raise UserError(
                f"'{path}' was trained on {crop_then} pixels, but would get {crop}; see --data.image_size"
            )
        if fit != fit_then:
            raise UserError(
                f"'{path}' was trained on images fitted by {fit_then}, but would get {fit}; see --data.fit"
            )
        if (len(now["mean"]), now.get("bits")) != (len(then["mean"]), then.get("bits")):
            raise UserError(
                f"'{path}' was trained with other --data.channels or --data.bits; leave them out"
            )
        if scaled != scaled_then:
            self.note(f"images are scaled to {scaled}; in training it was {scaled_then}")

    def _take_all(self) -> None:
        data = self.datamodule
        if not isinstance(data, ImageFilesDataModule):
            raise UserError("--split all takes image files; name a folder or a CSV with --data")
        data.test_on("all")
        if seen := was_trained_on(self._about, data):
            raise UserError(
                "--split all: some of these images are those it was trained on; name others with --data"
            )
        if seen is None:
            self.note(
                "what it was trained on is not here, so whether these images were among it is not known"
            )


def _remembered_data(line: CommandLine) -> dict[str, Any]:
    """Returns the data that the checkpoint of the command line was trained with, as the default of ``--data``."""
    *_, ckpt_path = (None, *line.positionals)
    *_, data = (None, *line.values("--data"))
    if ckpt_path is None:  # the parser says that it is required
        return {}
    about: About = read_checkpoint(ckpt_path)[ABOUT]
    try:
        find_class(
            ImageDataModule, data
        )  # imports the user's own module, so that the checkpoint's class is found by its name
        found, remembered = remembered_data(about)
        if not any(word.startswith(("--data", "--config", "-c")) for word in line.words):
            require_datasets(about, ())
    except UserError:
        if data:
            return {}  # it is named, so nothing need be remembered
        raise
    return {"class_path": f"{found.__module__}.{found.__qualname__}", "init_args": remembered}


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        EvaluateCLI().evaluate()


if __name__ == "__main__":
    main()
