"""Scripts say of runs what the runs measured; folds and sweeps resume; the planner is beside a simulation of each message."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from warnings import catch_warnings

import folds
import label_errors
import load_test
import near_duplicates
import numpy as np
import optuna
import pytest
import recipes
import repeat
import seeds
import training
from lightkeeper.cli import RunFolder
from lightkeeper.exact import UserError
from scaling import Bucket, Link, Step, forecast, measure

from project.model.networks import build_network
from tests.conftest import (
    FLOWERS,
    QUIET,
    ROOT,
    SLIM,
    TINY_DATA,
    TINY_TRAINER,
    as_in_a_terminal,
    cases,
    environment,
    fit,
    make_folder,
    one_line,
    read_json,
    rows,
    succeed,
)

SWEEP = ROOT / "examples" / "launch" / "sweep.py"
needs_examples = pytest.mark.skipif(not SWEEP.exists(), reason="examples/ were not kept")
OPTIONS = [FLOWERS, "--data.train_size=256", *TINY_DATA[1:4], *TINY_TRAINER, *QUIET, *SLIM]
COMMAND = [sys.executable, str(SWEEP), "--name=lr", *OPTIONS, "--trainer.max_epochs=4"]


@contextmanager
def started(command: list[str], place: Path) -> Iterator[subprocess.Popen[Any]]:
    """A command in a process group of its own, which writes to ``log``; all of the group ends."""
    with open(place / "log", "w") as log:
        options: Any = {"env": environment(), "stdout": log, "stderr": log}
        process = subprocess.Popen(command, cwd=place, start_new_session=True, **options)
        try:
            yield process
        finally:
            for pid in [process.pid, *descendants(process.pid)]:
                with suppress(ProcessLookupError):
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
            process.wait()


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield int(child)
        yield from descendants(int(child))


def wait_until(condition: Callable[[], object], place: Path) -> None:
    """Waits two minutes at most, or fails the test with the log."""
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within two minutes\n{(place / 'log').read_text()}")
        time.sleep(0.01)


def test_the_tables_of_seeds_and_recipes_have_means_spreads_and_differences_by_seed(
    tiny_run, workplace, capsys
):
    runs: dict[str, list[Path]] = {"none": [], "ema": []}
    for name, accuracies in (("none", (0.5, 0.6)), ("ema", (0.55, 0.63))):
        for seed, accuracy in enumerate(accuracies):
            run = workplace / f"{name}{seed}"
            shutil.copytree(tiny_run, run, ignore=shutil.ignore_patterns("*.ckpt"))
            metrics = read_json(run / "metrics.json")
            metrics["test"]["accuracy"] = accuracy
            (run / "metrics.json").write_text(json.dumps(metrics))
            runs[name].append(run)
    *_, alone, ema = (
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in recipes.table(runs).splitlines()
    )
    assert alone[:4] == ["none", "2", "55.00% ± 7.07", ""]
    assert ema[:4] == ["ema", "2", "59.00% ± 5.66", "+4.00 ± 1.41"]
    assert ema[5] == "1.00 (1.00 to 1.00)"
    seeds.main(runs["none"])
    printed = capsys.readouterr().out
    assert re.search(r"^n = 2\n.*\ntest accuracy, % +55\.00 ± 7\.07 ", printed)
    assert re.search(r"training, seconds +\d+\.\d\d ± 0\.00 ", printed)


MINE = """
from project.model import ImageClassifier
from project.model.small_networks import ResNet9

class Net(ResNet9):
    def __init__(self, num_classes):
        super().__init__(num_classes, width=8)

class Mine(ImageClassifier):
    def __init__(self, class_names, preprocessing, **kwargs):
        super().__init__(class_names, preprocessing, **{"arch": "mine.Net"} | kwargs)
