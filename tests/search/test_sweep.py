"""A sweep: what is killed resumes, processes share it, what is hopeless ends early, what fails is recorded."""

import csv
import math
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from project.engine.errors import UserError
from project.engine.training.monitor import Monitor
from project.search import loop, results, trial
from project.search.space import Space, read_space
from project.search.study import NumberedSampler, SharedStudy
from project.search.trial import SweepStoppedError
from project.sweep import parse
from tests.conftest import TINY_DATA, TINY_TRAINER
from tests.search import process

ROOT = Path(__file__).parents[2]
SPACE = """
command: --epochs=3
options:
  lr: {low: 0.01, high: 1.0, log: true}
  kind: {choices: [a, b]}
"""


@pytest.fixture
def stub(workplace, monkeypatch):
    """An empty folder with a sweep's file, where trials are stubs."""
    for module, name in ((trial, "FIT"), (trial, "read_curves"), (trial, "_EVERY"), (loop, "monitor_of")):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    process.use_stub()
    (workplace / "lr.yaml").write_text(SPACE)
    return workplace


def sweep(*args: str) -> str:
    return loop.sweep(parse(["lr.yaml", *args]))


def table(folder: str | Path = "runs/lr") -> list[list[str]]:
    with open(Path(folder) / "trials.csv", newline="") as file:
        return sorted(csv.reader(file))


def started(folder: str = "runs/lr") -> list[str]:
    return (Path(folder) / "started").read_text().split()


