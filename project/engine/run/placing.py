"""Where what the user adds to a run writes: in the run's folder; and which run of a service it continues."""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger

from ..errors import UserError
from .loggers import CSV_LOGS, RESUMED_BY, RunCSVLogger, RunMLFlowLogger
from .tensorboard import RunLogger

_SQLITE = "sqlite:///"


def placed(loggers: Any, folder: Path, known: Mapping[str, Any] | None = None) -> Any:
    """Lets the loggers of a config write into a run's folder.

    Args:
        loggers: The value of ``--trainer.logger``: one logger, several, a truth value or None.
        folder: The run's folder. Relative places are within it; absolute ones stay.
        known: What :func:`project.engine.run.loggers.service_runs` was when the checkpoint that the run resumes from was made,
            unchecked.

    Returns:
        The same with Lightning's CSV, TensorBoard and MLflow loggers replaced by those that can resume.

    Raises:
        UserError: TensorBoard's files would not lie in the run's folder itself, or two loggers would write the same file.
    """
    left = {name: list(runs) for name, runs in (known or {}).items() if isinstance(runs, list)}
    if not isinstance(loggers, list):
        return _placed(loggers, folder, left)
    specs = [_placed(logger, folder, left) for logger in loggers]
    files = [_target(spec) for spec in specs if class_of(spec) in (RunCSVLogger, RunLogger)]
    if len(set(files)) < len(files):
        raise UserError(
            "--trainer.logger: two loggers would write the same file; give one another save_dir, or leave it out"
        )
    return specs


def _placed(spec: Any, folder: Path, left: dict[str, list[Any]]) -> Any:
    if not isinstance(spec, Namespace):
        return spec
    kind = class_of(spec)
    if kind in (CSVLogger, RunCSVLogger):
        return _in_folder(spec, RunCSVLogger, folder)
    if kind in (TensorBoardLogger, RunLogger):
        given = spec.init_args
        elsewhere = given.save_dir is None or (folder / given.save_dir).resolve() != folder.resolve()
        if elsewhere or (given.name, given.version, given.sub_dir) != ("lightning_logs", None, None):
            raise UserError(
                "--trainer.logger: TensorBoard's files lie in the run's folder; leave save_dir, name, version and sub_dir out"
            )
        return _in_folder(spec, RunLogger, folder)
    spec = _resumed(within(spec, "save_dir", folder), kind, left)
    return _mlflow_in_folder(spec, folder) if kind in (MLFlowLogger, RunMLFlowLogger) else spec


def _target(spec: Namespace) -> tuple[Any, ...]:
    given = spec.init_args
    return (spec.class_path, given.save_dir, given.name, given.version)


def _resumed(spec: Namespace, kind: Any, left: dict[str, list[Any]]) -> Namespace:
    """Continues what a service knows as the run, unless the user names another.

    Args:
        spec: A logger.
        kind: Its class.
        left: By the class of loggers, what a service called the run for each of them that has not been placed yet.
    """
    base = next((base for base in RESUMED_BY if isinstance(kind, type) and issubclass(kind, base)), None)
    runs = left.get(base.__name__) if base is not None else None
    name = runs.pop(0) if runs else None
    if base is None or not isinstance(name, str) or not re.fullmatch(r"\w[\w-]{0,63}", name):
        return spec
    given = spec.init_args
    if any(given.get(argument) is not None for argument in ("version", "id", "run_id")):
        return spec
    changed: Namespace = spec.clone()
    changed.init_args[RESUMED_BY[base]] = name
    return changed


def _mlflow_in_folder(spec: Namespace, folder: Path) -> Namespace:
    """Puts MLflow's database into the run's folder: a file store, Lightning's default, is refused since MLflow 3.13."""
    changed: Namespace = spec.clone()
    changed.class_path = f"{RunMLFlowLogger.__module__}.{RunMLFlowLogger.__qualname__}"
    given, files = changed.init_args, Path(changed.init_args.save_dir or folder)
    if not given.tracking_uri:
        given.tracking_uri = f"{_SQLITE}{files / 'mlflow.db'}"
    elif given.tracking_uri.startswith(_SQLITE):
        given.tracking_uri = f"{_SQLITE}{folder / given.tracking_uri.removeprefix(_SQLITE)}"
    if given.artifact_location is None and given.tracking_uri.startswith(_SQLITE):
        given.artifact_location = files.resolve().as_uri()
    return changed


def class_of(spec: Any) -> Any:
    """The class that a part of a config names, which the parser has imported; None where it is no class."""
    if not isinstance(spec, Namespace) or "class_path" not in spec:
        return None
    module, _, name = spec.class_path.rpartition(".")
    return getattr(import_module(module), name)


def within(spec: Any, argument: str, folder: Path) -> Any:
    """Puts a relative path among a class's arguments into a folder."""
    given = spec.get("init_args") if isinstance(spec, Namespace) else None
    path = given.get(argument) if given is not None else None
    if path is None:
        return spec
    changed = spec.clone()
    changed.init_args[argument] = str(folder / path)
    return changed


def _in_folder(spec: Namespace, kind: type, folder: Path) -> Namespace:
    changed: Namespace = within(spec, "save_dir", folder).clone()
    changed.class_path = f"{kind.__module__}.{kind.__qualname__}"
    if changed.init_args.name == "lightning_logs":  # Lightning's default
        changed.init_args.name = CSV_LOGS if kind is RunCSVLogger else ""
    if changed.init_args.version is None:  # or Lightning would count, and a run that resumes have several
        changed.init_args.version = ""
    return changed