"""


def test_seeds_and_shares_are_trained_once_and_summed_up(workplace, monkeypatch, capsys):
    make_folder(workplace / "images", dict.fromkeys("ab", 40))
    trained: list[str] = []

    def in_this_process(command: list[str]) -> int:
        trained.append(fit(*command[3:]).run.path.name)
        return 0

    monkeypatch.setattr("training.run_apart", in_this_process)
    options = ["--data=images", "--data.image_size=32", "--data.batch_size=4", *TINY_TRAINER]
    for _ in range(2):  # the second time, all is there
        repeat.main("mine", 2, [0.5, 1], [*options, *QUIET, *SLIM, "--data.num_workers=0"])
    assert trained == ["0.5_0", "0.5_1", "1_0", "1_1"]
    with pytest.raises(UserError, match=r"'runs/mine/0\.5_0' was trained with other options"):
        repeat.main("mine", 2, [0.5, 1], [*options, *QUIET, *SLIM])
    half, whole = (line.split() for line in capsys.readouterr().out.splitlines()[-3:-1])
    assert half[:3] == ["runs/mine/0.5_0", "…", "runs/mine/0.5_1"]
    assert int(half[3]) == pytest.approx(int(whole[3]) / 2, abs=12)
    assert half[4] == whole[4] == "2"
    assert (workplace / "runs" / "mine" / "images.png").exists()
    again = [*options, *QUIET, *SLIM, "--data.num_workers=0"]
    with pytest.raises(ValueError, match="train_fraction: must be in"):
        repeat.main("percent", 1, [10], again)
    config = Path("runs/mine/1_0/config.yaml")  # of a run whose --config was edited since
    whole = config.read_text()
    config.write_text(whole.replace("max_epochs: 1", "max_epochs: 3"))
    with pytest.raises(UserError, match=r"1_0' was trained with trainer\.max_epochs 3, not 1"):
        repeat.main("mine", 2, [0.5, 1], again)
    next(Path("images/a").iterdir()).unlink()
    with pytest.raises(UserError, match=r"the data has changed since 'runs/mine/0\.5_0'"):
        repeat.main("mine", 2, [0.5, 1], again)
    config.write_text(whole)
    shutil.rmtree("images")  # what is gone has not changed
    repeat.main("mine", 2, [0.5, 1], again)
    assert capsys.readouterr().out.count("runs/mine/") == 4


def test_a_stopped_script_says_that_it_goes_on_itself_with_a_run_that_has_begun(
    workplace, monkeypatch, capsys
):
    monkeypatch.setattr("training.run_apart", Mock(side_effect=SystemExit(75)))  # by a signal
    for run in (Path("mine/begun"), Path("mine/refused")):
        Path("mine/begun").mkdir(parents=True, exist_ok=True)
        with pytest.raises(SystemExit, match="75"):
            training.train(run, [])
    said = "'mine/begun' is not finished; the same command of this script goes on with it"
    assert capsys.readouterr().err.splitlines() == [said]


@cases(
    "option text",
    pytest.param(
        *(
            "--model=examples.multilabel.MultilabelClassifier",
            "a model of images with one class each",
        ),
        marks=needs_examples,
    ),
    ("--model=nowhere.Mine", "there is no ImageClassifier 'nowhere.Mine'"),
    ("--data.no_option=3", "Option 'no_option' is not accepted"),
    ("--data.group=rose|tulip", "too few for 2 folds"),
)
def test_what_the_last_step_of_folds_cannot_do_is_refused_before_the_first(
    workplace, monkeypatch, capsys, option, text
):
    make_folder(workplace / "images", {"rose": 4, "tulip": 4})
    monkeypatch.setattr("training.run_apart", lambda *_: 0)
    said = one_line(lambda: folds.main("cv", 2, ["--data=images", option]), capsys)
    assert text in said
    assert not Path("runs").exists()


@pytest.mark.slow
def test_folds_resume_after_ctrl_c_and_classify_each_image_by_the_run_that_has_not_seen_it(
    workplace,
):
    (workplace / "mine.py").write_text(MINE)
    classes = ("rose", "tulip")
    images = make_folder(workplace / "images", dict.fromkeys(classes, 14))
    data = ["--data=images", "--data.split_seed=2", "--data.image_size=32", "--data.batch_size=4"]
    options = [*data, *TINY_TRAINER, *QUIET, "--model=mine.Mine", "--trainer.max_epochs=40"]
    command = [sys.executable, str(ROOT / "scripts" / "folds.py"), "cv", "2", *options]
    with started(command, workplace) as stopped:
        wait_until(Path("runs/cv/fold_1/checkpoints/last.ckpt").exists, workplace)
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(120) == 75  # it has saved
    ended = succeed(command, workplace)
    assert "continuing runs/cv/fold_1" in ended.stderr
    found = rows("runs/cv/out_of_fold.csv")
    assert sorted(row["path"] for row in found) == sorted(map(str, images.rglob("*.jpg")))
    assert all(Path(row["path"]).parent.name == row["true_label"] for row in found)
    counted = Counter((row["fold"], row["true_label"], row["label"]) for row in found)
    correct = 0
    for fold in "12":
        test = read_json(f"runs/cv/fold_{fold}/metrics.json")["test"]
        assert test["confusion_matrix"] == [
            [counted[fold, label, guess] for guess in classes] for label in classes
        ]
        correct += test["correct"]
    assert f"({correct} of 28)" in ended.stdout


def test_near_duplicates_are_those_whose_hashes_or_mirror_images_differ_in_six_bits_at_most(
    monkeypatch,
):
    generator = np.random.default_rng(0)
    photos = generator.integers(0, 2, (8, 2, 64))[generator.integers(0, 8, 40)]
    hashes = (photos ^ (generator.random(photos.shape) < 0.05)).astype(np.float32)
    hashes[::5] = hashes[::5, ::-1]  # mirrored
    distances = np.abs(hashes[:, None, :1] - hashes).sum(3).min(2).astype(int).tolist()
    expected = [(distances[i][j], i, j) for i, j in combinations(range(40), 2)]
    monkeypatch.setattr(near_duplicates, "AT_ONCE", 16)
    found = near_duplicates.pairs(hashes)
    assert found == [pair for pair in expected if pair[0] <= 6]
    assert 0 < len(found) < len(expected)


@pytest.mark.parametrize(
    "listed",
    [
        "path,label,suggested\nb,rose,tulip",
        "\ufeffpath;label;suggested\r\nb;rose;tulip",
        '"suggested"\t"path"\n"tulip"\t"b"\n',
    ],
)
def test_labels_are_corrected_where_the_list_still_suggests_another(workplace, listed):
    """A spreadsheet may have saved the list."""
    known = [f"{path},tulip,rose,1,0.1,0.9" for path in "abc"]
    header = "path,label,true_label,fold,probability_rose,probability_tulip"
    Path("out_of_fold.csv").write_text("\n".join([header, *known]))
    Path("label_errors.csv").write_text(listed)
    label_errors.main(Path(), "labels.csv")
    labels = {row["path"]: row["label"] for row in rows("labels.csv")}
    assert labels == {"a": "rose", "b": "tulip", "c": "rose"}


def test_what_people_may_have_written_is_not_replaced_and_what_is_missing_is_named(workplace):
    Path("labels.csv").write_text(mine := "path,label,patient\n")
    Path("label_errors.csv").write_text(mine)
    header = "path,label,true_label,fold,probability_rose"
    Path("out_of_fold.csv").write_text(f"{header}\na,rose,rose,1,1.0\n")
    for call in (
        lambda: label_errors.main(Path(), "labels.csv"),
        lambda: label_errors.main(Path()),
        lambda: near_duplicates.main(".", "labels.csv"),
    ):
        with pytest.raises(UserError, match=r"is there already; name another file, or remove it"):
            call()
    assert Path("labels.csv").read_text() == Path("label_errors.csv").read_text() == mine
    with pytest.raises(UserError, match=r"'label_errors.csv' has no columns path and suggested"):
        label_errors.main(Path(), "new.csv")
    with pytest.raises(UserError, match=r"there is no folder for 'nowhere/pairs.csv'"):
        near_duplicates.main(".", "nowhere/pairs.csv")
    with pytest.raises(UserError, match=r"'cv' has no label_errors.csv: find them first"):
        label_errors.main(Path("cv"), "new.csv")
    with pytest.raises(UserError, match=r"'cv' has no out_of_fold.csv: cross-validate first"):
        label_errors.main(Path("cv"))


def test_a_load_needs_images_and_a_server(workplace):
    with pytest.raises(UserError, match=r"there are no images in '\.'"):
        load_test.main(["http://127.0.0.1:9", "."])
    Path("a.jpg").write_bytes(b"")
    for url in ("http://127.0.0.1:9", "127.0.0.1:9"):
        with pytest.raises(UserError, match=f"'{url}' does not answer"):
            load_test.main([url, "."])


def is_running(pid: int) -> bool:
    """False for a process that has ended, whether or not its parent has noticed."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def trials():
    return optuna.load_study(study_name="sweep", storage="sqlite:///runs/lr/study.db").trials


