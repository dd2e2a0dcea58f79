"""The plots of a finished run as image files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, Trainer

from project.engine.run.folder import PLOTS
from project.engine.run.loggers import tensorboards
from project.engine.run.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CLASSES = 100  # of which bars can be read


class PlotFiles(Callback):
    """Draws curves, confusion matrix and classes into PNG files in ``plots/`` in the run's folder, after the test."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draws them; the curves where there is a TensorBoard, the classes where they are at most a hundred."""
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by a connector
            return
        from project.analysis.curves import read_curves
        from project.analysis.plots import class_figure, confusion_figure, curves_figure

        run, test, names = Path(trainer.default_root_dir), pl_module.results["test"], pl_module.class_names
        (run / PLOTS).mkdir(exist_ok=True)
        for logger in tensorboards(trainer):
            logger.save()
            _write(curves_figure(read_curves(run)), run / PLOTS / "curves.png")
        if test.confusion.dim() == 2:  # of several labels an image there is none
            _write(confusion_figure(test.confusion, names), run / PLOTS / "confusion_matrix.png")
        if len(names) <= _MOST_CLASSES:
            _write(class_figure(test.per_class, names), run / PLOTS / "classes.png")


def _write(figure: "Figure", path: Path) -> None:
    with whole_file(path) as partial:
        figure.savefig(partial, format="png")
