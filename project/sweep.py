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
from typing import Any

import numpy as np
import yaml
from jsonargparse import Namespace, get_loader
from jsonargparse.typing import NonNegativeInt, PositiveInt

from project.analysis.tables import metrics_table
from project.engine.cli.command import one_line_errors, quiet_libraries
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError
from project.engine.run.folder import METRICS_CSV, RunFolder
from project.engine.run.progress import note
from project.engine.run.signals import EXIT_CODE, StopRequest
from project.engine.run.whole_file import whole_file
from project.engine.training.best_checkpoint import Monitor
from project.fit import FitCLI

try:
    import optuna
except ModuleNotFoundError:
    sys.exit("error: a sweep needs a package: pip install 'optuna>=5,<6'")
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

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
    pruning = (
        "Validations after which a trial stops if its best is worse than the median of five or more complete ones."
    )
    option("--prune_after", type=PositiveInt, default=1, help=pruning)
    return parser.parse_args(args)


def read_file(path: str) -> tuple[list[str], dict[str, Any]]:
    """Reads a sweep's file: the options that every trial has, and the distributions of those that differ."""
    try:
        content = get_loader("yaml")(Path(path).read_text())
        if not isinstance(content, dict) or not {"options"} <= content.keys() <= {"command", "options"}:
            raise ValueError("it must have 'options' and may have 'command'")
        command = shlex.split(content.get("command") or "")
        options = {name: _distribution(name, values) for name, values in content["options"].items()}
    except (OSError, ValueError, AttributeError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"'{path}' describes no search: {' '.join(str(error).split())}") from error
    flags = {flag.partition("=")[0].removeprefix("--") for flag in command}
    if both := flags & options.keys():
        raise UserError(f"'{path}': --{min(both)} is in both 'command' and 'options'")
    if chosen := {"name", "trainer.default_root_dir"} & {*flags, *options}:
        raise UserError(f"'{path}': the sweep itself chooses --{min(chosen)} of each trial")
    return command, options


def _distribution(name: str, values: Any) -> BaseDistribution:
    if isinstance(values, dict) and values.keys() == {"choices"} and isinstance(values["choices"], list):
        return CategoricalDistribution(values["choices"])
    if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"}:
        whole = isinstance(values["low"], int) and isinstance(values["high"], int)
        return IntDistribution(**values) if whole else FloatDistribution(**values)
    raise ValueError(f"{name} must be {{low: 0.01, high: 1.0, log: true}} or {{choices: [a, b]}}, got {values}")


