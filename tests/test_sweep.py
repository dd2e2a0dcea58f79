"""The example of a sweep trains real runs, prunes, and resumes after it was stopped or killed."""

import runpy
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from tests.conftest import QUIET, ROOT, SLIM, TINY_DATA, TINY_TRAINER
from tests.distributed.processes import environment, started, succeed, wait_until
from tests.small import read_json

SWEEP = ROOT / "examples" / "launch" / "sweep.py"
OPTIONS = ["--data.train_size=256", *TINY_DATA[1:4], *TINY_TRAINER, *QUIET, *SLIM]
COMMAND = [sys.executable, str(SWEEP), "--name=lr", *OPTIONS, "--trainer.max_epochs=4"]


def trials() -> list[Any]:
    return optuna.load_study(study_name="sweep", storage="sqlite:///runs/lr/study.db").trials


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -9)])
def test_a_sweep_that_was_stopped_resumes_its_trial(workplace, number, code):
    with started([*COMMAND, "--trials=2"], workplace) as stopped:
        wait_until(Path("runs/lr/trial_000/checkpoints/last.ckpt").exists, workplace)
        stopped.send_signal(number)
        assert stopped.wait(120) == code
    if number == signal.SIGKILL:  # the trial goes on without it
        wait_until(Path("runs/lr/trial_000/metrics.json").exists, workplace)
    found = succeed([*COMMAND, "--trials=2"], workplace, timeout=400)
    assert ("continuing runs/lr/trial_000" in found.err) == (number == signal.SIGTERM)
    first, again, second = trials()
    assert (first.state.name, again.params) == ("FAIL", first.params)
    names = sorted(path.name for path in Path("runs/lr").glob("trial_*"))
    assert names == ["trial_000", "trial_002"]
    for trial, run in zip((again, second), names, strict=True):
        assert trial.value == read_json(f"runs/lr/{run}/metrics.json")["val"]["accuracy"]
    best = max(again, second, key=lambda trial: trial.value)
    assert f"best: {best.value:.4f}, {best.params}" in found.out


@pytest.mark.slow
def test_a_trial_that_optuna_prunes_or_that_fails_ends_and_the_next_one_begins(
    workplace, monkeypatch
):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    main = runpy.run_path(str(SWEEP))["main"]
    hopeless = SimpleNamespace(prune=lambda study, trial: trial.number == 0)
    main.__globals__.update(PRUNER=hopeless, EVERY=0.1)
    main(["--name=lr", "--trials=2", *OPTIONS])
    main(["--name=lr", "--trials=3", *OPTIONS, "--model.arch=none"])
    assert [trial.state.name for trial in trials()] == ["PRUNED", "COMPLETE", "FAIL"]
    assert not Path("runs/lr/trial_000/metrics.json").exists()
