"""Trainings of scripts that do several: each is a run, which is trained once, and by the options that the script asks for."""

import copy
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from warnings import catch_warnings

import yaml
from jsonargparse import Namespace
from lightkeeper.cli import read_metrics, run_apart
from lightkeeper.exact import UserError, note
from lightkeeper.images import read_checkpoint

from project.data import ImageDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.networks import is_path
from project.model.pretrained import FILLED_IN

_OTHERS = "give the same, or another NAME"


class Options(FitCLI):
    """The options of ``project.fit`` alone: parsing them builds nothing, and looks at no run."""

    def __init__(self, options: list[str]) -> None:
        sys.path.append(os.getcwd())  # as of python -m project.fit
        with catch_warnings(action="ignore"):  # that the script has a command line, too
            super().__init__(options)

    def before_instantiate_classes(self) -> None:
        """Leaves the folder of a run alone."""

    def instantiate_classes(self) -> None:
        """Builds nothing."""

    def data(self, **options: object) -> ImageDataModule:
        """Builds the data module, with other options in place of its own."""
        config = self.config.clone().data
        for name, value in options.items():
            config.init_args[name] = value
        chosen = Namespace(data=config)  # type: ignore[no-untyped-call]
        data: ImageDataModule = self.parser.instantiate_classes(chosen).data
        return data

    def modules(self) -> list[str]:
        """Returns the modules of your classifier and network, which other commands must import."""
        model = self.config.model
        is_own = resolve_name(model.class_path) is not ImageClassifier
        paths = [model.class_path if is_own else "", model.init_args.get("arch") or ""]
        return [path.rpartition(".")[0] for path in paths if is_path(path)]


def train(run: Path, options: list[str]) -> None:
    """Trains or resumes a run by ``project.fit``, unless it is finished; if that fails, ends as it did.

    Raises:
        UserError: The run was finished with other options or data.
    """
    options = [*options, f"--trainer.default_root_dir={run.parent}", f"--name={run.name}"]
    command = ["-m", "project.fit", *options]
    if not (run / "metrics.json").exists():
        try:  # which ends this process itself where a signal asks it to
            if code := run_apart([sys.executable, *command]):
                sys.exit(code)
        except SystemExit:
            if run.exists():
                note(f"'{run}' is not finished; the same command of this script goes on with it")
            raise
    elif _words(command) != _words(trained := _command_of(run)):
        raise UserError(
            f"'{run}' was trained with other options ({shlex.join(trained)}); {_OTHERS}"
        )
    else:
        try:
            parsed = Options(options)
        except UserError:  # of data, a config or a class that is gone
            return
        _require_same(run, parsed)


def _require_same(run: Path, options: Options) -> None:
    """Refuses what a command does not tell: an edited config, and other data."""
    file = run / "config.yaml"
    before = dict(_flat(yaml.safe_load(file.read_text()) or {})) if file.is_file() else {}
    # a copy, as the parser changes lists in it
    now = yaml.safe_load(options.parser.dump(copy.deepcopy(options.config), skip_unset=False))
    filled_in = {}
    for name, value in _flat(now):
        earlier = before.get(name, value)
        if value is None:  # the run may have filled it in, by weights
            option = name.removeprefix("data.init_args.")
            if option in FILLED_IN and earlier is not None:
                filled_in[option] = earlier
        elif not _are_alike(earlier, value, isinstance(options.config.get(name), set)):
            raise UserError(
                f"'{run}' was trained with {name.replace('.init_args', '')} {earlier}, not"
                f" {value}; {_OTHERS}"
            )
    # of one that has resumed with other data, as it said, the last one knows these
    kept = "last.ckpt" if "changes_of_data" in read_metrics(run) else "best.ckpt"
    try:
        about = read_checkpoint(run / "checkpoints" / kept)["about"]
        digests = options.data(**filled_in).digests()
    except (UserError, ValueError, OSError, RuntimeError):  # what is gone has not changed
        return
    require_same_data(run, about, digests)


def _are_alike(before: object, now: object, is_set: bool) -> bool:
    """Compares values; a class may have had fewer options, and objects are not compared."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(
            _are_alike(before[name], value, False) for name, value in now.items() if name in before
        )
    if isinstance(before, list) and isinstance(now, list):
        if is_set:
            before, now = sorted(before, key=str), sorted(now, key=str)
        pairs = zip(before, now, strict=False)
        return len(before) == len(now) and all(_are_alike(*pair, False) for pair in pairs)
    return before == now or " at 0x" in str(now)


def _flat(config: Mapping[str, object], group: str = "") -> Iterator[tuple[str, object]]:
    """Yields the values of a config by their full names."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def require_same_data(run: Path, about: Mapping[str, object], digests: Mapping[str, str]) -> None:
    """Refuses data that has changed since a run was trained: it may have seen today's test images."""
    if about.get("digests", digests) != digests:
        raise UserError(
            f"the data has changed since '{run}' was trained; put it back, or take another NAME"
        )


def _command_of(run: Path) -> list[str]:
    """Returns the command that finished a run, without the program."""
    record = run / "run.json"
    return shlex.split(json.loads(record.read_text())["command"])[1:] if record.is_file() else []


def _words(command: list[str]) -> list[str]:
    """Splits options from their values, as a run's record joins them."""
    return [part for word in command for part in word.split("=")]
