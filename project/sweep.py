"""``python -m project.sweep``: search over options of ``project.fit`` with Optuna, each trial a run of its own."""

import csv
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from jsonargparse import Namespace, get_loader
from jsonargparse.typing import NonNegativeInt, PositiveInt

from project.analysis.tables import metrics_table
from project.engine.cli.command import one_line_errors
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError
from project.engine.run.files import whole_file
from project.engine.run.folder import METRICS_CSV, RunFolder
from project.engine.run.processes import EXIT_CODE, StopRequest
from project.engine.run.progress import note
from project.engine.training.best_checkpoint import Monitor
from project.fit import FitCLI

try:
    import optuna
except ModuleNotFoundError:
    sys.exit("error: a sweep needs a package: pip install 'optuna>=5,<6'")
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

FIT = [sys.executable, "-m", "project.fit"]
EVERY = 0.5  # seconds between two looks at a trial


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.sweep",
        description="Searches over options of project.fit with Optuna; each trial is a run of project.fit. The same"
        " command resumes a sweep.",
        epilog="example: python -m project.sweep configs/sweeps/cifar10_resnet9.yaml --n_trials 30",
    )
    option = parser.add_argument
    option("file", type=str, metavar="FILE", help="A YAML file with 'command' and 'options'.")
    option("--name", type=str | None, help="The sweep's folder in runs/, by default FILE's name.")
    option("--n_trials", type=PositiveInt, default=20, help="The number of trials.")
    option("--seed", type=NonNegativeInt, default=0, help="The random seed of the search.")
    pruning = "Validations after which a trial stops if it is worse than the median of five or more complete ones."
    option("--prune_after", type=PositiveInt, default=1, help=pruning)
    return parser.parse_args(args)


def read_file(path: str) -> tuple[list[str], dict[str, Any]]:
    """Reads a sweep's file: the options that every trial has, and the distributions of those that differ."""
    try:
        content = get_loader("yaml")(Path(path).read_text())
        if not isinstance(content, dict) or not {"options"} <= content.keys() <= {
            "command",
            "options",
        }:
            raise ValueError("it must have 'options' and may have 'command'")
        command = shlex.split(content.get("command") or "")
        options = {name: _distribution(name, values) for name, values in content["options"].items()}
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"'{path}' describes no search: {' '.join(str(error).split())}") from error
    flags = {flag.partition("=")[0].removeprefix("--") for flag in command}
    if chosen := {"name", "trainer.default_root_dir"} & {*flags, *options}:
        raise UserError(f"'{path}': the sweep itself chooses --{min(chosen)} of each trial")
    return command, options


def _distribution(name: str, values: Any) -> BaseDistribution:
    if (
        isinstance(values, dict)
        and values.keys() == {"choices"}
        and isinstance(values["choices"], list)
    ):
        return CategoricalDistribution(values["choices"])
    if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"}:
        whole = isinstance(values["low"], int) and isinstance(values["high"], int)
        return IntDistribution(**values) if whole else FloatDistribution(**values)
    raise ValueError(
        f"{name} must be {{low: 0.01, high: 1.0, log: true}} or {{choices: [a, b]}}, got {values}"
    )


