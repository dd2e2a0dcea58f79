"""The promises of ``python -m project.fit``."""

import json
from collections import Counter

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest  # type: ignore[attr-defined]
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler
from torchvision.models import resnet18

from project.engine.run.checkpoint import ABOUT
from project.engine.training.bookkeeping import Bookkeeping
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import TINY, fit, make_folder
from tests.small import load, small
from tests.stress import differences, outcome


def events(run):
    accumulator = EventAccumulator(str(run), size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def test_a_run_leaves_exactly_the_files_that_the_design_names(tiny_run):
    left = Counter(path.name.split(".vm")[0].split(".tfevents")[0] for path in tiny_run.rglob("*") if path.is_file())
    plots = {"curves.png", "confusion_matrix.png", "classes.png"}
    assert set(left) == {"config.yaml", "metrics.json", "metrics.csv", "best.ckpt", "last.ckpt", "events.out", *plots}
    assert {path.name for path in (tiny_run / "plots").iterdir()} == plots


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_explains_itself_and_loads_safely(tiny_run, name):
    about = load(tiny_run / "checkpoints" / f"{name}.ckpt")[ABOUT]
    assert about["class_names"] == json.loads((tiny_run / "metrics.json").read_text())["class_names"]
    assert about["preprocessing"]["crop"] == 32
    assert (about["arch"], about["arch_args"], about["split_seed"]) == ("resnet9_slim", {}, 0)
    assert about["versions"]["torch"] == torch.__version__.split("+")[0]
    assert about["metrics"]["val"]["total"] == 24
    assert about["data"]["init_args"]["train_size"] == 64
    asked = {"name": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0, "weight_decay": 5e-4, "nesterov": True}
    assert about["optimizer"] == asked
    assert about["lr_scheduler"] == {"name": "CosineWithWarmup", "interval": "step", "lrf": 0.01, "warmup_epochs": 1.0}


def test_tensorboard_has_the_curves_and_the_images(tiny_run):
    tags = events(tiny_run).Tags()
    named = "train/loss train/accuracy train/images_per_second val/loss val/accuracy val/top5 val/f1 test/accuracy"
    assert {*named.split()} <= {*tags["scalars"]}
    # a step's own rate, in one curve although there are two parameter groups: two of warmup, then the cosine from 1 to 0.01
    assert [name for name in tags["scalars"] if "learning_rate" in name] == ["learning_rate"]
    for name in ("val/accuracy", "test/accuracy"):  # of the same weights, so at the same step
        assert [point.step for point in events(tiny_run).Scalars(name)] == [3]
    evaluated = {"val/confusion_matrix", "test/confusion_matrix", "test/confident_mistakes"}
    for name in evaluated:
        assert [point.step for point in events(tiny_run).Images(name)] == [3]
    rates = [point.value for point in events(tiny_run).Scalars("learning_rate")]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.1 * (0.01 + 0.99 / 2)])
    assert set(tags["images"]) == {"train/first_batch", *evaluated}


def test_tensorboards_own_reader_finds_the_hyperparameters_and_the_final_metrics(tiny_run):
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tiny_run.parent)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tiny_run.parent))
    asked = ListSessionGroupsRequest(slice_size=9, allowed_statuses=[0, 1, 2, 3])
    shown = Handler(RequestContext(), Context(TBContext(data_provider=provider)), "", asked).run()
    (group,) = shown.session_groups
    settings = {name: value.string_value or value.number_value for name, value in group.hparams.items()}
    expected = {"optimizer.name": "SGD", "optimizer.lr": 0.1, "batch_size": 16, "image_size": 32, "max_epochs": 1}
    assert {name: settings[name] for name in expected} == expected
    found = {value.name.tag: value.value for value in group.metric_values}
    metrics = json.loads((tiny_run / "metrics.json").read_text())
    for split in ("val", "test"):
        for name in ("accuracy", "loss", "f1", "top5"):
            assert found.pop(f"{split}/{name}") == pytest.approx(metrics[split][name], rel=1e-6)
    assert not found


