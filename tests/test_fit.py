"""The promises of ``python -m project.fit``."""

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images._checkpoint import ABOUT
from tensorboard.plugins.hparams import plugin_data_pb2

from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import (
    LAST,
    SLIM,
    TINY,
    fit,
    load,
    make_folder,
    read_json,
    small,
    stop_at,
    write_csv,
)
from tests.engine.toy import curve, differences, events, outcome


def test_a_run_leaves_exactly_the_files_that_the_design_names(tiny_run):
    names = [path.relative_to(tiny_run).as_posix() for path in tiny_run.rglob("*.*")]
    left = {re.sub(r"\.(vm|tfevents).*", "", name) for name in names}
    assert left == {
        *("config.yaml", "metrics.json", "metrics.csv", "events.out"),
        *("plots/curves.png", "plots/confusion_matrix.png", "plots/classes.png"),
        *("checkpoints/best.ckpt", "checkpoints/last.ckpt"),
    }


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_explains_itself_and_loads_safely(tiny_run, name):
    about = load(tiny_run / "checkpoints" / f"{name}.ckpt")[ABOUT]
    assert about["class_names"] == read_json(tiny_run / "metrics.json")["class_names"]
    assert about["preprocessing"]["crop"] == 32
    assert (about["arch"], about["arch_args"], about["split_seed"]) == ("resnet9_slim", {}, 0)
    assert about["versions"]["torch"] == torch.__version__.split("+")[0]
    assert about["metrics"]["val"]["total"] == 24
    assert about["data"]["init_args"]["train_size"] == 64


def test_tensorboard_has_the_curves_and_the_images(tiny_run):
    logged = events(tiny_run)
    images, scalars = (set(logged.Tags()[kind]) for kind in ("images", "scalars"))
    curves = "train/loss train/accuracy train/images_per_second val/loss val/accuracy val/top5"
    assert {*curves.split(), "val/f1", "test/accuracy"} <= scalars
    # a step's own rate, in one curve although there are two groups: warmup, then the cosine
    assert {name for name in scalars if "learning_rate" in name} == {"learning_rate"}
    rates = [point.value for point in logged.Scalars("learning_rate")]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1 * (0.01 + 0.99 / 2)])
    evaluated = {"val/confusion_matrix", "test/confusion_matrix", "test/confident_mistakes"}
    assert images == {"train/first_batch", *evaluated}
    assert not {"hp_metric", "epoch"} & scalars
    points = [*map(logged.Images, evaluated), logged.Scalars("val/accuracy")]
    assert [[point.step for point in of_name] for of_name in points] == [[3]] * 4


def test_tensorboard_compares_runs_by_the_monitored_metric_and_the_tests(tiny_run):
    """As its page HPARAMS reads them: the last point of each curve that an experiment names."""
    messages: Any = plugin_data_pb2
    named = {
        tag: messages.HParamsPluginData.FromString(metadata.plugin_data.content)
        for tag, metadata in events(tiny_run).summary_metadata.items()
        if tag.startswith("_hparams_/")
    }
    metrics = read_json(tiny_run / "metrics.json")
    columns = [info.name.tag for info in named["_hparams_/experiment"].experiment.metric_infos]
    assert columns == ["val/accuracy", "test/accuracy"]
    for column in columns:
        expected = metrics[column.split("/")[0]]["accuracy"]
        assert [value for _, value in curve(tiny_run, column)] == [pytest.approx(expected)]
    settings = named["_hparams_/session_start_info"].session_start_info.hparams
    assert settings["model.optimizer.lr"].number_value == 0.1
    assert settings["model.arch"].string_value == "resnet9_slim"


def test_the_saved_config_repeats_the_run(tiny_run, workplace):
    config = ["--config", str(tiny_run / "config.yaml")]
    fit(*config, "--trainer.default_root_dir=runs", "--name=again")
    assert read_json("runs/again/metrics.json") == read_json(tiny_run / "metrics.json")


def test_a_dry_run_leaves_nothing_behind(workplace):
    small("--trainer.fast_dev_run=true")
    assert list(workplace.iterdir()) == []


def test_without_a_name_the_run_is_called_after_data_model_and_time(workplace):
    run = small("--name=null", "--model.arch=resnet18").run.path
    assert run.name.startswith("syntheticflowers-resnet18-2")
    assert "\nname: null\n" in (run / "config.yaml").read_text()


def test_images_that_are_kept_on_the_device_train_to_the_same_weights(workplace):
    runs = [
        small(f"--data.device_cache={kept}", f"--name={kept}").run.path
        for kept in ("false", "true")
    ]
    assert not differences(outcome(runs[0]), outcome(runs[1]))