def monitor_of(arguments: list[str]) -> Monitor:
    """Returns the metric that a run of ``project.fit`` is judged by; a mistake in its arguments ends the program."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*command line arguments.*"
        )  # Lightning means those of this command
        return FitCLI(arguments).monitor


class Sweep:
    """A sweep's folder, with its study and a run for each trial; ``options`` are those of :func:`parse`."""

    def __init__(self, options: Namespace) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._options = options
        self._command, self._space = read_file(options.file)
        self._environment = dict(os.environ)  # before Lightning adds to it
        first = {
            name: one.choices[0] if hasattr(one, "choices") else one.low
            for name, one in self._space.items()
        }
        self._monitor = monitor_of(self._arguments(first))
        self._best = min if self._monitor.mode == "min" else max
        self._stop = StopRequest()
        self.folder = Path("runs") / (options.name or Path(options.file).stem)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(
                JournalFileBackend(str(self.folder / "journal.log"))
            ),
            study_name="sweep",
            direction="minimize" if self._monitor.mode == "min" else "maximize",
            load_if_exists=True,
        )
        identity = [self._command, repr(self._space), options.seed]
        if self._study.user_attrs.get("identity", identity) != identity:
            raise UserError(
                f"'{self.folder}' holds a sweep of other options or another seed; choose another --name"
            )
        self._study.set_user_attr("identity", identity)

    def run(self) -> None:
        """Runs trials until there are as many as wanted; a signal ends it with code 75, to resume with the same command."""
        self._stop.listen()
        with open(
            self.folder / ".lock", "wb"
        ) as lock:  # which a trial holds, too, should this process die
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"'{self.folder}' is in use by another process or a trial that still runs"
                ) from None
            while trial := self._next_trial():
                self._finish(trial, lock.fileno())

    def table(self) -> str:
        """Writes ``trials.csv``, and returns it with the best trial, the only one whose test metrics are shown."""
        table: list[list[Any]] = [["trial", "state", self._monitor.monitor, *self._space]]
        table += [
            [one.number, one.state.name.lower(), one.value, *one.params.values()]
            for one in self._study.trials
        ]
        with (
            whole_file(self.folder / "trials.csv") as partial,
            open(partial, "w", newline="") as file,
        ):
            csv.writer(file).writerows(table)
        text = "\n".join(
            "  ".join("" if cell is None else str(cell) for cell in row) for row in table
        )
        if not self._study.get_trials(states=[TrialState.COMPLETE]):
            return f"{text}\n\nno trial is complete"
        best = self._study.best_trial
        run = self._folder_of(best)
        metrics = json.loads(run.metrics.read_text())
        return f"""{text}

best: {run.name}, chosen on the validation set; no other trial's test metrics are shown
{metrics_table({"validation": metrics["val"], "test": metrics["test"]})}
checkpoint: {run.best}
to repeat it: python -m project.fit {shlex.join(self._arguments(best.params))} --name={self.folder.name}_best"""

    def _next_trial(self) -> FrozenTrial | None:
        """Returns the trial that a stopped sweep left, or else a new one if there are to be more."""
        trials = self._study.trials
        if [trial.state for trial in trials[:3]] == [TrialState.FAIL] * 3:
            raise UserError(
                f"the first three trials failed, see '{self.folder}/trial_000.log'; remove that folder"
            )
        if not trials or trials[-1].state != TrialState.RUNNING:
            if len(trials) >= self._options.n_trials:
                return None
            # a seed for each trial, so that a stopped sweep resumes with the same ones
            (seed,) = np.random.SeedSequence([self._options.seed, len(trials)]).generate_state(1)
            self._study.sampler = optuna.samplers.TPESampler(seed=int(seed))
            self._study.ask(self._space)
        return self._study.trials[-1]

    def _finish(self, trial: FrozenTrial, lock: int) -> None:
        """Runs a trial until it ends or is pruned; ends the program if the sweep shall stop before that."""
        run = self._folder_of(trial)
        note(f"{run.name}: {', '.join(f'{name} {value}' for name, value in trial.params.items())}")
        complete = [
            self._values(one) for one in self._study.get_trials(states=[TrialState.COMPLETE])
        ]
        code = 0
        if not run.metrics.exists():
            place = [f"--trainer.default_root_dir={self.folder}", f"--name={run.name}"]
            with open(f"{run.path}.log", "ab") as log:
                process = subprocess.Popen(
                    [*FIT, *self._arguments(trial.params), *place],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    pass_fds=[lock],
                    start_new_session=True,  # Ctrl-C reaches the sweep alone, which stops the trial
                )
            while process.poll() is None:
                if self._stop.made or self._is_hopeless(trial, complete):
                    process.terminate()  # it stops after its step, with everything saved
                    process.wait()
                time.sleep(EVERY)
            code = process.returncode
        pruned = self._is_hopeless(trial, complete)
        if not pruned and (
            self._stop.made or code == EXIT_CODE
        ):  # the trial was asked to stop, and the sweep with it
            note(f"stopped; to resume, run the same command; the trials are in {self.folder}")
            sys.exit(EXIT_CODE)
        values = self._values(trial)
        best = self._best(values, default=None)
        state = (
            TrialState.PRUNED
            if pruned
            else TrialState.COMPLETE
            if code == 0 and values
            else TrialState.FAIL
        )
        self._study.tell(trial.number, best if state == TrialState.COMPLETE else None, state)
        note(
            f"{run.name}: {state.name.lower()}, {self._monitor.monitor} {best}; see {run.name}.log"
        )

    def _is_hopeless(self, trial: FrozenTrial, complete: list[list[float]]) -> bool:
        """Returns True if the best value was ever worse than the median of five or more complete trials at that time."""
        values = self._values(trial)
        for number in range(self._options.prune_after, len(values) + 1):
            others = [other[number - 1] for other in complete if len(other) >= number]
            best = self._best(values[:number])
            if len(others) >= 5 and self._best(best, median(others)) != best:
                return True
        return False

    def _values(self, trial: FrozenTrial) -> list[float]:
        path = self._folder_of(trial).path / METRICS_CSV
        rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
        return [float(value) for row in rows if (value := row.get(self._monitor.monitor))]

    def _folder_of(self, trial: FrozenTrial) -> RunFolder:
        return RunFolder(self.folder, f"trial_{trial.number:03d}")

    def _arguments(self, values: dict[str, Any]) -> list[str]:
        """Returns the command line of ``project.fit`` for one value of each option."""
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        return [*self._command, *(f"--{name}={text}" for name, text in texts.items())]


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        sweep = Sweep(parse())
        sweep.run()
        print(sweep.table())


if __name__ == "__main__":
    main()
