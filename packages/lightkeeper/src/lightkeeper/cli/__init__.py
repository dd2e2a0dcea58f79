"""Commands with one-line errors: training, evaluation, predictions.

Examples:
    A command is a subclass that says what people change. A ``LightningCLI`` beside it has the
    attributes ``model`` and ``datamodule``, as in the template:

    >>> from lightning.pytorch.callbacks import DeviceStatsMonitor
    >>> class Fit(FitCommand):
    ...     defaults = {"trainer.max_epochs": 4}
    ...     default_callbacks = {"device_stats": DeviceStatsMonitor}
    >>> class Evaluate(EvaluateCommand):
    ...     description = "Measures a checkpoint."

    Commands on files have a parser and call the library; ``run_command`` runs them:

    >>> parser = CommandParser(prog="label")
    >>> _ = parser.add_argument("--output", type=str)
    >>> def label(options):
    ...     model = MyClassifier.load_from_checkpoint(options.checkpoint)
    ...     return label_files(model, lambda row: {"confidence": row.max().numpy()}, options)
    >>> def main():
    ...     run_command(lambda: label(parser.parse_args()))

    Scripts start trainings that end with them, and read the metrics of finished runs:

    >>> run_apart(["true"])
    0
    >>> RunFolder("runs", "mine").best
    PosixPath('runs/mine/checkpoints/best.ckpt')
    >>> read_metrics("runs/mine")
    Traceback (most recent call last):
    lightkeeper.exact._errors.UserError: 'runs/mine' is no finished run: ...
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._apart import run_apart as run_apart
    from ._entry import run_command as run_command
    from ._evaluate import EvaluateCommand as EvaluateCommand
    from ._fit import FitCommand as FitCommand
    from ._folder import RunFolder as RunFolder, read_metrics as read_metrics
    from ._parser import CommandParser as CommandParser, import_modules as import_modules
    from ._predict import label_files as label_files

_MODULES = {
    "run_apart": "_apart",
    "run_command": "_entry",
    "EvaluateCommand": "_evaluate",
    "FitCommand": "_fit",
    "RunFolder": "_folder",
    "read_metrics": "_folder",
    "CommandParser": "_parser",
    "import_modules": "_parser",
    "label_files": "_predict",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
