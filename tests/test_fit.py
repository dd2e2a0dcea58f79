"""The promises of ``python -m project.fit``."""

import shlex
import shutil
from collections import Counter

import pytest
import torch
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest  # type: ignore[attr-defined]
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.engine.training.bookkeeping import Bookkeeping
from project.fit import FitCLI
from tests.conftest import SLIM, TINY, fit, make_folder
from tests.engine.toy import differences, outcome
from tests.small import load, read_json, small, stop_at


def events(run):
    return EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0}).Reload()


def test_a_run_leaves_exactly_the_files_that_the_design_names(tiny_run):
    left = Counter(
        path.name.split(".vm")[0].split(".tfevents")[0]
        for path in tiny_run.rglob("*")
        if path.is_file()
    )
    plots = {"curves.png", "confusion_matrix.png", "classes.png"}
    assert set(left) == {
        "config.yaml",
        "metrics.json",
        "metrics.csv",
        "best.ckpt",
        "last.ckpt",
        "events.out",
        *plots,
    }
    assert {path.name for path in (tiny_run / "plots").iterdir()} == plots


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
    found = events(tiny_run)
    images, scalars = (set(found.Tags()[kind]) for kind in ("images", "scalars"))
    named = "train/loss train/accuracy train/images_per_second val/loss val/accuracy val/top5 val/f1 test/accuracy"
    assert {*named.split()} <= scalars
    # a step's own rate, in one curve although there are two parameter groups: two of warmup, then the cosine from 1 to 0.01
    assert {name for name in scalars if "learning_rate" in name} == {"learning_rate"}
    rates = [point.value for point in found.Scalars("learning_rate")]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1 * (0.01 + 0.99 / 2)])
    evaluated = {"val/confusion_matrix", "test/confusion_matrix", "test/confident_mistakes"}
    assert images == {"train/first_batch", *evaluated}
    steps = {tag: [point.step for point in found.Images(tag)] for tag in evaluated}
    for tag in ("val/accuracy", "test/accuracy"):
        steps[tag] = [point.step for point in found.Scalars(tag)]
    assert steps == {tag: [4 if tag == "test/accuracy" else 3] for tag in steps}


def test_tensorboards_own_reader_finds_the_hyperparameters_and_the_final_metrics(tiny_run):
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tiny_run.parent)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tiny_run.parent))
    asked = ListSessionGroupsRequest(slice_size=9, allowed_statuses=[0, 1, 2, 3])
    shown = Handler(RequestContext(), Context(TBContext(data_provider=provider)), "", asked).run()
    (group,) = shown.session_groups
    settings = {
        name: value.string_value or value.number_value for name, value in group.hparams.items()
    }
    expected = {
        "model.optimizer.class_path": "torch.optim.SGD",
        "model.optimizer.lr": 0.1,
        "data.batch_size": 16,
        "data.image_size": 32,
        "trainer.max_epochs": 1,
    }
    assert {name: settings[name] for name in expected} == expected
    found = {value.name.tag: value.value for value in group.metric_values}
    metrics = read_json(tiny_run / "metrics.json")
    for split in ("val", "test"):
        for name in ("accuracy", "loss", "f1", "top5"):
            assert found[f"{split}/{name}"] == pytest.approx(metrics[split][name], rel=1e-6)


def test_the_saved_config_repeats_the_run(tiny_run, workplace):
    fit(
        "--config", str(tiny_run / "config.yaml"), "--trainer.default_root_dir=runs", "--name=again"
    )
    assert read_json("runs/again/metrics.json") == read_json(tiny_run / "metrics.json")


def test_weights_saved_after_training_are_of_its_last_epoch(workplace):
    small("--trainer.max_epochs=5", "--trainer.max_steps=2")  # of four an epoch
    metrics = read_json("runs/run/metrics.json")
    assert (metrics["epoch"], metrics["step"]) == (1, 2)


