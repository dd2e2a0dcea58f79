"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

import csv
import json
from typing import Any

from jsonargparse.typing import Path_fc
from lightkeeper.cli import EvaluateCommand
from lightkeeper.exact import UserError
from lightning.pytorch.cli import LightningArgumentParser

from project.analysis.tables import class_rates, class_table, metrics_table
from project.cli import ProjectCLI
from project.model import ImageClassifier
from project.model.pretrained import fill_in_preprocessing

COLUMNS = ["path", "label", "confidence", "error", "true_label", "correct"]
"""The columns of ``--output_predictions``."""


def load_classifier(ckpt_path: str) -> ImageClassifier:
    """Loads the classifier from a checkpoint."""
    return ImageClassifier.load_from_checkpoint(ckpt_path)


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
    )

    def before_instantiate_classes(self) -> None:
        """Fills in the preprocessing of training for options that are not given."""
        options = self.config.data.get("init_args", {})
        fill_in_preprocessing(options, self.about["preprocessing"])

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the file of predictions to the options."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--output_predictions",
            type=Path_fc,
            help="A CSV file for the predictions of each image, by default none.",
        )

    def show_results(self, metrics: dict[str, Any], split: str) -> None:
        """Prints the metrics of each class, which it adds, then those of the whole split."""
        if self.config.output_predictions is not None:
            self.write_predictions(self.config.output_predictions)
        if "confusion_matrix" in metrics:  # not where steps measure something else
            rates = class_rates(metrics)
            metrics["per_class"] = dict(zip(self.model.class_names, rates, strict=True))
            self.say(f"{class_table(self.model.class_names, rates)}\n")
        self.say(metrics_table({split: metrics}))

    def write_predictions(self, path: Path_fc) -> None:
        """Writes a row for each image."""
        predictions = self.model.predictions
        if predictions is None:
            raise UserError("--output_predictions needs a model whose steps return logits")
        known, correct = predictions.known.tolist(), predictions.correct.tolist()
        confidence = predictions.confidence.numpy()  # float32, which has the shortest text
        with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for at in range(len(known)):
                row: dict[str, object] = {"path": predictions.path(at)}
                if known[at]:
                    row |= {
                        "label": self.model.label_names(predictions.predicted[at]),
                        "confidence": confidence[at],
                        "true_label": self.model.label_names(predictions.labels[at]),
                        "correct": json.dumps(correct[at]),
                    }
                else:
                    row["error"] = "has no label"
                writer.writerow(row)
        self.say(f"  each image's prediction is in {path}\n")


if __name__ == "__main__":
    EvaluateCLI.main()
