"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

import csv
import io
import json
import signal
from codecs import BOM_UTF8
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends imports without a traceback

from jsonargparse.typing import Path_fc
from lightkeeper.cli import EvaluateCommand
from lightkeeper.exact import UserError, note
from lightkeeper.images import Predictions
from lightning.pytorch.cli import LightningArgumentParser

from project.analysis.calibration import (
    HIGHEST,
    LOWEST,
    coverage_thresholds,
    fit_temperature,
    reliability,
)
from project.analysis.evaluation import decisions, move_thresholds, with_probabilities
from project.analysis.exported import OnnxNetwork, describe_file, load_file, serve
from project.analysis.files import require_replaceable, write_whole
from project.analysis.tables import class_rates, class_table, metrics_table
from project.cli import ProjectCLI
from project.model import ImageClassifier
from project.model.pretrained import fill_in_preprocessing

COLUMNS = ["path", "label", "confidence", "error", "true_label", "correct"]
"""The columns of ``--output_predictions``."""


def load_classifier(ckpt_path: str) -> ImageClassifier:
    """Loads the classifier from a checkpoint, or one that runs an ONNX file."""
    if ckpt_path.endswith(".onnx"):
        return load_file(ckpt_path)
    return ImageClassifier.load_from_checkpoint(ckpt_path)


def _holds_predictions(table: Path) -> bool:
    """Returns False for a file with anything else than predictions of this command."""
    rows = table.read_bytes().removeprefix(BOM_UTF8) if table.is_file() else b""
    return not rows or rows.startswith(",".join(COLUMNS).encode())


