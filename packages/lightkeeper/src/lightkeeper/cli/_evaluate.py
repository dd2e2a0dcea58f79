"""Workings of ``evaluate``: a checkpoint's data opened again, measured exactly, and written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NoReturn

from jsonargparse.typing import Path_fc
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from ..exact._errors import UserError, require
from ..exact._files import write_text
from ..images._checkpoint import ABOUT, About, DescribedCheckpointIO, read_checkpoint
from ..images._checkpoints import (
    measured,
    note_change,
    remembered_data,
    require_datasets,
    require_there,
    restore_data,
    states_of_data,
)
from ..images._data_module import ImageDataModule
from ..images._image_files import ImageFilesDataModule
from ..images._predictions import CollectPredictions
from ..images._preprocessing import Preprocessing
from ..images._settings import remembered
from ..images._unseen import cut_as_in_training, was_trained_on
from ._classes import ClassParser
from ._command import Command
from ._command_line import CommandLine
from ._entry import run_command
from ._folder import Metrics


class EvaluateCommand(Command):
    """Measures a checkpoint on its own data, or on other images of its classes.

    A subclass defines what people change: the tables, and what is written of each class and image.
    """

    about: About
    """Facts of the checkpoint about itself."""
    needs_logits = False
    """True if the model's ``predictions`` shall have logits; known before the trainer is built."""
    _trained_on: type[ImageDataModule] | None = None
    _remembered: Mapping[str, object] = {}
    _states: Mapping[str, object] = {}

    def default_classes(self, line: CommandLine) -> Mapping[str, type]:
        """Opens the checkpoint, and returns the data that it was trained with."""
        named = [config["checkpoint"] for config in line.configs if config.get("checkpoint")]
        if paths := [*named, *line.positionals]:  # unlike with --help
            self.open_checkpoint(str(paths[-1]))
        return {} if self._trained_on is None else {"data": self._trained_on}

    def open_checkpoint(self, path: str) -> None:
        """Reads what a checkpoint says of itself, and of the data that it was trained with."""
        checkpoint = read_checkpoint(path)
        self.about = checkpoint[ABOUT]
        self._states = states_of_data(checkpoint, ImageDataModule)
        try:
            self._trained_on, options = remembered_data(self.about, ImageDataModule)
        except UserError:
            if "data" not in self.given:
                raise
            return
        if "data.root" in self.given:
            options.pop("root", None)
        self._remembered = options

    def default_arguments(self, cls: type) -> Mapping[str, object]:
        """Returns the options of the data in training, if it is of the same class."""
        if cls is not self._trained_on:
            return {}
        try:
            require_datasets(self.about, {name.removeprefix("data.") for name in self.given})
        except UserError as error:
            error.option = f"--data.{error.option}"
            raise
        return self._remembered

    def before_measuring(self) -> None:
        """Changes the model before it is measured, such as by a temperature."""

    def keep_in_checkpoint(self, **facts: object) -> None:
        """Changes what the checkpoint says of itself; the file is written whole or not at all.

        Raises:
            UserError: The file is read-only, or holds another network than was measured.
        """
        path = Path(self.config.checkpoint).resolve()  # not a link to it
        mode = path.stat().st_mode
        if not mode & 0o222:
            raise UserError(f"'{path}' is read-only")
        checkpoint = read_checkpoint(path)
        if checkpoint[ABOUT]["step"] != self.about["step"]:  # by a training that goes on
            raise UserError(f"'{path}' was replaced while it was measured; run this again")
        checkpoint[ABOUT] |= facts
        DescribedCheckpointIO(path.parent).save_checkpoint(checkpoint, path)
        path.chmod(mode)

    def show_results(self, metrics: Metrics, split: str) -> None:
        """Prints metrics, which it may add to before they are written."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the checkpoint, the split and the files to write."""
        super().add_arguments_to_parser(parser)
        assert isinstance(parser, ClassParser)
        parser.add_argument(
            "checkpoint", type=str, help="The checkpoint, as in runs/NAME/checkpoints/best.ckpt."
        )
        parser.add_import()
        parser.add_argument(
            "--split",
            type=Literal["val", "test", "all"],
            default="test",
            help="Images to measure on: val, test, or all of a folder or CSV that it was not trained"
            " on.",
        )
        parser.add_argument(
            "--output",
            type=Path_fc,
            help="A JSON file for the metrics, by default beside the checkpoint.",
        )
        parser.link_arguments("checkpoint", "model.ckpt_path")

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Adds what collects predictions, with logits if they are needed."""
        self.trainer_defaults["callbacks"] = [CollectPredictions(self.needs_logits)]
        return super().instantiate_trainer(**kwargs)

    @classmethod
    def main(cls) -> NoReturn:
        """Runs the command as a program."""
        run_command(lambda: cls().evaluate())

    def evaluate(self) -> None:
        """Measures, writes the metrics, and shows them."""
        with self.options_in_full():
            self._evaluate()

    def _evaluate(self) -> None:
        checkpoint = self.config.checkpoint
        split = self.config.split
        self._require_fitting_data()
        restore_data(self.datamodule, self._states)
        if split == "all":
            if not isinstance(self.datamodule, ImageFilesDataModule):
                raise UserError("--split all takes image files; name a folder or a CSV with --data")
            self.datamodule.test_on_all()
        self.require_unseen(split)
        stage = "val" if split == "val" else "test"
        limit = f"limit_{stage}_batches"
        require(getattr(self.trainer, limit) != 0, limit, 0, "above 0")
        output = self.config.output
        if output is None and self.measures_all(stage):
            output = Path(f"{checkpoint.removesuffix('.ckpt')}.{split}.metrics.json")
            if not os.access(output.parent, os.W_OK):
                raise UserError(f"'{output}' may not be written; name another file", "--output")
        self.before_measuring()
        evaluate = self.trainer.validate if stage == "val" else self.trainer.test
        evaluate(self.model, datamodule=self.datamodule, verbose=False)
        if not self.trainer.is_global_zero:
            return
        metrics = {
            "checkpoint": checkpoint,
            "step": self.about["step"],
            "data": {
                "class_path": type(self.datamodule).__name__,
                "init_args": remembered(self.datamodule.hparams)[0],
            },
            "split": split,
            **measured(self.trainer, self.model).get(stage, {}),
        }
        try:
            self.show_results(metrics, split)
        finally:  # also if nobody reads on, as head
            if output is not None:
                write_text(output, json.dumps(metrics, indent=2, default=str) + "\n")
        written = "some of the images: written to no file without --output"
        self.say(f"\n  {written if output is None else f'written to {output}'}")

    def measures_all(self, stage: str) -> bool:
        """Returns False if an option limits the batches of ``val`` or ``test``."""
        limit = getattr(self.trainer, f"limit_{stage}_batches")
        return isinstance(limit, float) and limit == 1

    def _require_fitting_data(self) -> None:
        """Refuses classes, image sizes and fits other than in training."""
        path = self.config.checkpoint
        data = self.datamodule
        require_there(data, dict(self._remembered))
        data.expect_classes(self.model.class_names, path)
        trained = _as_options(self.model.preprocessing)
        for option, value in _as_options(data.preprocessing).items():
            if value != trained[option]:
                raise UserError(
                    f"'{path}' was trained with --data.{option} {trained[option]}, but would get"
                    f" {value}"
                )

    def require_unseen(self, split: str) -> None:
        """Refuses images that it was trained on, which other options of the data may have cut."""
        if not self.trainer.is_global_zero:
            return
        self.datamodule.prepare_data()
        if changes := self.about.get("changes_of_data"):
            self.note(f"note: it may have been trained on some of these: {'; '.join(changes)}")
        is_other = any(name.startswith(("data", "split")) for name in self.given)
        if not (is_other or note_change(self.about, self.datamodule)):
            return
        if was_seen := was_trained_on(self.about, self.datamodule, split):
            advice = cut_as_in_training(self.about, self.datamodule) if split != "all" else ""
            raise UserError(
                f"--split {split}: some of these images are those it was trained on; name others"
                f" with --data{advice and f', or {advice}'}"
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
