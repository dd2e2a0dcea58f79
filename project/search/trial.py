"""A trial: a process of ``project.fit``, followed by the curve that it logs, pruned, stopped or brought to its end."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from optuna.trial import FrozenTrial, Trial, TrialState

from project.analysis.curves import read_curves
from project.engine.run.folder import RunFolder
from project.engine.run.progress import note
from project.engine.run.signals import EXIT_CODE, StopRequest
from project.engine.training.monitor import Monitor
from project.search.study import ERROR, SharedStudy

FIT = [sys.executable, "-m", "project.fit"]
_EVERY = 0.5  # seconds between two looks at a process
_STOPPED = (EXIT_CODE, -signal.SIGTERM, -signal.SIGINT)


class SweepStoppedError(SystemExit):
    """A sweep was asked to stop; its trial resumes with the same command."""


def trial_name(number: int) -> str:
    """The name of a trial's run."""
    return f"trial_{number:03d}"


class TrialRun:
    """A trial and its run.

    Args:
        shared: The study.
        trial: The trial, which this process has claimed.
        monitor: What it is judged by.
        stop: Whether the sweep shall stop.
        environment: Of the trial's process.
    """

    def __init__(
        self, shared: SharedStudy, trial: Trial, monitor: Monitor, stop: StopRequest, environment: dict[str, str]
    ) -> None:
        self._shared, self._trial, self._monitor = shared, trial, monitor
        self._stop, self._environment = stop, environment
        self.run = RunFolder(shared.folder, trial_name(trial.number))
        self._log = shared.folder / f"{self.run.name}.log"
        self._sizes: list[tuple[str, int]] = []
        self._judged = 0
        self._pruned = False
        self._values: list[float] = []

    def complete(self) -> FrozenTrial:
        """Trains, unless that is done, and tells the study what came of it.

        Returns:
            The trial as the study has it now.

        Raises:
            SweepStoppedError: The sweep, or this trial, was asked to stop.
        """
        lock = self._wait_for_earlier_process()
        code = 0
        try:
            pruned = self._is_to_prune()
            if not pruned and not self.run.metrics.exists():
                code = self._train(lock)
                pruned = self._is_to_prune()
        finally:
            os.close(lock)
        if pruned:
            return self._tell(TrialState.PRUNED)
        if code in _STOPPED:
            raise SweepStoppedError(EXIT_CODE)
        if code == 0 and (finite := [value for value in self._values if math.isfinite(value)]):
            return self._tell(TrialState.COMPLETE, {"min": min, "max": max}[self._monitor.mode](finite))
        self._trial.set_user_attr(ERROR, _error(self._log, code) if code else self._without_value())
        return self._tell(TrialState.FAIL)

    def _tell(self, state: TrialState, value: float | None = None) -> FrozenTrial:
        return self._shared.study.tell(self._trial.number, value, state)

    def _without_value(self) -> str:
        what = self._monitor.monitor
        return f"no {what} of the run is finite" if self._values else f"the run has logged no {what}"

    def _wait_for_earlier_process(self) -> int:
        """Waits for a process that a killed sweep has left, which continues on its own; returns the lock of the next."""
        said = False
        while (lock := self._shared.take_process_lock(self._trial.number)) is None:
            if not said:
                note(f"{self.run.name}: waiting for its process, which an earlier sweep has left")
                said = True
            self._require_no_stop()
            time.sleep(_EVERY)
        return lock

    def _train(self, lock: int) -> int:
        arguments = [
            *self._shared.space.arguments(self._trial.params),
            f"--trainer.default_root_dir={self._shared.folder}",
            f"--name={self.run.name}",
        ]
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                [*FIT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which stops the trial
            )
        while _is_running(process):
            if self._stop.made or self._is_to_prune():
                process.terminate()  # it stops after its step, with everything saved
                process.wait()
        self._require_no_stop()
        return process.returncode

    def _require_no_stop(self) -> None:
        if self._stop.made:
            raise SweepStoppedError(EXIT_CODE)

    def _is_to_prune(self) -> bool:
        """Whether the trial is hopeless; once it is, it stays so, whatever other processes tell the study meanwhile."""
        self._pruned = self._pruned or self._is_hopeless()
        return self._pruned

    def _is_hopeless(self) -> bool:
        """Reports what the curve has that the study lacks; judges each value as it would have been when it was new.

        So what becomes of a trial doesn't depend on when this process looks, or on how often it was killed.
        """
        self._read_curve()
        if len(self._values) == self._judged:
            return False
        known = self._shared.study.get_trials(deepcopy=False)[self._trial.number].intermediate_values
        for step in range(self._judged + 1, len(self._values) + 1):
            if step not in known:
                self._trial.report(self._values[step - 1], step)
            if step >= len(known) and self._trial.should_prune():
                return True
            self._judged = step
        return False

    def _read_curve(self) -> None:
        files = sorted(self.run.path.glob("events.out.tfevents.*"))
        sizes = [(path.name, path.stat().st_size) for path in files]
        if sizes != self._sizes:
            curve = read_curves(self.run.path).get(self._monitor.monitor, {})
            self._sizes, self._values = sizes, [value for _, value in sorted(curve.items())]


def _is_running(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_EVERY)
    except subprocess.TimeoutExpired:
        return True
    return False


def _error(log: Path, code: int) -> str:
    """What a process said when it failed: its error, or its last line."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name} (out of memory?)"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else lines[-1] if lines else f"exit code {code}"