@needs_examples
def test_a_sweep_refuses_an_option_that_it_has_values_of(workplace):
    with pytest.raises(UserError, match="is in SPACE"):
        runpy.run_path(str(SWEEP))["main"](["--name=lr", "--data.batch_size=16"])


@needs_examples
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGKILL, -9)]
)
def test_a_sweep_that_was_stopped_resumes_its_trial_which_ends_with_it(workplace, number, code):
    with started([*COMMAND, "--trials=2"], workplace) as stopped:
        wait_until(Path("runs/lr/trial_000/checkpoints/last.ckpt").exists, workplace)
        (trial,) = descendants(stopped.pid)
        stopped.send_signal(number)
        assert stopped.wait(120) == code
        # of one that was killed, the next sweep waits until its trial has saved
        assert number == signal.SIGKILL or not is_running(trial)
        found = succeed([*COMMAND, "--trials=2"], workplace, timeout=400)
        assert not is_running(trial)
    assert "continuing runs/lr/trial_000" in found.stderr
    first, again, second = trials()
    assert (first.state.name, again.params) == ("FAIL", first.params)
    names = sorted(path.name for path in Path("runs/lr").glob("trial_*"))
    assert names == ["trial_000", "trial_002"]
    for trial, run in zip((again, second), names, strict=True):
        assert trial.value == read_json(f"runs/lr/{run}/metrics.json")["val"]["accuracy"]
    best = max(again, second, key=lambda trial: trial.value)
    assert f"best: {best.value:.4f}, {best.params}" in found.stdout


