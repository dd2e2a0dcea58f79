"""First cells of the notebooks: their working folder, and their checkpoint or runs."""

import os
from pathlib import Path

from project.engine.cli.command_line import import_modules
from project.engine.errors import UserError

_here: Path | None = None  # kept, as the cell may run again


def start() -> Path:
    """Changes to the folder that holds ``runs/``, shows mistakes as one line, and imports the modules of ``IMPORT``.

    Returns:
        The notebook's own folder.
    """
    global _here
    _here = _here or Path.cwd()
    folders = [_here, *_here.parents]
    with_runs = [folder for folder in folders if (folder / "runs").is_dir()]
    with_code = [
        folder for folder in folders if (folder / __package__.split(".")[0] / "fit.py").exists()
    ]
    os.chdir([*with_runs, *with_code, _here][0])
    UserError._render_traceback_ = lambda error: [f"error: {error}"]  # type: ignore[attr-defined]  # IPython asks for it
    import_modules([names] if (names := os.environ.get("IMPORT")) else [])
    return _here


def find_checkpoint() -> Path:
    """Finds the checkpoint of the environment variable ``CHECKPOINT``, by default the newest best one."""
    newest = max(Path("runs").glob("*/checkpoints/best.ckpt"), key=os.path.getmtime, default=None)
    found = os.environ.get("CHECKPOINT") or newest
    if found is None:
        raise UserError(
            "there is no checkpoint under runs/ yet; train one with `make fit`, or set CHECKPOINT above"
        )
    return Path(found)


def find_runs() -> dict[str, Path]:
    """Finds the runs of the environment variable ``RUNS``, by default all finished ones, by their names."""
    finished = sorted(path.parent for path in Path("runs").glob("*/metrics.json"))
    runs = [Path(name) for name in os.environ.get("RUNS", "").split()] or finished
    if len({*runs}) < 2:
        raise UserError("two finished runs are needed; train more with `make fit`, or set RUNS")
    names = [run.name for run in runs]
    return {run.name if names.count(run.name) == 1 else str(run): run for run in runs}
