"""A sweep resumes after a kill, prunes, and records failures; ``stub_fit.py`` stands in for fit."""

import csv
import fcntl
import signal
import sys
from pathlib import Path

import pytest

from project import sweep
from project.engine.errors import UserError
from project.engine.training.best_checkpoint import Monitor
from tests.conftest import ROOT, SLIM, TINY_DATA, TINY_TRAINER, cases
from tests.distributed.processes import started, succeed, wait_until

SPACE = "command: --epochs=3\noptions:\n  lr: {low: 0.01, high: 1.0, log: true}\n  kind: {choices: [a, b]}\n"


@pytest.fixture
def stub(workplace, monkeypatch):
    monkeypatch.setattr(sweep, "FIT", [sys.executable, "-S", str(ROOT / "tests" / "stub_fit.py")])
    monkeypatch.setattr(sweep, "EVERY", 0.05)
    monkeypatch.setattr(sweep, "monitor_of", lambda arguments: Monitor("val/accuracy", "max"))
    (workplace / "lr.yaml").write_text(SPACE)
    return workplace


def run(*args: str) -> str:
    search = sweep.Sweep(sweep.parse(["lr.yaml", *args]))
    search.run()
    return search.table()


def table(name: str = "lr") -> list[list[str]]:
    return list(csv.reader(Path("runs", name, "trials.csv").read_text().splitlines()))


def test_a_sweep_finds_the_best_and_prunes_below_the_median_of_complete_trials(stub):
    found = run("--n_trials=14")
    heading, *rows = table()
    assert heading == ["trial", "state", "val/accuracy", "lr", "kind"]
    assert [int(row[0]) for row in rows] == list(range(14))
    assert {row[1] for row in rows} == {"complete", "pruned"}
    ends = [1 - abs(float(row[3]) - 0.3) for row in rows]
    for row, end in zip(rows, ends, strict=True):
        if (
            row[1] == "pruned"
        ):  # curves are straight lines, so it lies below the median from the start
            assert int(row[0]) >= 5
            assert end < max(ends[:5])
        else:
            assert float(row[2]) == pytest.approx(end)
    best = rows[ends.index(max(ends))]
    assert f"best: trial_{int(best[0]):03d}" in found
    assert f"project.fit --epochs=3 --lr={best[3]}" in found
    assert Path("runs/lr/started").read_text().split() == [
        f"trial_{number:03d}" for number in range(14)
    ]


def test_a_stopped_sweep_resumes_with_the_trials_of_an_undisturbed_one(stub, capsys):
    run("--n_trials=4", "--name=undisturbed")
    run("--n_trials=1")
    Path("runs/lr/stop_at").write_text("trial_002 2")
    with pytest.raises(SystemExit) as stopped:
        run("--n_trials=4")
    assert stopped.value.code == 75
    assert "to resume, run the same command" in capsys.readouterr().err
    run("--n_trials=4")
    assert table() == table("undisturbed")


def test_failures_are_recorded_and_three_at_the_start_end_the_sweep(stub):
    (stub / "lr.yaml").write_text(SPACE.replace("[a, b]", "[a, broken]"))
    run("--n_trials=6")
    assert all((row[1] == "fail") == (row[4] == "broken") for row in table()[1:])
    (stub / "lr.yaml").write_text(SPACE.replace("[a, b]", "[broken]"))
    with pytest.raises(UserError, match="the first three trials failed"):
        run("--n_trials=6", "--name=broken")


def test_another_sweep_does_not_go_into_the_same_folder(stub):
    run("--n_trials=1")
    with pytest.raises(UserError, match="holds a sweep of other options or another seed"):
        run("--n_trials=2", "--seed=1")
    with open("runs/lr/.lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is in use by another process"):
            run("--n_trials=2")


@cases(
    "text message",
    ("command: --a 1", "it must have 'options'"),
    ("options: {lr: 3}", "lr must be {low"),
    ("options: {lr: {low: 1, high: 2, step: 1}}", "lr must be {low"),
    ("options: {lr: {low: 2, high: 1}}", "must hold"),
    ("options: {lr: {choices: []}}", "must contain one or more elements"),
    ("options: {name: {choices: [x]}}", "chooses --name of each trial"),
    ("options: {lr: {low: 1, high: 2}", "describes no search"),
)
def test_a_mistake_in_the_file_is_one_line(text, message, workplace):
    Path("bad.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        sweep.read_file("bad.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_sweep_of_real_runs_is_stopped_and_resumed(workplace):
    small = " ".join(
        [*TINY_DATA, "--data.num_workers=0", *TINY_TRAINER, *SLIM, "--trainer.max_epochs=3"]
    )
    Path("lr.yaml").write_text(
        f"command: {small}\noptions: {{model.optimizer.lr: {{low: 0.01, high: 0.5}}}}"
    )
    command = [sys.executable, "-m", "project.sweep", "lr.yaml", "--n_trials=2"]
    with started(command, workplace) as stopped:
        wait_until(
            Path("runs/lr/trial_000/metrics.csv").exists, workplace
        )  # in the second of three epochs
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(120) == 75
    assert "best: trial_" in succeed(command, workplace).out
    assert "continuing" in Path("runs/lr/trial_000.log").read_text()
    assert [row[:2] for row in table()[1:]] == [["0", "complete"], ["1", "complete"]]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "sweeps").glob("*.yaml")), ids=lambda path: path.stem
)
def test_our_sweeps_name_options_of_fit(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, options = sweep.read_file(str(path))
    first = [
        f"--{name}={one.choices[0] if hasattr(one, 'choices') else one.low}"
        for name, one in options.items()
    ]
    assert sweep.monitor_of([*command, *first, *TINY_TRAINER]) == Monitor("val/accuracy", "max")
