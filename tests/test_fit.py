"""The promises of ``python -m project.fit``."""

import re
import shlex
from typing import Any

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images._checkpoint import ABOUT
from tensorboard.plugins.hparams import plugin_data_pb2

from project.fit import FitCLI
from tests.conftest import SLIM, TINY, events, fit, load, read_json, small


def test_a_run_leaves_exactly_the_files_that_the_design_names(tiny_run):
    names = [path.relative_to(tiny_run).as_posix() for path in tiny_run.rglob("*.*")]
    left = {re.sub(r"\.(vm|tfevents).*", "", name) for name in names}
    assert left == {
        *("config.yaml", "metrics.json", "run.json", "metrics.csv", "events.out"),
        *("plots/curves.png", "plots/confusion_matrix.png", "plots/classes.png"),
        *("checkpoints/best.ckpt", "checkpoints/last.ckpt"),
    }


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_explains_itself_and_loads_safely(tiny_run, name):
    about = load(tiny_run / "checkpoints" / f"{name}.ckpt")[ABOUT]
    metrics = read_json(tiny_run / "metrics.json")
    assert about["class_names"] == metrics["class_names"]
    assert about["preprocessing"]["crop"] == 32
    assert (about["arch"], about["arch_args"], about["split_seed"]) == ("resnet9_slim", {}, 0)
    assert about["versions"]["torch"] == torch.__version__.split("+")[0]
    assert about["metrics"]["val"] == metrics["val"]
    assert about["data"]["init_args"]["train_size"] == 64


def test_tensorboard_has_the_curves_and_the_images(tiny_run):
    logged = events(tiny_run)
    images, scalars = (set(logged.Tags()[kind]) for kind in ("images", "scalars"))
    assert {f"{split}/accuracy" for split in ("train", "val", "test")} <= scalars
    assert {"train/loss", "train/images_per_second", "val/loss"} <= scalars
    # a step's own rate, in one curve although there are two groups: warmup, then the cosine
    assert {name for name in scalars if "learning_rate" in name} == {"learning_rate"}
    assert [point.value for point in logged.Scalars("learning_rate")] == pytest.approx(
        [0.05, 0.1, 0.1, 0.1 * (0.01 + 0.99 / 2)]
    )
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
        assert [x.value for x in events(tiny_run).Scalars(column)] == [pytest.approx(expected)]
    settings = named["_hparams_/session_start_info"].session_start_info.hparams
    assert settings["model.optimizer.lr"].number_value == 0.1
    assert settings["model.arch"].string_value == "resnet9_slim"


def test_the_saved_config_repeats_the_run(tiny_run, workplace):
    fit(f"--config={tiny_run}/config.yaml", "--trainer.default_root_dir=runs", "--name=again")
    assert read_json("runs/again/metrics.json") == read_json(tiny_run / "metrics.json")


def test_without_a_name_the_run_is_called_after_data_model_and_time(workplace):
    run = small("--name=null", "--model.arch=resnet18").run.path
    assert run.name.startswith("syntheticflowers-resnet18-2")
    assert "\nname: null\n" in (run / "config.yaml").read_text()


def test_a_finished_run_names_the_way_to_train_longer_which_works(tiny_run, workplace):
    options = [*TINY, *SLIM, f"--trainer.default_root_dir={tiny_run.parent}"]
    with pytest.raises(UserError, match="start another from its weights: ") as refused:
        fit(*options, "--name=tiny")
    way = shlex.split(str(refused.value).split("weights: ")[1].split(";")[0])
    best = tiny_run / "checkpoints" / "best.ckpt"
    assert way == ["--name", "tiny_longer", "--model.weights", str(best)]
    options.remove(*SLIM)  # the checkpoint knows its network
    weights = dict(FitCLI([*options, *way]).model.state_dict())
    torch.testing.assert_close(weights, dict(load(best)["state_dict"]), rtol=0, atol=0)