def sweep(*args: str, run_apart=None) -> optuna.Study:
    """Runs the script in this process, with another function in place of trainings."""
    script = runpy.run_path(str(SWEEP))
    if run_apart:
        script["train"].__globals__["run_apart"] = run_apart
    with as_in_a_terminal():
        study: optuna.Study = script["main"](["--name=lr", "--trials=1", *args])
    return study


@needs_examples
def test_a_trial_that_was_stopped_before_it_could_save_is_no_failure(workplace):
    def trained(command, is_done) -> int:
        run = Path("runs/lr/trial_000")
        assert f"--name={run.name}" in command
        run.mkdir(parents=True)
        (run / "metrics.json").write_text('{"val": {"accuracy": 0.5}, "test": {}}')
        return 0

    with pytest.raises(SystemExit) as ended:
        sweep(run_apart=lambda *_: 75)
    assert ended.value.code == 75
    with pytest.raises(SystemExit, match="2"):  # a mistake, which all trials would repeat
        sweep("--trainer.max_epoch=3", run_apart=lambda *_: 2)
    assert sweep(run_apart=trained).best_value == 0.5
    states = [trial.state.name for trial in trials()]
    assert states == ["FAIL", "FAIL", "COMPLETE"]  # one trial, three times
    with pytest.raises(UserError, match="has trials of other options"):
        sweep("--trials=2", "--trainer.max_epochs=3", run_apart=trained)
    study = optuna.load_study(study_name="sweep", storage="sqlite:///runs/lr/study.db")
    study.set_user_attr("space", "that of before SPACE was edited")  # not known of earlier ones
    with pytest.raises(UserError, match="searches another SPACE, that of before"):
        sweep("--trials=2", run_apart=trained)