def test_the_saved_config_repeats_the_run(tiny_run, workplace):
    fit("--config", str(tiny_run / "config.yaml"), "--trainer.default_root_dir=runs", "--name=again")
    first, again = (json.loads((run / "metrics.json").read_text()) for run in (tiny_run, workplace / "runs" / "again"))
    assert first == again


def test_best_is_best_on_validation_last_is_last_and_the_best_is_tested_once(workplace, monkeypatch):
    accuracies, tested = iter([0.5, 0.75, 0.25]), []

    def pretend(bookkeeping, trainer, model):
        model.log("val/accuracy", next(accuracies))

    def remember(model):
        tested.append({name: value.clone() for name, value in model.state_dict().items()})

    monkeypatch.setattr(Bookkeeping, "on_validation_epoch_end", pretend)
    monkeypatch.setattr("project.callbacks.ConfusionMatrixPlot.on_validation_end", lambda *_: None)
    monkeypatch.setattr(ImageClassifier, "on_test_start", remember)
    monkeypatch.setattr(FitCLI, "_conclude", lambda self: None)
    small("--trainer.max_epochs=3")
    best, last = (load(workplace / "runs" / "run" / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    assert (best["global_step"], last["global_step"]) == (2 * 4, 3 * 4)
    assert len(tested) == 1
    assert all(torch.equal(best["state_dict"][name], value) for name, value in tested[0].items())
    assert not all(torch.equal(last["state_dict"][name], value) for name, value in tested[0].items())
    logged = events(workplace / "runs" / "run")
    for points in (logged.Scalars("test/accuracy"), logged.Images("test/confusion_matrix")):
        assert [point.step for point in points] == [2 * 4 - 1]  # counted from 0
    assert [point.step for point in logged.Scalars("val/accuracy")] == [4 * epoch - 1 for epoch in (1, 2, 3)]
    assert "step" not in logged.Tags()["scalars"]


def test_weights_saved_after_training_are_of_its_last_epoch(workplace):
    small("--trainer.max_epochs=5", "--trainer.max_steps=2")  # of four an epoch
    metrics = json.loads((workplace / "runs" / "run" / "metrics.json").read_text())
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
    assert yaml.safe_load((run / "config.yaml").read_text())["name"] is None


def test_a_folder_of_classes_trains_without_saying_how_many(workplace):
    make_folder(workplace / "images", {"blue": 12, "green": 12, "red and more": 12})
    data = ["--data=FolderDataModule", "--data.root=images", "--data.image_size=32", "--data.batch_size=8"]
    cli = small("--data.num_workers=0", data=data)
    assert cli.model.class_names == ["blue", "green", "red and more"]
    assert cli.model.eval()(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1, 3)
    metrics = json.loads((workplace / "runs" / "run" / "metrics.json").read_text())
    assert 3 <= metrics["test"]["total"] < 12  # about a tenth of each class, and one at least
    assert "top5" not in metrics["test"]


def test_a_run_starts_from_weights_of_a_hand_written_script(workplace, capsys):
    weights = {f"module.{name}": value for name, value in resnet18(num_classes=3).state_dict().items()}
    torch.save({"best_state_dict": weights, "epoch": 7}, "theirs.pth")
    flags = ["--model.arch=resnet18", "--model.weights=theirs.pth", "--model.freeze=backbone"]
    cli = fit(*TINY, *flags, "--name=run")
    assert "with a new head for 8 classes (fc.weight, fc.bias)" in capsys.readouterr().err
    network = cli.model.network.state_dict()
    for name, value in network.items():
        assert name.startswith("fc.") or torch.equal(value, weights[f"module.{name}"]), name


def test_images_that_are_kept_on_the_device_train_to_the_same_weights(workplace):
    runs = [small(f"--data.device_cache={kept}", f"--name={kept}").run.path for kept in ("false", "true")]
    assert not differences(outcome(runs[0]), outcome(runs[1]))