class EvaluateCLI(ProjectCLI, EvaluateCommand):
    """Evaluates a checkpoint on any data; defines the defaults, the help and the tables."""

    module = "project.evaluate"
    description = "Measures a checkpoint on the data it was trained with, or on what --data says."
    build_model = staticmethod(load_classifier)
    defaults = dict.fromkeys(
        ("trainer.logger", "trainer.enable_checkpointing", "trainer.enable_model_summary"), False
    )
    help_texts = {
        "seed_everything": "The random seed of your own code; ours evaluates without randomness.",
        "trainer.accelerator": "cpu, gpu or another one; by default what there is.",
        "trainer.devices": "A number of devices, a list of their numbers, or auto.",
        "trainer.limit_test_batches": "A number of batches, or a share from 0.0 to 1.0.",
    }
    hidden_options = (
        "flip",
        "cutout",
        "crop_scale",
        "train_interpolation",
        "train_size",
        "class_balance",
        "repeats",
        "train_transforms",
        "batch_transforms",
    )
    examples = (
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --split val --output val.json",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --data path/to/other/folder"
        " --split all",
        "python -m project.evaluate runs/mine/checkpoints/best.ckpt --output_predictions test.csv",
        "python -m project.evaluate model.onnx --data path/to/folder",
    )

    def open_checkpoint(self, path: str) -> None:
        """Opens a checkpoint, or an ONNX file, which does not say what it was trained on."""
        if path.endswith(".pt2"):
            raise UserError(f"'{path}' is no checkpoint; export one as .onnx to measure it so")
        if path.endswith(".onnx"):
            self.about = describe_file(path)
            if "data" not in self.given:
                raise UserError(f"'{path}' does not say what images to measure it on", "--data")
        else:
            super().open_checkpoint(path)

    def before_instantiate_classes(self) -> None:
        """Fills in the preprocessing of training for options that are not given."""
        self.require_options()
        self.needs_logits = self.config.calibrate or self.config.probabilities
        options = self.config.data.get("init_args", {})
        fill_in_preprocessing(options, self.about["preprocessing"])

    def require_options(self) -> None:
        """Refuses, before anything is measured, what would be lost or would change another run."""
        for option, suffix in (("output", ".json"), ("output_predictions", ".csv")):
            if self.config[option] is not None:
                require_replaceable(Path(self.config[option]), suffix, f"--{option}")
        table = self.config.output_predictions
        if table is not None and not _holds_predictions(Path(table)):
            raise UserError(  # perhaps the one that the checkpoint was trained on
                f"'{table}' is there already, and holds no predictions of this command; name"
                " another",
                "--output_predictions",
            )
        if self.config.probabilities and table is None:
            raise UserError("--probabilities adds columns to --output_predictions: name that file")
        run = Path(self.config.checkpoint).resolve().parent.parent
        is_unfinished = (run / "config.yaml").exists() and not (run / "metrics.json").exists()
        if self.config.calibrate and is_unfinished:
            raise UserError(
                f"--calibrate: '{run}' is not finished, and would be tested by that temperature;"
                " calibrate it when it is, or a copy of the checkpoint"
            )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the calibration and the file of predictions to the options."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--output_predictions",
            type=Path_fc,
            help="A CSV file for the predictions of each image, by default none.",
        )
        parser.add_argument(
            "--probabilities",
            action="store_true",
            help="Add a column for each class to --output_predictions.",
        )
        parser.add_argument(
            "--calibrate",
            action="store_true",
            help="Find a temperature on the validation set, and keep it in the checkpoint.",
        )

    def before_measuring(self) -> None:
        """Calibrates the model on the validation set, if asked, and keeps that in the checkpoint.

        Validation is measured like a test, with all views of test-time augmentation. An ONNX file
        is served what it takes.
        """
        network = self.model.network
        if isinstance(network, OnnxNetwork):
            if self.config.calibrate:
                raise UserError(
                    "--calibrate needs a checkpoint; calibrate that, and export it anew"
                )
            split = "val" if self.config.split == "val" else self.datamodule.test_split
            serve(network, self.datamodule, split)
        if not self.config.calibrate:
            return
        if self.config.split == "all":
            raise UserError("--calibrate needs a validation set, which --split all does not leave")
        if not self.measures_all("test"):  # as by fast_dev_run, too
            raise UserError(
                "--calibrate needs all validation images: leave out --trainer.limit_test_batches"
                " and --trainer.fast_dev_run"
            )
        self.require_unseen("val")
        earlier = self.model.about.pop("temperature", 1.0)
        self.datamodule.test_split = "val"
        self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
        self.datamodule.test_split = "test"
        facts = self.calibration(earlier) if self.trainer.is_global_zero else {}
        self.model.about |= self.trainer.strategy.broadcast(facts)
        self.model.thresholds = self.model.about.get("thresholds")
        if self.trainer.is_global_zero:
            self.keep_in_checkpoint(**facts)
            self.say(f"  kept in {self.config.checkpoint}\n")

    def calibration(self, earlier: float) -> dict[str, object]:
        """Returns what the checkpoint is to say of its calibration, from its predictions.

        Args:
            earlier: The temperature that it had before.
        """
        val = self.predictions("--calibrate")
        decide = partial(decisions, self.model, val.labels)
        before, labels = decide(val.logits)
        if (before.argmax(1) == labels).all():  # the smaller the temperature, the better
            raise UserError(
                f"--calibrate needs mistakes, but all {len(val.known)} validation images are"
                " classified correctly; validate on more images"
            )
        temperature = fit_temperature(val.logits, decide)
        if temperature in (LOWEST, HIGHEST):
            note(
                f"the best temperature is not between {LOWEST} and {HIGHEST}, of which it gets the"
                " nearest: validate on more images, or train for longer"
            )
        after, _ = decide(val.logits, temperature)
        of_before = after[range(len(labels)), before.argmax(1)]
        if changed := int((after.amax(1) - of_before > 1e-6).sum()):  # more than by rounding
            raise UserError(
                f"--calibrate would change {changed} of {len(labels)} predictions, by the"
                f" probabilities of {type(self.model).__name__}; the checkpoint stays as it is"
            )
        errors = [reliability(probabilities, labels).ece for probabilities in (before, after)]
        self.say(
            f"  temperature {temperature:.3f} from {len(val.known)} validation images, whose"
            f" calibration error was {errors[0]:.2%} and is {errors[1]:.2%}"
        )
        coverage = coverage_thresholds(after[range(len(labels)), labels])
        facts: dict[str, object] = {"temperature": temperature}
        if self.model.thresholds:
            move_thresholds(self.model, val.logits, earlier, temperature)
            facts["thresholds"] = self.model.thresholds
        return facts | {"coverage": coverage} if self.model.has_one_class else facts

    def predictions(self, option: str) -> Predictions:
        """Returns the predictions of the newest evaluation, which an option needs."""
        if self.model.predictions is None:
            raise UserError(f"{option} needs a model whose steps return logits")
        return self.model.predictions

    def show_results(self, metrics: dict[str, Any], split: str) -> None:
        """Prints the metrics of each class, which it adds, then those of the whole split."""
        if self.config.output_predictions is not None:
            self.write_predictions(self.config.output_predictions)
        self.compare_with_decisions(metrics)
        if "confusion_matrix" in metrics:  # not where steps measure something else
            rates = class_rates(metrics)
            metrics["per_class"] = dict(zip(self.model.class_names, rates, strict=True))
            self.say(f"{class_table(self.model.class_names, rates)}\n")
        self.say(metrics_table({split: metrics}, intervals=True, has_groups=self.has_groups))
        if isinstance(self.model.network, OnnxNetwork):
            costs = self.model.network.costs()
            metrics |= costs
            self.say(
                f"\n  {costs['megabytes']:.1f} MB; an image takes {costs['latency_ms_p50']:.1f} ms"
                f" (p95 {costs['latency_ms_p95']:.1f})"
            )

    def compare_with_decisions(self, metrics: dict[str, Any]) -> None:
        """Notes that a model's own ``predicted`` decides otherwise than its metrics count."""
        predictions = self.model.predictions
        if predictions is None or not self.model.has_one_class:
            return
        decided = int(predictions.correct.sum())
        if decided != metrics.get("correct", decided):
            note(
                f"note: {decided} images are correct by {type(self.model).__name__}.predicted, and"
                f" {metrics['correct']} by its metrics: configure_metrics needs some that decide so"
            )

    def write_predictions(self, path: Path_fc) -> None:
        """Writes a row for each image."""
        predictions = self.predictions("--output_predictions")
        names: list[str] = []
        shares = predictions.logits.numpy()  # without columns, if not kept
        if self.config.probabilities:
            names = [f"probability_{name}" for name in self.model.class_names]
            shares = with_probabilities(self.model, predictions, {}).probabilities.numpy()
        correct = predictions.correct.tolist()
        confidence = predictions.confidence.numpy()  # float32, which has the shortest text
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [*COLUMNS, *names], lineterminator="\n")
        writer.writeheader()
        for at, is_known in enumerate(predictions.known):
            row: dict[str, object] = {"path": predictions.path(at), "error": "has no label"}
            if is_known:
                row |= {
                    "label": self.model.label_names(predictions.predicted[at]),
                    "confidence": confidence[at],
                    "error": None,
                    "true_label": self.model.label_names(predictions.labels[at]),
                    "correct": json.dumps(correct[at]),
                    **dict(zip(names, shares[at], strict=False)),
                }
            writer.writerow(row)
        write_whole(Path(path), text.getvalue().encode("utf-8", "backslashreplace"))
        self.say(f"  each image's prediction is in {path}\n")


if __name__ == "__main__":
    EvaluateCLI.main()
