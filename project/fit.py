"""``python -m project.fit``: train a network, then test its best checkpoint once."""

import gc
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    gc.disable()  # a quarter faster imports, which create no garbage; main() enables it again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends them without a traceback

from jsonargparse import Namespace
from lightkeeper.cli import FitCommand

import project.data as data_modules
from project.analysis.tables import metrics_table
from project.callbacks import (
    ConfidentMistakesPlot,
    ConfusionMatrixPlot,
    FirstBatchPlot,
    ImagesPerSecond,
    LearningRate,
    MetricsCSV,
    PlotFiles,
)
from project.cli import ProjectCLI
from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from project.model.networks import is_path
from project.model.pretrained import fill_in_preprocessing_of_weights


class FitCLI(ProjectCLI, FitCommand):
    """Trains, then tests; defines defaults, help, callbacks and the table at the end."""

    module = "project.fit"
    description = (
        "Trains a network, then tests its best checkpoint once. Without any option: on the built-in"
        " data."
    )
    build_model = ImageClassifier
    classes = {"data": SyntheticFlowersDataModule, "model": ImageClassifier}
    defaults = {
        "trainer.max_epochs": 5,
        "trainer.log_every_n_steps": 10,
        "trainer.default_root_dir": "runs",
        "trainer.enable_model_summary": False,
    }
    help_texts = {
        "seed_everything": "The random seed of everything; 0 by default.",
        "trainer.accelerator": "cpu, gpu or another one; by default what there is.",
        "trainer.devices": "A number of devices, a list of their numbers, or auto.",
        "trainer.num_nodes": "Machines, by default those that torchrun or srun has started.",
        "trainer.strategy": "How devices train together; by default ddp.",
        "trainer.precision": "32-true, bf16-mixed or 16-mixed; by default the fastest.",
        "trainer.max_epochs": "Ends training after this number of epochs.",
        "trainer.accumulate_grad_batches": "Batches whose gradients make one step.",
        "trainer.gradient_clip_val": "The largest norm of a step's gradients.",
        "trainer.callbacks": "Callbacks to add, by the names of their classes.",
        "trainer.fast_dev_run": "Tries one batch of each set, and writes nothing.",
    }
    examples = (
        "python -m project.fit --data path/to/folder --data.image_size 160 --name mine",
        "python -m project.fit --config configs/recipes/adamw.yaml --trainer.max_epochs 10",
        "python -m project.fit --model.optimizer AdamW --model.optimizer.lr 0.001"
        " --trainer.devices 2",
    )
    default_callbacks = {
        "learning_rate": LearningRate,
        "images_per_second": ImagesPerSecond,
        "first_batch": FirstBatchPlot,
        "confusion_matrix": ConfusionMatrixPlot,
        "confident_mistakes": ConfidentMistakesPlot,
        "metrics_csv": MetricsCSV,
        "plots": PlotFiles,
    }
    first_callbacks = (MetricsCSV,)

    def prepare_options(self, config: Namespace, earlier: Mapping[str, object]) -> None:
        """Fills in options that depend on pretrained weights."""
        fill_in_preprocessing_of_weights(config, earlier)

    def show_results(self, metrics: dict[str, Any]) -> None:
        """Prints the final metrics, the best checkpoint, and what to do next."""
        names = ",".join(self.modules_to_import())
        import_option = f" --import {names}" if names else ""
        environment = f"IMPORT={names} " if names else ""
        best = shlex.quote(str(self.run.best))
        run = shlex.quote(str(self.run.path))
        data = "".join(f" {shlex.quote(flag)}" for flag in self.data_flags())
        selection = metrics["selection"]
        choice = f"step {metrics['step']}, the last"
        if selection:
            choice = f"epoch {metrics['epoch']}, by {selection['monitor']}"
        splits = {"validation": metrics["val"], "test": metrics["test"]}
        lines = [
            "",
            metrics_table(
                {name: results for name, results in splits.items() if results},
                has_groups=self.has_groups,
            ),
            "",
            f"  best checkpoint   {self.run.best} ({choice})",
            f"  curves, images    tensorboard --logdir {shlex.quote(str(self.run.path.parent))}",
            f"  class by class    python -m project.evaluate {best}{import_option}{data}",
            f"  label images      python -m project.predict {best} PHOTOS{import_option}",
            f"  one page          python -m project.report {run}{import_option}",
        ]
        if (Path(__file__).parents[1] / "notebooks").is_dir():
            lines.append(f"  explore           {environment}CHECKPOINT={best} make notebook")
        if isinstance(self.datamodule, SyntheticFlowersDataModule):
            lines.append("  your own images   python -m project.fit --data FOLDER")
        self.say("\n".join(lines))

    def modules_to_import(self) -> list[str]:
        """Returns the modules of your own classes, which other commands must import."""
        built_in = [ImageClassifier, *vars(data_modules).values()]
        # checkpoints of some subclasses name ours, which then opens them
        opens_as_ours = self.model.about.get("model") == ImageClassifier.__name__
        classes = [type(self.datamodule), ImageClassifier if opens_as_ours else type(self.model)]
        modules = {cls.__module__ for cls in classes if cls not in built_in}
        if is_path(self.model.arch):
            modules.add(self.model.arch.rpartition(".")[0])
        return sorted(modules)


if __name__ == "__main__":
    FitCLI.main()
