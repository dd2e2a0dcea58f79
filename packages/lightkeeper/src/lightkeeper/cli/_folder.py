"""A run's folder: its files, its lock, and whether the run is new, unfinished or finished."""

import fcntl
import json
import os
import platform
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ..exact._errors import UserError, note, printable, require
from ..exact._files import CHECKPOINTS, LAST, PREVIOUS, write_text

Metrics = dict[str, Any]
"""A run's final metrics, as JSON has them."""
_NUMBERS = ("accuracy", "top5", "f1", "loss", "correct", "top5_correct", "total")
_TYPES = {
    "test": dict,
    "val": dict | None,
    "epoch": int,
    "step": int,
    "selection": dict | None,
    "class_names": list,
    "versions": dict,
    "images": dict | None,
    "digests": dict | None,
}
"""Those of a run's final metrics, of which an earlier version may have fewer."""
_LEFT_BY_WANDB = "wandb/*run-*/logs/debug-core.log"  # a link to its cache


class RunFolder:
    """``runs/<name>/`` with everything that a run leaves behind."""

    def __init__(self, root: str | Path, name: str) -> None:
        is_plain = name not in ("", "..") and Path(name).name == name and name.isprintable()
        require(
            is_plain,
            "name",
            printable(name),
            "the name of one folder, in characters that can be printed",
        )
        is_local = str(root) != "" and "://" not in str(root)
        require(is_local, "default_root_dir", root, "a folder of this machine")
        self.path = Path(root) / name
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.json"
        self.checkpoints = self.path / CHECKPOINTS
        self.best = self.checkpoints / "best.ckpt"
        self.last = self.checkpoints / LAST
        self.previous = self.checkpoints / PREVIOUS
        self._lock = self.path / ".lock"

    def require_unfinished(self) -> None:
        """Refuses a run that has its final metrics, and tidies up if a kill prevented that."""
        if self.metrics.exists():
            self._require_no_way_out()
            self._tidy_up()
            raise UserError(
                f"the run '{self.path}' is finished, its test set measured;"
                f" {self.way_to_train_longer}; to repeat it, remove that folder"
            )

    @property
    def way_to_train_longer(self) -> str:
        """What to do once training has ended."""
        options = ["--name", f"{self.path.name}_longer", "--model.weights", str(self.best)]
        return f"to train longer, start another from its weights: {shlex.join(options)}"

    def create(self) -> None:
        """Makes the folder, and locks out other processes."""
        self._require_no_way_out()
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError) as error:
            raise UserError(
                f"'{error.filename}' is no folder, but perhaps a link to a disk that is not there"
            ) from error
        self._keep_others_out(os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666))
        self.require_unfinished()  # it may have been finished just now

    def wait_until_free(self) -> None:
        """Waits for a process that trains here, such as one that saves as its sweep was killed."""
        # there may be no lock, or a file system without any
        with suppress(OSError), open(self._lock, "r+") as lock:
            if not take_lock(lock.fileno()):
                note(f"waiting for {self._owner()}, which trains '{self.path}'")
                fcntl.lockf(lock, fcntl.LOCK_EX)

    def _owner(self) -> str:
        """Returns what the lock says of the process that has it, which may be ending."""
        with suppress(OSError):
            return self._lock.read_text().strip() or "another process"
        return "another process"

    def _require_no_way_out(self) -> None:
        """Refuses a folder, perhaps from elsewhere, whose links would lead the run to other files.

        A link loop cannot be opened, and a named pipe would let the run wait for ever.
        """
        inside = os.path.realpath(self.path)
        for entry in self.path.rglob("*"):
            target = Path(os.path.realpath(entry))
            is_ours = target.is_relative_to(inside) and (target.is_file() or target.is_dir())
            if not is_ours and not entry.match(_LEFT_BY_WANDB):
                raise UserError(
                    f"'{printable(entry)}' is no file of the run, or a link that leads out of its"
                    " folder; remove it"
                )

    def _keep_others_out(self, lock: int) -> None:
        """Takes the lock, and writes into it whose it is."""
        try:
            is_ours = take_lock(lock)
        except OSError:
            note(f"there are no file locks for '{self.path}': see that one command alone trains it")
            return
        if not is_ours:
            raise UserError(
                f"the run '{self.path}' is being trained by {self._owner()}; choose another --name"
            )
        os.truncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {platform.node()}\n".encode())

    def write_metrics(self, metrics: Mapping[str, object], record: Mapping[str, object]) -> None:
        """Writes how the run was made, the final metrics, its mark of the end, and tidies up."""
        write_text(self.path / "run.json", json.dumps(record, indent=2) + "\n")
        write_text(self.metrics, json.dumps(metrics, indent=2) + "\n")
        self._tidy_up()

    def _tidy_up(self) -> None:
        """Removes what an unfinished run needs."""
        for path in (self.previous, self._lock):
            with suppress(OSError):  # in a folder that is only read
                path.unlink(missing_ok=True)


def take_lock(file: int) -> bool:
    """Takes a POSIX lock, which ends with this process and which its workers do not inherit.

    Returns:
        False if another process has it.

    Raises:
        OSError: The file system has no locks.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def read_metrics(run: str | Path) -> Metrics:
    """Reads the final metrics of a run's folder.

    Raises:
        UserError: The run is not finished, or its ``metrics.json`` is damaged.
    """
    path = Path(run) / "metrics.json"
    with suppress(ValueError, RecursionError):
        # reading a named pipe would wait for ever
        metrics: Metrics = json.loads(path.read_text()) if path.is_file() else {}
        if _are_final(metrics):
            return metrics
    raise UserError(f"'{run}' is no finished run: it has no metrics.json, or a damaged one")


def _are_final(metrics: Metrics) -> bool:
    """Returns False for metrics of other types, or without a test."""
    if not isinstance(metrics, dict) or "test" not in metrics:
        return False
    if not all(isinstance(metrics[name], kind) for name, kind in _TYPES.items() if name in metrics):
        return False
    sets = (metrics["test"], metrics.get("val") or {})
    numbers = [part[name] for part in sets for name in _NUMBERS if name in part]
    return all(isinstance(number, int | float) for number in numbers)


def derived_name(data: str, arch: str | None) -> str:
    """Returns a name of data, model and time, as in ``flowers-resnet34-20250131-142501``."""
    network = re.split("[/.]", arch)[-1:] if arch else []  # without ``timm/`` or a package
    time = f"{datetime.now():%Y%m%d-%H%M%S}"
    return "-".join([data.removesuffix("DataModule").lower(), *network, time])
