"""``python -m project.evaluate``: exact metrics of a checkpoint, class by class."""

from typing import Any

from project.analysis.tables import class_rates, class_table, metrics_table
from project.cli import ProjectCLI
from project.engine import EvaluateCommand
from project.model import ImageClassifier
from project.model.pretrained import fill_in_preprocessing


def load_classifier(ckpt_path: str) -> ImageClassifier:
    """Loads the classifier from a checkpoint."""
    return ImageClassifier.load_from_checkpoint(ckpt_path)


class EvaluateCLI(ProjectCLI, EvaluateCommand):
    """Evaluates a checkpoint on any data; defines the defaults, the help and the tables."""

    module = "project.evaluate"
    description = "Measures a checkpoint on the data it was trained with, or on what --data says."
    build_model = staticmethod(load_classifier)
    class_rates = staticmethod(class_rates)
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
        "class_balance",
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

    def show_results(self, metrics: dict[str, Any], split: str) -> None:
        """Prints the metrics of each class, then those of the whole split."""
        rates = metrics["per_class"]
        self.say(f"{class_table(list(rates), list(rates.values()))}\n")
        self.say(metrics_table({split: metrics}))


if __name__ == "__main__":
    EvaluateCLI.main()