def signal_at(what: str, place: str, folder: str = "runs/lr") -> None:
    """Lets a stub kill or stop the sweep once it is there."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "journal.log").touch()  # as of a sweep that has begun
    (Path(folder) / what).write_text(place)


def test_it_finds_the_best_and_writes_a_table_and_plots(stub, capsys):
    found = sweep("--n_trials=14")
    with open("runs/lr/trials.csv", newline="") as file:
        heading, *rows = csv.reader(file)
    assert heading == ["trial", "state", "val/accuracy", "validations", "lr", "kind", "error"]
    assert sorted(int(row[0]) for row in rows) == list(range(14))
    complete = [row for row in rows if row[1] == "complete"]
    assert [float(row[2]) for row in complete] == sorted((float(row[2]) for row in complete), reverse=True)
    closest = min(rows, key=lambda row: abs(float(row[4]) - 0.3))
    assert complete[0] == closest
    assert Path("runs/lr/sweep.png").read_bytes().startswith(b"\x89PNG")
    assert f"best: trial {closest[0]}" in found
    assert "project.fit --epochs=3 --lr=" in found
    assert found.count("test") == 2  # the best's column, and the promise
    assert started() == [f"trial_{number:03d}" for number in range(14)]


def test_hopeless_trials_are_pruned_below_the_median_of_the_complete_ones(stub):
    sweep("--n_trials=12", "--folder=pruned")
    rows = [row for row in table("pruned") if row[1] in ("complete", "pruned")]
    pruned = [row for row in rows if row[1] == "pruned"]
    assert pruned
    first_five = sorted(-abs(float(row[4]) - 0.3) for row in rows if int(row[0]) < 5)
    assert all(int(row[0]) >= 5 and int(row[3]) < 3 for row in pruned)
    assert all(-abs(float(row[4]) - 0.3) < first_five[-1] for row in pruned)
    sweep("--n_trials=12", "--folder=whole", "--prune_after=4")
    assert {row[1] for row in table("whole")} == {"complete", "state"}


def test_a_trial_that_is_found_hopeless_stays_so_whatever_others_tell_the_study_meanwhile(stub, monkeypatch):
    answers = iter([True])
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda _: next(answers, False))
    signal_at("wait", "trial_000 1")
    sweep("--n_trials=2")
    assert {row[0]: row[1] for row in table()} == {"trial": "state", "0": "pruned", "1": "complete"}


def test_a_trial_counts_by_the_best_of_its_finite_values(stub, monkeypatch, capsys):
    curves = {"trial_000": [math.nan, 0.3, math.inf, 0.4], "trial_001": [math.nan], "trial_002": [0.2, math.nan]}
    curves["trial_003"] = [math.nan]
    monkeypatch.setattr(trial, "read_curves", lambda run: {"val/accuracy": dict(enumerate(curves[run.name]))})
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda one: one.number == 3)
    sweep("--n_trials=4")
    assert "trial_003: pruned with val/accuracy nan after 1 validation\n" in capsys.readouterr().err
    found = {row[0]: (row[1], row[2], row[6]) for row in table() if row[0] != "trial"}
    assert found == {
        "0": ("complete", "0.4", ""),
        "1": ("failed", "", "no val/accuracy of the run is finite"),
        "2": ("complete", "0.2", ""),
        "3": ("pruned", "", ""),
    }


def test_of_what_was_pruned_a_trial_without_a_value_comes_last(stub, monkeypatch):
    losses = {"trial_000": 0.4, "trial_001": math.nan, "trial_002": 0.6}
    monkeypatch.setattr(loop, "monitor_of", lambda arguments: Monitor("val/loss", "min"))
    monkeypatch.setattr(trial, "read_curves", lambda run: {"val/loss": {0: losses[run.name]}})
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda one: one.number > 0)
    sweep("--n_trials=3")
    with open("runs/lr/trials.csv", newline="") as file:
        assert [row[:3] for row in csv.reader(file)][1:] == [
            ["0", "complete", "0.4"],
            ["2", "pruned", "0.6"],
            ["1", "pruned", ""],
        ]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["trial_001 2", "trial_011 1"])
def test_a_killed_sweep_resumes_with_the_trials_of_an_undisturbed_one(stub, place):
    sweep("--n_trials=13", "--folder=undisturbed")
    signal_at("kill_at", place)
    command = [sys.executable, "-m", "tests.search.process", "lr.yaml", "--n_trials=13"]
    killed = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    sweep("--n_trials=13")
    assert table() == table("undisturbed")
    interrupted = place.split()[0]
    assert started().count(interrupted) == 2
    assert len(started()) == 14


def test_what_a_full_disk_left_of_a_line_does_not_keep_a_sweep_from_resuming(stub):
    sweep("--n_trials=4", "--folder=undisturbed")
    sweep("--n_trials=2")
    for count in (3, 4, 4):
        with open("runs/lr/journal.log", "a") as file:
            file.write('{"op_code":4,"worker_id":"cfec6b28')
        sweep(f"--n_trials={count}")
    assert table() == table("undisturbed")


@pytest.mark.parametrize(
    "line", ["x", "[]", '{"op_code": 99, "worker_id": "x"}', '{"op_code": 4, "worker_id": "x", "trial_id": 99}']
)
def test_a_damaged_journal_is_named(stub, line):
    sweep("--n_trials=1")
    journal = Path("runs/lr/journal.log")
    journal.write_text(f"{line}\n{journal.read_text()}")
    with pytest.raises(UserError, match=r"journal\.log' is damaged"):
        sweep("--n_trials=1")


def test_ctrl_c_stops_the_trial_and_says_how_to_resume(stub, capsys):
    sweep("--n_trials=4", "--folder=undisturbed")
    capsys.readouterr()
    signal_at("hold", "trial_002 2")
    with pytest.raises(SweepStoppedError) as stopped:
        sweep("--n_trials=4")
    assert stopped.value.code == 75
    assert "stopped; to resume, run the same command" in capsys.readouterr().err
    Path("runs/lr/hold").unlink()
    sweep("--n_trials=4")
    assert table() == table("undisturbed")


@pytest.mark.slow
def test_two_processes_share_a_sweep_and_no_trial_runs_twice(stub):
    command = [sys.executable, "-m", "tests.search.process", "lr.yaml", "--n_trials=16"]
    pair = [
        subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [one.communicate()[0] for one in pair]
    assert [one.returncode for one in pair] == [0, 0]
    assert sorted(started()) == [f"trial_{number:03d}" for number in range(16)]
    assert outputs[0].partition("\n\n")[2] == outputs[1].partition("\n\n")[2]


def test_processes_that_end_together_write_the_table_one_after_the_other(tmp_path, monkeypatch):
    space, monitor = Space([], {"lr": FloatDistribution(0.1, 1)}), Monitor("val/accuracy", "max")
    first, second = (SharedStudy(tmp_path / "sweep", space, monitor, seed=0, prune_after=1) for _ in range(2))
    other = Thread(target=results.conclude, args=(second, monitor))

    def meanwhile(file):
        monkeypatch.undo()
        other.start()
        other.join(0.5)  # long enough to write in between, where it may
        return csv.writer(file)

    monkeypatch.setattr(results, "csv", SimpleNamespace(writer=meanwhile))
    results.conclude(first, monitor)
    other.join()
    assert table(tmp_path / "sweep") == [["trial", "state", "val/accuracy", "validations", "lr", "error"]]


def test_a_trial_of_a_living_process_is_left_to_it(tmp_path):
    space = Space([], {"lr": FloatDistribution(0.1, 1)})
    first, second = (
        SharedStudy(tmp_path / "sweep", space, Monitor("val/accuracy", "max"), seed=0, prune_after=1) for _ in range(2)
    )
    numbers = [claimed.number for one in (first, second) if (claimed := one.claim(5)) is not None]
    assert numbers == [0, 1]
    first.study.tell(0, 0.5)
    taken = first.claim(2)
    assert taken is None
    assert first.running() == 1


def test_a_failed_trial_is_recorded_and_others_follow(stub):
    (stub / "lr.yaml").write_text(SPACE.replace("[a, b]", "[a, broken]"))
    sweep("--n_trials=6")
    rows = [row for row in table() if row[0] != "trial"]
    assert {row[1] for row in rows} >= {"complete", "failed"}
    assert all((row[6] == "there is no such kind") == (row[5] == "broken") for row in rows)


def test_three_failures_alike_at_the_start_end_the_sweep(stub):
    (stub / "lr.yaml").write_text(SPACE.replace("[a, b]", "[broken]"))
    with pytest.raises(UserError, match="the first 3 trials have failed alike: there is no such kind"):
        sweep("--n_trials=6")
    assert len(started()) == 3


def test_another_sweep_does_not_go_into_the_same_folder(stub):
    sweep("--n_trials=1")
    with pytest.raises(UserError, match="another command, other options or another seed"):
        sweep("--n_trials=2", "--seed=1")
    Path("photos").mkdir()
    Path("photos/cat.jpg").touch()
    with pytest.raises(UserError, match="'photos' is there already and is no sweep"):
        sweep("--folder=photos")


def test_no_further_trial_starts_after_the_timeout(stub):
    assert "no trial is complete" in sweep("--timeout=1e-9")


def test_the_sampler_draws_the_same_whatever_was_drawn_before():
    space = FloatDistribution(0.01, 1, log=True)
    options = {"a": space, "b": IntDistribution(1, 9)}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=NumberedSampler(3))
    drawn = [study.ask(options).params for _ in range(3)]
    study = optuna.create_study(sampler=NumberedSampler(3))
    for _ in range(2):
        study.ask()  # draws nothing
    third = study.ask()
    assert third.suggest_int("b", 1, 9) == drawn[2]["b"]
    assert third.suggest_float("a", 0.01, 1, log=True) == drawn[2]["a"]
    assert len({values["a"] for values in drawn}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: --a 1", "bad.yaml: 'options' must name options"),
        ("comand: --a 1\noptions: {lr: {low: 1, high: 2}}", "line 1: 'comand' is neither"),
        ("options:\n  lr: 3", "line 2: lr needs {low"),
        ("options:\n  model.lr: {low: 1}", "line 2: model.lr needs {low"),
        ("options:\n  lr: {low: 1, high: 2, step: 1}", "line 2: lr needs {low"),
        ("options:\n  lr: {low: 2, high: 1}", "line 2: lr ranges from 2 to 1: low must be below high$"),
        ("options:\n  lr: {low: 0, high: 1, log: true}", "line 2: lr ranges from 0 to 1: .* above 0 with log"),
        ("options:\n  lr: {low: a, high: 1}", "line 2: lr ranges from a to 1, which must be numbers"),
        ("options:\n  lr: {low: 1, high: 2, log: maybe}", "line 2: lr has log: maybe"),
        ("options:\n  lr: {choices: []}", "line 2: lr has choices"),
        ("options:\n  lr: {choices: [[1]]}", "line 2: lr has choices"),
        ("command: a.yaml\noptions: {lr: {low: 1, high: 2}}", "line 1: 'command' must be options"),
        ("command: --a 'b\noptions: {lr: {low: 1, high: 2}}", "line 1: 'command' has an open quotation mark"),
        ("command: --name x\noptions: {lr: {low: 1, high: 2}}", "line 1: the sweep itself chooses --name"),
        ("options: {name: {choices: [x]}}", "line 1: the sweep itself chooses --name"),
        (
            "options:\n  trainer.default_root_dir: {choices: [x]}",
            "line 1: the sweep itself chooses --trainer.default_root",
        ),
        ("command: --lr=3\noptions: {lr: {low: 1, high: 2}}", "line 1: --lr=3 is among the options"),
        ("options: {lr: {low: 1, high: 2}", "bad.yaml, line 1: "),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text, message, workplace):
    Path("bad.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_space("bad.yaml")
    assert "\n" not in str(error.value)


def test_values_are_spelt_as_the_command_line_has_them(workplace):
    options = "options: {a.b: {choices: [null, true, x y, 0.5, -1]}, c: {low: 1, high: 3}}"
    Path("a.yaml").write_text(f"command: --kind c\n{options}")  # a value that is called as an option is
    space = read_space("a.yaml")
    assert space.sample() == ["--kind", "c", "--a.b=null", "--c=1"]
    assert space.arguments({"a.b": "x y"})[2:] == ["--a.b=x y"]
    assert space.arguments({"a.b": True})[2:] == ["--a.b=true"]
    assert isinstance(space.options["c"], IntDistribution)


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sweep_of_ours_names_options_that_there_are(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert loop.monitor_of([*read_space(str(path)).sample(), *TINY_TRAINER]) == Monitor("val/accuracy", "max")


@pytest.mark.slow
def test_real_trials_stop_resume_and_end_with_the_same_table(workplace):
    small = [*TINY_DATA, "--data.num_workers=0", *TINY_TRAINER, "--model.arch=resnet9_slim"]
    Path("lr.yaml").write_text(f"command: {' '.join(small)}\noptions: {{model.optimizer.lr: {{low: 0.01, high: 0.5}}}}")
    command = [sys.executable, "-m", "project.sweep", "lr.yaml", "--n_trials=3"]
    environment = {"PYTHONPATH": str(ROOT)}
    undisturbed = subprocess.run(
        [*command, "--folder=undisturbed"], env=environment, capture_output=True, text=True, check=False
    )
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert "best: trial" in undisturbed.stdout
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as stopped:
        assert stopped.stderr is not None
        while not stopped.stderr.readline().startswith("trial_001"):
            pass
        stopped.send_signal(signal.SIGINT)
        assert "to resume, run the same command" in stopped.stderr.read()
    assert stopped.returncode == 75
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert table() == table("undisturbed")