@needs_examples
def test_a_second_sweep_of_one_name_is_refused_in_one_line(workplace, capsys):
    def second(*_) -> int:
        said = one_line(lambda: sweep(run_apart=lambda *_: 0), capsys)
        assert "the sweep 'runs/lr' is running in another process; choose another --name" in said
        Path("runs/lr/trial_000").mkdir()  # which an error behind a mistake has made
        return 2

    sweep(run_apart=second)
    assert [trial.state.name for trial in trials()] == ["FAIL"]


@needs_examples
def test_a_sweep_waits_for_a_run_that_is_still_being_trained(workplace, monkeypatch):
    def hold() -> None:
        run = RunFolder("runs/lr", "trial_000")
        run.create()
        wait_until(Path("enough").exists, workplace)
        run.write_metrics({"val": {"accuracy": 0.5}, "test": {}}, {})

    with catch_warnings(action="ignore", category=DeprecationWarning):  # it needs no thread of this
        (holder := get_context("fork").Process(target=hold)).start()
    lock = Path("runs/lr/trial_000/.lock")
    wait_until(lambda: lock.exists() and lock.read_text(), workplace)
    said = list[str]()

    def end(text: str) -> None:
        said.append(text)
        Path("enough").touch()

    monkeypatch.setattr("lightkeeper.cli._folder.note", end)
    assert sweep(run_apart=None).best_value == 0.5
    holder.join()
    assert holder.exitcode == 0
    (line,) = said
    assert line.startswith(f"waiting for process {holder.pid} on ")


def every_message(step: Step, processes: int, link: Link) -> float:
    """The end of the last all-reduce; each process sends on what its neighbour has sent, one message after another."""
    arrived, free = [0.0] * processes, [0.0] * processes
    for bucket in step.buckets:
        arrived = [max(bucket.ready, time) for time in arrived]
        for _ in range(2 * (processes - 1)):
            begun = [max(arrived[process], free[process]) for process in range(processes)]
            free = [
                time + bucket.size / processes / link.bandwidth + link.latency for time in begun
            ]
            arrived = [free[process - 1] for process in range(processes)]
    return max(arrived)


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_what_a_simulation_of_each_message_takes(seed):
    rng = np.random.default_rng(seed)
    ready = sorted(rng.uniform(0, 1) for _ in range(5))
    buckets = tuple(Bucket(rng.uniform(1e6, 3e7), when) for when in ready)
    step = Step(8, 0.5, 1.0, 0.1, 0.0, buckets)
    link = Link(10 ** rng.uniform(7, 9), 10 ** rng.uniform(-5, -2))
    processes = int(rng.integers(1, 10))
    end = max(1.0, every_message(step, processes, link))
    assert forecast(step, processes, link).seconds == pytest.approx(0.5 + end + 0.1)
    assert forecast(step, processes, link, accumulate=3).seconds == pytest.approx(3.5 + end + 0.1)


def test_the_buckets_hold_all_gradients(workplace):
    small = ["--trainer.strategy=DDPStrategy", "--trainer.strategy.bucket_cap_mb=1"]
    with patch.dict(os.environ), as_in_a_terminal():  # Lightning adds variables
        step = measure([FLOWERS, *TINY_DATA, *TINY_TRAINER, *SLIM, *small])
    sizes = [bucket.size for bucket in step.buckets]
    assert len(sizes) > 2  # as the strategy says
    parameters = build_network("resnet9_slim", 8).parameters()
    assert sum(sizes) == 4 * sum(parameter.numel() for parameter in parameters)
    assert 0 < step.buckets[0].ready < step.buckets[-1].ready <= step.backward
