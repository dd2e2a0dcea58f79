"""One process of a sweep: runs trials until there are as many as wanted."""

import os
import time
import warnings
from pathlib import Path

import optuna
from jsonargparse import Namespace
from optuna.trial import FrozenTrial, TrialState

from project.engine.run.progress import note
from project.engine.run.signals import EXIT_CODE, StopRequest
from project.engine.training.monitor import Monitor
from project.fit import FitCLI
from project.search.results import conclude, readable
from project.search.space import read_space
from project.search.study import ERROR, SharedStudy
from project.search.trial import SweepStoppedError, TrialRun


def sweep(options: Namespace) -> str:
    """Runs trials until there are as many as wanted.

    Args:
        options: As :func:`project.sweep.parse` returns them.

    Returns:
        What the trials came to.

    Raises:
        UserError: Something that was given is wrong.
        SystemExit: The sweep was asked to stop.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = read_space(options.file)
    environment = dict(os.environ)  # before Lightning adds to it
    monitor = monitor_of(space.sample())
    folder = Path("runs") / Path(options.file).stem if options.folder is None else Path(options.folder)
    shared = SharedStudy(folder, space, monitor, options.seed, options.prune_after)
    stop = StopRequest()
    stop.listen()
    try:
        _run_trials(shared, monitor, options, stop, environment)
    except SweepStoppedError:
        note(f"\nstopped; to resume, run the same command; what is there by now is in {folder}")
        raise
    finally:
        shared.release()
        stop.ignore()
    return conclude(shared, monitor)


def monitor_of(arguments: list[str]) -> Monitor:
    """What a run of ``project.fit`` is judged by.

    Args:
        arguments: Its command line. What is wrong with it ends the program as it would end that command.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*command line arguments.*")  # Lightning means those of this command
        return FitCLI(arguments).monitor


def _run_trials(
    shared: SharedStudy, monitor: Monitor, options: Namespace, stop: StopRequest, environment: dict[str, str]
) -> None:
    end = time.monotonic() + (options.timeout or float("inf"))
    waiting = False
    while time.monotonic() < end:
        if stop.made:
            raise SweepStoppedError(EXIT_CODE)
        trial = shared.claim(options.n_trials)
        if trial is not None:
            run = TrialRun(shared, trial, monitor, stop, environment)
            values = ", ".join(f"{name} {readable(value)}" for name, value in trial.params.items())
            note(f"{run.run.name}: {values}")
            note(f"{run.run.name}: {_outcome(run.complete(), monitor)}")
        elif shared.running() == 0:
            break
        else:
            if not waiting:
                note("waiting for the trials of other processes")
            waiting = True
            time.sleep(0.5)


def _outcome(trial: FrozenTrial, monitor: Monitor) -> str:
    if trial.state == TrialState.FAIL:
        return f"failed: {trial.user_attrs[ERROR]}"
    pruned = "pruned with " if trial.state == TrialState.PRUNED else ""
    value = "nan" if trial.value is None else readable(trial.value)  # Optuna keeps no NaN
    count = len(trial.intermediate_values)
    return f"{pruned}{monitor.monitor} {value} after {count} validation{'s' * (count != 1)}"
