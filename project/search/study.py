"""The study that processes share: which trials there are, who runs them, and what they have come to.

It is an Optuna journal, a file in the sweep's folder to which every process appends: no database to install or to start,
and nothing but a file to copy. Trials are claimed by locks of the system, which it takes back when a process ends, however
that happens.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from project.engine.errors import UserError, first_sentence
from project.engine.training.monitor import Monitor
from project.search.journal import Journal, locked
from project.search.space import Space

JOURNAL = "journal.log"
ERROR = "error"
_STUDY, _IDENTITY = "sweep", "identity"
_ALIKE = 3


class NumberedSampler(BaseSampler):
    """Optuna's TPE whose random numbers are a function of (seed, trial, option), so that a killed sweep loses none.

    TPE's own generator depends on all that its process has drawn before.

    Args:
        seed: The sweep's.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _tpe(self, trial: FrozenTrial, name: str = "") -> TPESampler:
        (seed,) = np.random.SeedSequence([self._seed, trial.number, *name.encode()]).generate_state(1)
        return TPESampler(seed=int(seed))

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The options that are drawn together."""
        return self._tpe(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draws them."""
        return self._tpe(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draws one option alone, as in the first trials."""
        return self._tpe(trial, param_name).sample_independent(study, trial, param_name, param_distribution)


class SharedStudy:
    """A study in a folder.

    Args:
        folder: The sweep's, which is made where it is missing.
        space: What to search.
        monitor: What trials are judged by.
        seed: Of the sampler.
        prune_after: How many validations a trial has before it may be pruned.

    Raises:
        UserError: The folder is another sweep's, something else's, or cannot be written.
    """

    def __init__(self, folder: Path, space: Space, monitor: Monitor, seed: int, prune_after: int) -> None:
        if folder.exists() and not (folder / JOURNAL).exists() and any(_visible(folder)):
            raise UserError(f"'{folder}' is there already and is no sweep; choose another place with --folder")
        self.folder, self.space, self._locks = folder, space, folder / ".locks"
        self._claimed: int | None = None
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--folder: '{folder}' cannot be written ({error.strerror})") from error
        with self.alone():
            self.study = self._open(monitor, seed, prune_after)
            identity = {**space.identity(), **monitor._asdict(), "seed": seed}
            if self.study.user_attrs.setdefault(_IDENTITY, identity) != identity:
                raise UserError(
                    f"'{folder}' holds a sweep of another command, other options or another seed; choose another --folder"
                )
            self.study.set_user_attr(_IDENTITY, identity)

    def _open(self, monitor: Monitor, seed: int, prune_after: int) -> optuna.Study:
        try:
            self._storage = JournalStorage(Journal(self.folder / JOURNAL, self._locks / "journal"))
            return optuna.create_study(
                storage=self._storage,
                study_name=_STUDY,
                direction="minimize" if monitor.mode == "min" else "maximize",
                sampler=NumberedSampler(seed),
                pruner=MedianPruner(n_warmup_steps=prune_after),
                load_if_exists=True,
            )
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
            # of a line that is none of Optuna's
            raise UserError(
                f"'{self.folder / JOURNAL}' is damaged ({first_sentence(error)}); choose another place with --folder"
            ) from error

    def claim(self, n_trials: int) -> Trial | None:
        """Takes a trial that no living process has: one that a killed process has left, or else a new one.

        What this process had before is done, or free for others.

        Args:
            n_trials: How many trials there shall be.

        Returns:
            The trial, with a value for each option; None where nothing is left to take.

        Raises:
            UserError: The first trials have all failed in the same way.
        """
        with self.alone():
            self.release()
            trials = self.study.get_trials(deepcopy=False)
            _require_sense(trials, self.folder)
            left = [trial.number for trial in trials if trial.state == TrialState.RUNNING]
            number = next((number for number in left if self._take_claim(number)), None)
            if number is None:
                if len(trials) >= n_trials:
                    return None
                number = self.study.ask().number
                self._take_claim(number)
            study_id = self._storage.get_study_id_from_name(_STUDY)
            trial = Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))
            for name, values in self.space.options.items():
                _suggest(trial, name, values)
            return trial

    def release(self) -> None:
        """Leaves the trial that this process has to others."""
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    def _take_claim(self, number: int) -> bool:
        self._claimed = locked(self._locks / f"{number}.sweep")
        return self._claimed is not None

    def running(self) -> int:
        """How many trials other processes have claimed."""
        return len(self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]))

    def take_process_lock(self, number: int) -> int | None:
        """Takes the lock that a trial's process inherits, so that it is free once that process has ended.

        Returns:
            The lock's file descriptor; None while a process that a killed sweep has left is still running.
        """
        return locked(self._locks / f"{number}.fit")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lets one process at a time decide what to run, and write what was found."""
        descriptor = locked(self._locks / "study", wait=True)
        try:
            yield
        finally:
            assert descriptor is not None
            os.close(descriptor)


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _suggest(trial: Trial, name: str, values: BaseDistribution) -> None:
    """Gives an option its value in a trial, unless it has one."""
    if isinstance(values, optuna.distributions.CategoricalDistribution):
        trial.suggest_categorical(name, values.choices)
    elif isinstance(values, optuna.distributions.IntDistribution):
        trial.suggest_int(name, values.low, values.high, log=values.log)
    elif isinstance(values, optuna.distributions.FloatDistribution):
        trial.suggest_float(name, values.low, values.high, log=values.log)


def _require_sense(trials: list[FrozenTrial], folder: Path) -> None:
    errors = [trial.user_attrs.get(ERROR) for trial in trials[:_ALIKE] if trial.state == TrialState.FAIL]
    if len(errors) == _ALIKE and len(set(errors)) == 1:
        raise UserError(
            f"the first {_ALIKE} trials have failed alike: {errors[0]}; once that is mended, remove '{folder}' or choose"
            " another --folder"
        )