def test_a_finished_run_names_the_way_to_train_longer_which_works(tiny_run, workplace):
    options = [*TINY, *SLIM, f"--trainer.default_root_dir={tiny_run.parent}"]
    with pytest.raises(UserError, match="start another from its weights: ") as refused:
        fit(*options, "--name=tiny")
    way = shlex.split(str(refused.value).split("weights: ")[1].split(";")[0])
    best = tiny_run / "checkpoints" / "best.ckpt"
    assert way == ["--name", "tiny_longer", "--model.weights", str(best)]
    before = load(best)["state_dict"]
    assert not differences(dict(FitCLI([*options, *way]).model.state_dict()), dict(before))


def test_a_moved_run_still_knows_its_best_metric(tiny_run, workplace, monkeypatch):
    run = shutil.copytree(tiny_run, workplace / "elsewhere" / "tiny")
    (run / "metrics.json").unlink()
    before = (run / "checkpoints" / "best.ckpt").read_bytes()
    hook = "on_validation_epoch_end"
    monkeypatch.setattr(ImageClassifier, hook, lambda model: model.log("val/accuracy", 0.0))
    monkeypatch.setattr("project.callbacks.ConfusionMatrixPlot.on_validation_end", lambda *_: None)
    place = ["--trainer.default_root_dir=elsewhere", "--name=tiny"]
    fit(*TINY, *SLIM, "--trainer.max_epochs=2", *place)
    assert (run / "checkpoints" / "best.ckpt").read_bytes() == before


FILES = ["--data=images", "--data.image_size=32", "--data.batch_size=4"]


def test_a_resumed_run_says_that_as_many_images_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        make_folder(Path("images", split), {"red": 8, "blue": 8})
    images = Path("images/train/red")
    stop_at(1, data=FILES)
    (images / "0.jpg").rename(images / "zero.jpg")  # and so is the order
    stop_at(2, data=FILES)
    change = "the data has changed since .*, in names, labels or lengths of files of train; what"
    assert re.search(change, capsys.readouterr().err)
    os.utime(images / "1.jpg", (0, 0))
    stop_at(3, data=FILES)
    (images / "1.jpg").rename(images / "one.jpg")
    last = load(LAST)
    del last[ABOUT]["digests"]  # as in checkpoints of before
    torch.save(last, LAST)
    stop_at(4, data=FILES)
    assert "changed" not in capsys.readouterr().err


def test_a_run_resumes_with_the_same_images_in_another_place_alone(workplace, capsys):
    make_folder(Path("images"), {"red": 30, "blue": 30})
    stop_at(1, data=FILES)
    shutil.copytree("images", "copy")
    Path("images").rename("moved")
    Path("copy/red/5.jpg").rename("copy/red/five.jpg")
    other = "--data.root is copy, not images, and with it the data, .*, which cannot change when"
    with pytest.raises(UserError, match=other):
        small(data=["--data=copy", *FILES[1:]])
    capsys.readouterr()
    stop_at(2, data=["--data=moved", *FILES[1:]])
    assert "from here on --data.root is moved, not images" in capsys.readouterr().err


def test_a_run_on_a_table_resumes_with_the_same_table_in_another_place_alone(workplace, capsys):
    make_folder(Path("images"), {"red": 30, "blue": 30})
    Path("tables/deep").mkdir(parents=True)
    write_csv(Path())
    rows = Path("labels.csv").read_text()
    outside = rows.replace("images/", f"{Path('images').absolute()}/")
    Path("tables/labels.csv").write_text(outside)
    Path("tables/deep/labels.csv").write_text(outside)
    stop_at(1, data=["--data=tables/labels.csv", *FILES[1:]])
    splits = [f"--data={path}" for path in ("tables/deep/labels.csv", "labels.csv")]
    stop_at(2, data=[splits[0], *FILES[1:]])
    with pytest.raises(UserError, match=r"--data.file is labels.csv, not .* cannot change when"):
        small(data=[splits[1], *FILES[1:]])  # whose images are in other splits


def test_a_resumed_run_says_which_images_and_options_of_its_data_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        make_folder(Path("images", split), {"red": 8, "blue": 8})
    data = FILES
    stop_at(1, data=data)
    stop_at(2, data=data)
    printed = capsys.readouterr().err
    assert not re.search("the data has changed|from here on", printed)
    Path("images/train/red/3.jpg").unlink()
    for other in ("--data.split_seed=1", "--data.image_size=48"):
        with pytest.raises(UserError, match=f"{other[:15]}.* cannot change"):
            small(other, data=data)
    small("--data.cutout=4", "--data.class_balance=1", data=data)
    printed = capsys.readouterr().err
    assert "the data has changed since this run was stopped, from {'train': 16" in printed
    (line,) = re.findall("^continuing runs/run in epoch.*; from here on (.*)", printed, re.M)
    assert "--data.cutout is 4, not 0" in line
    assert "class_balance is 1.0, not 0.0" in line
