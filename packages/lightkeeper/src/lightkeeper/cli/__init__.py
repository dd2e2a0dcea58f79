"""Commands with one-line errors: training, evaluation, predictions, export.

Examples:
    A command is a subclass that says what people change:

    >>> from lightning.pytorch.callbacks import DeviceStatsMonitor
    >>> class Fit(FitCommand):
    ...     defaults = {"trainer.max_epochs": 4}
    ...     default_callbacks = {"device_stats": DeviceStatsMonitor}
    >>> class Evaluate(EvaluateCommand):
    ...     description = "Measures a checkpoint."

    Commands on files have a parser and call the library; ``CommandParser.run`` runs them:

    >>> parser = CommandParser(prog="label")
    >>> _ = parser.add_argument("--output", type=str)
    >>> def label(options):
    ...     model = MyClassifier.load_from_checkpoint(options.checkpoint)
    ...     return label_files(model, lambda row: {"confidence": row.max().numpy()}, options)
    >>> def main():
    ...     CommandParser.run(lambda: label(parser.parse_args()))
    >>> [function.__name__ for function in (export_model, read_metrics)]
    ['export_model', 'read_metrics']
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._apart import run_apart as run_apart
    from ._entry import run_command as run_command
    from ._evaluate import EvaluateCommand as EvaluateCommand
    from ._export import export_model as export_model
    from ._fit import FitCommand as FitCommand
    from ._folder import RunFolder as RunFolder, read_metrics as read_metrics
    from ._parser import CommandParser as CommandParser, import_modules as import_modules
    from ._predict import label_files as label_files

_MODULES = {
    "run_apart": "_apart",
    "run_command": "_entry",
    "EvaluateCommand": "_evaluate",
    "export_model": "_export",
    "FitCommand": "_fit",
    "RunFolder": "_folder",
    "read_metrics": "_folder",
    "CommandParser": "_parser",
    "import_modules": "_parser",
    "label_files": "_predict",
}

__getattr__ = lazy_names(__name__, _MODULES)
