"""Searches over options of ``project.fit`` with Optuna: ``pip install 'optuna>=5,<6'``, edit SPACE, and run this file.

``python examples/launch/sweep.py --name lr --trials 30 --trainer.max_epochs 3``: further options are
those of every trial. The same command resumes a sweep, even after a kill. Each trial is a run in
``runs/NAME``, beside the study's database.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightkeeper.cli import RunFolder, read_metrics, run_apart, run_command
from lightkeeper.exact import UserError, note
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

SPACE: dict[str, Any] = {
    "model.optimizer.lr": FloatDistribution(0.01, 1.0, log=True),
    "data.batch_size": CategoricalDistribution([64, 128, 256]),
}
METRIC = "accuracy"  # of the validation set; the greatest is best
PRUNER = optuna.pruners.MedianPruner(n_startup_trials=5)
STOPPED = 75  # the code of a run that was asked to stop, and can resume


def train(trial: optuna.Trial, run: Path, options: list[str]) -> TrialState:
    """Trains in a process of its own, until it ends or Optuna prunes the trial."""
    values = [f"--{name}={value}" for name, value in trial.params.items()]
    place = [f"--trainer.default_root_dir={run.parent}", f"--name={run.name}"]
    pruned = False
    reported = 0

    def prune() -> bool:
        nonlocal pruned, reported
        for value in validations(run)[reported:]:
            trial.report(value, reported)
            reported += 1
        pruned = reported > 0 and trial.should_prune()
        return pruned

    code = run_apart([sys.executable, "-m", "project.fit", *options, *values, *place], prune)
    if pruned:
        return TrialState.PRUNED
    if code == STOPPED or (code and not run.exists()):  # of a mistake, which all would repeat
        sys.exit(code)
    return TrialState.FAIL if code else TrialState.COMPLETE


def validations(run: Path) -> list[float]:
    """Reads the metric of each validation so far."""
    if not (run / "metrics.csv").exists():
        return []
    with open(run / "metrics.csv", newline="") as file:
        rows = [row.get(f"val/{METRIC}") for row in csv.DictReader(file)]
    return [float(value) for value in rows if value]


def main(args: list[str]) -> optuna.Study:
    """Searches, unless another process does in the same folder."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True)
    parser.add_argument("--trials", type=PositiveInt, default=20)
    parser.add_argument("--seed", type=NonNegativeInt, default=0)
    chosen, options = parser.parse_known_args(args)
    if twice := [name for name in SPACE if f"--{name}" in [o.split("=")[0] for o in options]]:
        raise UserError("is in SPACE, which has its values: leave it out here or there", twice[0])
    folder = RunFolder("runs", chosen.name).path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / ".study.db.lock").acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"the sweep '{folder}' is running in another process; choose another --name"
        ) from error
    with lock:
        return search(folder, chosen.trials, chosen.seed, options)


def search(folder: Path, trials: int, seed: int, options: list[str]) -> optuna.Study:
    """Resumes a trial that was stopped, and runs new ones until there are as many as wanted."""
    storage = f"sqlite:///{folder}/study.db"
    study = optuna.create_study(
        storage=storage,
        direction="maximize",
        study_name="sweep",
        load_if_exists=True,
        pruner=PRUNER,
    )
    ended = study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED])
    if ended and study.user_attrs.get("options", options) != options:
        raise UserError(f"'{folder}' has trials of other options; give the same, or another --name")
    study.set_user_attr("options", options)
    # of earlier versions, the trials alone know it; before the first has ended, a mistake is mended
    before = str(ended[-1].distributions) if ended else str(SPACE)
    used = study.user_attrs.get("space", before)
    if used != str(SPACE) and not ended and not any(folder.glob("trial_*")):
        optuna.delete_study(study_name="sweep", storage=storage)
        return search(folder, trials, seed, options)
    if used != str(SPACE):
        raise UserError(f"'{folder}' searches another SPACE, {used}; take another --name")
    study.set_user_attr("space", used)
    for stopped in study.get_trials(states=[TrialState.RUNNING]):
        name = stopped.user_attrs.get("run", f"trial_{stopped.number:03d}")
        study.enqueue_trial(stopped.params, user_attrs={"run": name})
        study.tell(stopped.number, state=TrialState.FAIL)
    while study.get_trials(states=[TrialState.WAITING]) or trials > sum(
        "run" not in trial.user_attrs for trial in study.trials
    ):
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
        trial = study.ask(SPACE)
        run = folder / trial.user_attrs.get("run", f"trial_{trial.number:03d}")
        RunFolder(folder, run.name).wait_until_free()
        finished = (run / "metrics.json").exists()
        state = TrialState.COMPLETE if finished else train(trial, run, options)
        value = None
        if state == TrialState.COMPLETE:
            value = read_metrics(run)["val"][METRIC]
        study.tell(trial, value, state)
        note(f"{run}: {state.name.lower()}, {METRIC} {value}, {trial.params}")
    return study


def show_best(study: optuna.Study) -> None:
    """Prints the best trial, if any has ended."""
    if study.get_trials(states=[TrialState.COMPLETE]):
        print(f"best: {study.best_value:.4f}, {study.best_params}")


if __name__ == "__main__":
    run_command(lambda: show_best(main(sys.argv[1:])))