def test_a_dry_run_leaves_nothing_behind(workplace):
    small("--trainer.fast_dev_run=true")
    assert list(workplace.iterdir()) == []


def test_without_a_name_the_run_is_called_after_data_model_and_time(workplace):
    small("--name=null", "--model.arch=resnet18")
    (run,) = (workplace / "runs").iterdir()
    assert run.name.startswith("syntheticflowers-resnet18-2")
    about = load(run / "checkpoints" / "best.ckpt")[ABOUT]
    assert (about["arch"], about["arch_args"]) == ("resnet18", {})
    assert "\nname: null\n" in (run / "config.yaml").read_text()


def test_images_that_are_kept_on_the_device_train_to_the_same_weights(workplace):
    runs = [
        small(f"--data.device_cache={kept}", f"--name={kept}").run.path
        for kept in ("false", "true")
    ]
    assert not differences(outcome(runs[0]), outcome(runs[1]))


def test_a_finished_run_is_not_overwritten_and_names_the_way_to_train_longer_which_works(
    tiny_run, workplace
):
    longer = [
        *TINY,
        *SLIM,
        f"--trainer.default_root_dir={tiny_run.parent}",
        "--trainer.max_epochs=2",
    ]
    finished = (tiny_run / "metrics.json").read_bytes()
    with pytest.raises(
        UserError, match="to train longer, start another from its weights: "
    ) as refused:
        fit(*longer, "--name=tiny")
    assert (tiny_run / "metrics.json").read_bytes() == finished
    way = shlex.split(str(refused.value).split("weights: ")[1].split(";")[0])
    assert way == [
        "--name",
        "tiny_longer",
        "--model.weights",
        str(tiny_run / "checkpoints" / "best.ckpt"),
    ]
    before = load(tiny_run / "checkpoints" / "best.ckpt")["state_dict"]
    for name, value in FitCLI([*longer, *way]).model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_moved_run_still_knows_its_best_metric(tiny_run, workplace, monkeypatch):
    run = shutil.copytree(tiny_run, workplace / "elsewhere" / "tiny")
    (run / "metrics.json").unlink()
    before = (best := run / "checkpoints" / "best.ckpt").read_bytes()
    hook = "on_validation_epoch_end"
    monkeypatch.setattr(
        Bookkeeping, hook, lambda _, trainer, model: model.log("val/accuracy", 0.0)
    )  # worse
    monkeypatch.setattr("project.callbacks.ConfusionMatrixPlot.on_validation_end", lambda *_: None)
    fit(
        *TINY,
        *SLIM,
        "--trainer.max_epochs=2",
        "--trainer.default_root_dir=elsewhere",
        "--name=tiny",
    )
    assert best.read_bytes() == before


def test_a_resumed_run_says_which_images_and_options_of_its_data_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        make_folder(workplace / "images" / split, {"red": 8, "blue": 8})
    data = [
        "--data=FolderDataModule",
        "--data.root=images",
        "--data.image_size=32",
        "--data.batch_size=4",
    ]
    stop_at(1, data=data)
    stop_at(2, data=data)
    said = capsys.readouterr().err
    assert "the data has changed" not in said
    assert "from here on" not in said
    (workplace / "images" / "train" / "red" / "3.jpg").unlink()
    erasing = "--data.train_transforms=[torchvision.transforms.v2.RandomErasing]"
    small("--data.cutout=4", "--data.class_balance=1", erasing, data=data)
    said = capsys.readouterr().err
    assert "the data has changed since this run was stopped, from {'train': 16" in said
    (line,) = (
        line for line in said.splitlines() if line.startswith("continuing runs/run in epoch")
    )
    changes = (
        "--data.cutout is 4, not 0",
        "class_balance is 1.0, not 0.0",
        "train_transforms is [{'class_path': 'torchvision.transforms.v2.RandomErasing'",
    )
    assert all(change in line for change in ("; from here on ", *changes))
