"""Options that decide a run's numbers: which may change as it resumes, or differ by machine."""

import os
import re
from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..exact._errors import UserError, printable
from ..exact._metric_states import gather
from ..images._unseen import SPLIT_OPTIONS
from ._command_line import Options, flat
from ._folder import RunFolder
from ._parser import read_yaml

_KEPT = ("model", "monitor", "mode")
_NOTED = ("data", "seed_everything", "trainer", "callbacks")
_MAY_CHANGE = (  # no result depends on these, or another note says so
    "model.compile",
    *("data.num_workers", "data.prefetch_factor", "data.device_cache"),
    *("trainer.enable_", "trainer.logger", "trainer.profiler"),
    *("trainer.default_root_dir", "trainer.devices", "trainer.num_", "trainer.fast_dev_run"),
    *("trainer.detect_anomaly", "trainer.inference_mode", "trainer.model_registry"),
    *("callbacks.last_checkpoint", "callbacks.stop_on_non_finite"),
)
_CALLBACKS = "trainer.callbacks"
_NOT_WRITTEN = re.compile("Unable to serialize instance .* at 0x")
"""How jsonargparse writes an object that it cannot describe, after a warning: by its address."""
# of the data: other splits would test images that were trained on, other sizes compare two tasks
_OF_SPLITS = (*SPLIT_OPTIONS, "label_from", "subset")
_OF_IMAGES = ("image_size", "resize", "fit", "interpolation", "channels", "bits", "mean", "std")
# other batches of an epoch would repeat or skip images
_FIXED = {
    "data",
    "trainer.limit_train_batches",
    *(f"data.{name}" for name in ("batch_size", *_OF_SPLITS, *_OF_IMAGES)),
}
# a machine may have others than another one, unless they are fixed
_OF_MACHINE = ("data", "model.weights", "trainer.callbacks.", "trainer.plugins")
# these may lead to the same images in another place
_OF_SOURCE = {
    *("data.root", "data.file", "data.train", "data.val", "data.test"),
    *("data.path_column", "data.label_column", "data.image_column"),
}


def written_options(config: str) -> Options:
    """Returns the options of a run's config.

    Raises:
        UserError: A default of the model is written by its address, with which no run resumes.
    """
    options = flat(read_yaml(config, "--config"))
    for name, value in options.items():
        if name.startswith(_KEPT) and _NOT_WRITTEN.search(str(value)):
            raise UserError(
                f"--{name}: config.yaml cannot hold its default: code may have plain keyword"
                " arguments there, such as lr=0.1; give others in a config, or return its"
                " class_path and init_args from default_arguments of the command's class"
            )
    return options


def changed_options(
    run: RunFolder,
    before: Mapping[str, object],
    options: Mapping[str, object],
    change_of_data: Callable[[], str],
) -> list[str]:
    """Compares options with those of a run's own config, and names changed ones.

    Args:
        run: The run's folder.
        before: The options of its config.
        options: Those that it resumes with.
        change_of_data: Says how the data differs from the run's; nothing if it does not.

    Raises:
        UserError: An option has changed that decides what a run is.
    """
    earlier = _by_callback(before)
    changes = []
    for name, value in _decisive(options).items():
        if value == earlier.get(name, value):
            continue
        if name == "data.cache" and value and earlier[name]:  # which of them decides nothing
            continue
        change = f"--{name} is {value}, not {earlier[name]}"
        other = change_of_data() if name in _OF_SOURCE else ""
        if other or name.startswith(_KEPT) or name in _FIXED:
            data = f", and with it the data, {other}" if other else ""
            raise UserError(
                f"{change}{data}, which cannot change when the run '{run.path}' resumes; to resume"
                f" as before, give --config {quote(str(run.config))} --name {quote(run.path.name)}"
                " alone; to change it, start another: --model.weights"
                f" {quote(str(run.last))} --name another"
            )
        changes.append(change)
    return changes


class SameOptions(Callback):
    """Refuses processes, as of several machines, that train with other options or classes.

    Their weights would drift apart, or one would wait for batches that another does not have. Lists
    are not compared, as the order of a set differs, nor are paths and objects.

    Args:
        options: The options of this process.
        class_names: Its classes.
        save: Writes the options of the first process, once they are all alike.
    """

    def __init__(
        self, options: Mapping[str, object], class_names: list[str], save: Callable[[], object]
    ) -> None:
        self._save = save
        self._facts = {
            f"--{name}": str(value)
            for name, value in _decisive(options).items()
            if name in _FIXED or not name.startswith(_OF_MACHINE)
            if isinstance(value, int | float | str | None) and " at 0x" not in str(value)
            if name in ("model.arch", "monitor") or os.sep not in str(value)
        }
        self._facts["the list of classes"] = str(class_names)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compares the options of all processes, as soon as these can communicate."""
        if stage != "fit":
            return
        first, *others = gather(self._facts)
        for name, value in first.items():
            for other in others:
                if other.get(name, value) != value:
                    raise UserError(
                        f"{name} is {printable(value)} on the first process, but"
                        f" {printable(other[name])} on another; give all machines the same command"
                        " and data"
                    )
        if trainer.is_global_zero:
            self._save()


def _decisive(options: Mapping[str, object]) -> dict[str, object]:
    """Returns the options that may decide a run's numbers."""
    return {
        name: value
        for name, value in _by_callback(options).items()
        if name.startswith((*_KEPT, *_NOTED)) and not name.startswith(_MAY_CHANGE)
    }


def _by_callback(options: Mapping[str, Any]) -> dict[str, object]:
    """Names callbacks by their classes, and their options ``trainer.callbacks.CLASS.OPTION``."""
    named = dict(options)
    classes = list[str]()
    for spec in options.get(_CALLBACKS) or []:
        cls = spec["class_path"].rpartition(".")[-1]
        classes.append(cls)
        label = f"{cls} {count}" if (count := classes.count(cls)) > 1 else cls
        for option, value in (spec.get("init_args") or {}).items():
            named[f"{_CALLBACKS}.{label}.{option}"] = value
    named[_CALLBACKS] = f"[{', '.join(classes)}]"
    return named