def monitor_of(arguments: list[str]) -> Monitor:
    """Returns the metric that a run of ``project.fit`` is judged by; a mistake in its arguments ends the program."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*command line arguments.*")  # Lightning means those of this command
        return FitCLI(arguments).monitor


class Sweep:
    """A sweep's folder, with its study and a run for each trial; ``options`` are those of :func:`parse`."""

    def __init__(self, options: Namespace) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._command, self._options = read_file(options.file)
        self._environment = dict(os.environ)  # before Lightning adds to it
        first = {name: one.choices[0] if hasattr(one, "choices") else one.low for name, one in self._options.items()}
        self._monitor = monitor_of(self._arguments(first))
        self._seed, self._prune_after, self._n_trials = options.seed, options.prune_after, options.n_trials
        self.folder = Path("runs") / (options.name or Path(options.file).stem)
        if self.folder.exists() and not (self.folder / "journal.log").exists() and any(self.folder.iterdir()):
            raise UserError(f"'{self.folder}' is no sweep; choose another --name")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._storage = optuna.storages.JournalStorage(JournalFileBackend(str(self.folder / "journal.log")))
        study, identity = self._study(), [self._command, repr(self._options), self._seed]
        if study.user_attrs.get("identity", identity) != identity:
            raise UserError(f"'{self.folder}' holds a sweep of other options or another seed; choose another --name")
        study.set_user_attr("identity", identity)

    def run(self) -> None:
        """Runs trials until there are as many as wanted; a signal ends it with code 75, to resume with the same command."""
        stop = StopRequest()
        stop.listen()
        with open(self.folder / ".lock", "wb") as lock:  # which a trial holds, too, should this process die
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"'{self.folder}' is in use by another process, or by a trial that still runs"
                ) from None
            while trial := self._next_trial():
                if not self._finish(trial, stop, lock.fileno()):
                    note(f"stopped; to resume, run the same command; the trials are in {self.folder}")
                    sys.exit(EXIT_CODE)

    def _next_trial(self) -> optuna.Trial | None:
        """Returns the trial that a stopped sweep left, or else a new one if there are to be more."""
        trials = self._study().trials
        if [trial.state for trial in trials[:3]] == [TrialState.FAIL] * 3:
            raise UserError(f"the first three trials failed, see '{self.folder}/trial_000.log'; remove that folder")
        resumes = bool(trials) and trials[-1].state == TrialState.RUNNING
        if not resumes and len(trials) >= self._n_trials:
            return None
        study = self._study(len(trials) - resumes)
        if not resumes:
            study.ask()
        id_of, study_id = self._storage.get_trial_id_from_study_id_trial_number, self._storage.get_study_id_from_name
        trial = optuna.Trial(study, id_of(study_id(study.study_name), len(study.trials) - 1))
        for name, values in self._options.items():  # values that it had stay
            if isinstance(values, CategoricalDistribution):
                trial.suggest_categorical(name, values.choices)
            elif isinstance(values, IntDistribution):
                trial.suggest_int(name, values.low, values.high, log=values.log)
            elif isinstance(values, FloatDistribution):
                trial.suggest_float(name, values.low, values.high, log=values.log)
        return trial

    def table(self) -> str:
        """Writes ``trials.csv``, and returns it with the best trial, the only one whose test metrics are shown."""
        study = self._study()
        table: list[list[Any]] = [["trial", "state", self._monitor.monitor, *self._options]]
        table += [[one.number, one.state.name.lower(), one.value, *one.params.values()] for one in study.trials]
        with whole_file(self.folder / "trials.csv") as partial, open(partial, "w", newline="") as file:
            csv.writer(file).writerows(table)
        text = "\n".join("  ".join("" if cell is None else str(cell) for cell in row) for row in table)
        if not study.get_trials(states=[TrialState.COMPLETE]):
            return f"{text}\n\nno trial is complete"
        run, command = self._folder_of(study.best_trial.number), self._arguments(study.best_trial.params)
        metrics = json.loads(run.metrics.read_text())
        return f"""{text}

best: {run.name}, chosen on the validation set; no other trial's test metrics are shown
{metrics_table({"validation": metrics["val"], "test": metrics["test"]})}
checkpoint: {run.best}
to repeat it: python -m project.fit {shlex.join(command)} --name={self.folder.name}_best"""

    def _study(self, trial: int = 0) -> optuna.Study:
        """Opens the study with a sampler seeded for a trial, so that a killed sweep resumes with the same trials."""
        (seed,) = np.random.SeedSequence([self._seed, trial]).generate_state(1)
        return optuna.create_study(
            storage=self._storage,
            study_name="sweep",
            direction="minimize" if self._monitor.mode == "min" else "maximize",
            sampler=optuna.samplers.TPESampler(seed=int(seed)),
            pruner=optuna.pruners.MedianPruner(n_warmup_steps=self._prune_after),
            load_if_exists=True,
        )

    def _finish(self, trial: optuna.Trial, stop: StopRequest, lock: int) -> bool:
        """Runs ``project.fit`` until it ends or is pruned; returns False if the sweep shall stop before that."""
        run = self._folder_of(trial.number)
        note(f"{run.name}: {', '.join(f'{name} {value}' for name, value in trial.params.items())}")
        code, pruned = 0, self._is_hopeless(trial)
        if not pruned and not run.metrics.exists():
            arguments = [f"--trainer.default_root_dir={self.folder}", f"--name={run.name}"]
            with open(f"{run.path}.log", "ab") as log:
                process = subprocess.Popen(
                    [*FIT, *self._arguments(trial.params), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    pass_fds=[lock],
                    start_new_session=True,  # Ctrl-C reaches the sweep alone, which stops the trial
                )
            while process.poll() is None:
                if stop.made or (pruned := self._is_hopeless(trial)):
                    process.terminate()  # it stops after its step, with everything saved
                    process.wait()
                time.sleep(EVERY)
            code, pruned = process.returncode, pruned or self._is_hopeless(trial)
        if not pruned and (stop.made or code == EXIT_CODE):
            return False  # the trial was asked to stop, and the sweep with it
        values = self._values(trial.number)
        best = {"min": min, "max": max}[self._monitor.mode](values, default=None)
        state = TrialState.PRUNED if pruned else TrialState.COMPLETE if code == 0 and values else TrialState.FAIL
        trial.study.tell(trial.number, best if state == TrialState.COMPLETE else None, state)
        note(
            f"{run.name}: {state.name.lower()}, {self._monitor.monitor} {best} after {len(values)}; see {run.name}.log"
        )
        return True

    def _is_hopeless(self, trial: optuna.Trial) -> bool:
        """Reports the new values of ``metrics.csv``, judging each as if it were the newest."""
        known = len(trial.study.trials[trial.number].intermediate_values)
        for step, value in enumerate(self._values(trial.number)[known:], start=known + 1):
            trial.report(value, step)
            if trial.should_prune():
                return True
        return False

    def _values(self, number: int) -> list[float]:
        path = self._folder_of(number).path / METRICS_CSV
        rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
        return [float(value) for row in rows if (value := row.get(self._monitor.monitor))]

    def _folder_of(self, number: int) -> RunFolder:
        return RunFolder(self.folder, f"trial_{number:03d}")

    def _arguments(self, values: dict[str, Any]) -> list[str]:
        """Returns the command line of ``project.fit`` for one value of each option."""
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        return [*self._command, *(f"--{name}={text}" for name, text in texts.items())]


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        sweep = Sweep(parse())
        sweep.run()
        print(sweep.table())


if __name__ == "__main__":
    main()
