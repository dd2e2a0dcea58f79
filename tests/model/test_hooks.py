"""Each hook of Lightning is called as its documentation says.

A plain Trainer calls it as often as for any LightningModule; so do commands that train, resume, test
or evaluate.
"""

import pickle
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelPruning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, IterableDataset

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests import conftest
from tests.conftest import (
    BEST,
    RUN,
    TINY_DATA,
    cases,
    checkpoint_of,
    evaluate,
    load,
    read_json,
    rows,
    small,
    stop_at,
)
from tests.model.test_classifier import Memory, classifier, loader_of, trainer

HOOKS = (
    *(name for name in dir(LightningModule) if name.startswith("on_")),
    *("setup", "teardown", "configure_model", "configure_callbacks", "configure_optimizers"),
    *("configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
    *("transfer_batch_to_device", "load_state_dict"),
)


def counted(cls: Any, name: str) -> Any:
    """A subclass that counts the calls of its hooks in ``calls``."""
    calls: Counter[str] = Counter()

    def count(hook: str) -> Any:
        def counts(self: Any, *args: Any, **options: Any) -> Any:
            calls[hook] += 1
            return getattr(super(made, self), hook)(*args, **options)

        return counts

    made = type(
        name, (cls,), {"calls": calls, "__module__": __name__} | {h: count(h) for h in HOOKS}
    )
    return made


class Plain(LightningModule):
    """A LightningModule as in Lightning's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.layer(batch[0].float().mean((2, 3))), batch[1])

    validation_step = test_step = training_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0].float().mean((2, 3)))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        schedule = {"scheduler": StepLR(optimizer, 1), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


Counted = counted(ImageClassifier, "Counted")


@pytest.fixture(autouse=True)
def no_calls():
    Counted.calls.clear()


def by_hand(model: Any) -> dict[str, dict[str, int]]:
    """The calls of each use of a plain trainer."""
    calls: dict[str, dict[str, int]] = {}

    def note(use: str) -> None:
        calls[use] = dict(model.calls)
        model.calls.clear()

    data, options = Memory(), {"gradient_clip_val": 1.0, "num_sanity_val_steps": 1}
    run = trainer(max_epochs=2, **options)
    run.fit(model, datamodule=data)
    run.save_checkpoint("plain.ckpt")
    note("fit")
    run = trainer(max_epochs=3, **options)
    run.fit(model, datamodule=data, ckpt_path="plain.ckpt", weights_only=True)
    note("resumed")
    run.test(model, datamodule=data, ckpt_path="plain.ckpt", verbose=False, weights_only=True)
    note("test")
    run.validate(model, datamodule=data, verbose=False)
    note("validate")
    run.predict(model, data.loader())
    note("predict")
    return calls


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:You have overridden")
def test_a_plain_trainer_calls_the_same_hooks_as_for_a_plain_module(workplace):
    expected = by_hand(counted(Plain, "CountedPlain")())
    assert by_hand(classifier(Counted)) == expected
    assert expected["fit"]["optimizer_step"] == 4  # two epochs of two batches
    assert expected["resumed"]["on_load_checkpoint"] == 1
    loaded = Counted.load_from_checkpoint("plain.ckpt")
    once = {"configure_model": 1, "on_load_checkpoint": 1, "load_state_dict": 1}
    assert dict(Counted.calls) == once
    assert loaded.about["metrics"]["val"].keys() >= {"accuracy", "loss", "confusion_matrix"}


ARCH = "--model.arch=tests.conftest.SmallNetwork"
IMPORT = f"--import=tests.conftest,{__name__}"
ALWAYS = {"setup": 1, "teardown": 1, "configure_model": 1, "configure_callbacks": 1}
OF_TEST = {**ALWAYS, "on_test_start": 1, "on_test_epoch_end": 1, "on_test_batch_end": 2}
OF_FIT = {"on_fit_start": 1, "on_train_start": 1, "on_train_end": 1, "on_fit_end": 1}


def times(batches: int, epochs: int) -> dict[str, int]:
    steps = ("optimizer_step", "lr_scheduler_step", "configure_gradient_clipping")
    hooks = ("on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step")
    return dict.fromkeys((*steps, *hooks), batches) | {
        "on_train_epoch_end": epochs,
        "on_validation_epoch_end": epochs,
    }


def require(expected: dict[str, int]) -> None:
    calls = dict(Counted.calls)
    assert {name: calls.get(name, 0) for name in expected} == expected
    Counted.calls.clear()


@pytest.mark.filterwarnings("ignore:You have overridden")
def test_the_commands_call_each_hook_once(workplace):
    model = f"--model={__name__}.Counted"
    run = small(model, ARCH, "--trainer.gradient_clip_val=1")
    twice = Counter(ALWAYS) + Counter(OF_TEST)
    require({**twice, **OF_FIT, **times(8, 2), "on_load_checkpoint": 1, "load_state_dict": 1})
    test = run.model.results["test"]
    assert float(run.trainer.callback_metrics["test/loss"]) == pytest.approx(test["loss"])
    assert read_json(RUN / "metrics.json")["test"] == test
    evaluate(str(BEST), IMPORT)
    # as with Lightning's, reading a checkpoint makes late layers, and then the trainer asks again
    require({**OF_TEST, "configure_model": 2, "on_load_checkpoint": 1, "on_train_start": 0})


@pytest.mark.filterwarnings("ignore:You have overridden")
def test_a_resumed_run_calls_each_hook_once(workplace):
    model = f"--model={__name__}.Counted"
    stop_at(6, model, ARCH)
    Counted.calls.clear()
    small(model, ARCH)
    twice = Counter(ALWAYS) + Counter(OF_TEST)
    require({**twice, **OF_FIT, **times(2, 1), "on_load_checkpoint": 2, "load_state_dict": 2})


class LogsLate(ImageClassifier):
    """Logs as much as Lightning allows, also what no logger shall have."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("both", loss, on_step=True, on_epoch=True)
        self.log("hidden", loss, on_epoch=True, logger=False)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log_dict({"late": 1.0, "both": 2.0})


@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval", "ignore:.*many workers")
def test_loggers_have_what_is_logged_for_them_by_lightnings_names(workplace):
    logger = CSVLogger("logs", "", "")
    trainer(logger=logger, max_epochs=3).fit(model := classifier(LogsLate), datamodule=Memory())
    found = rows("logs/metrics.csv")
    of_val = {f"val/{name}" for name in model.val_metrics}  # with those that an owner adds
    of_train = {f"train/{name}" for name in model.train_metrics}
    own = {"both", "both_step", "both_epoch", "late"}
    assert found[0].keys() == of_val | of_train | own | {"epoch", "step"}
    assert [row["step"] for row in found if row["train/loss"]] == ["1", "3", "5"]


class Contrast(ImageClassifier):
    """Its evaluation steps measure nothing of ours."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val/contrast", self(batch.images).std())

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("test/contrast", self(batch.images).std())


class Both(ImageClassifier):
    """Its evaluation steps measure what ours do, and log one value more."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val/contrast", self(batch.images).std())
        return super().validation_step(batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("test/contrast", self(batch.images).std())
        return super().test_step(batch, batch_idx, dataloader_idx)


@cases("name", "Contrast", "Both")
def test_what_steps_log_by_themselves_is_in_the_results_of_all_commands(workplace, capsys, name):
    """Alone, or beside what they measure."""
    flags = (f"--model={__name__}.{name}", ARCH, "--monitor=val/contrast", "--mode=max")
    stop_at(6, *flags)
    small(*flags)
    metrics = read_json(RUN / "metrics.json")
    for split in ("val", "test"):
        assert [*metrics[split]] == ["contrast"] or metrics[split]["total"] > 0
        assert ("total" in metrics[split]) == (name == "Both")
    assert capsys.readouterr().out.count("  contrast ") == 1
    states = load(BEST)["callbacks"].values()
    (score,) = (state["best_model_score"] for state in states if "best_model_score" in state)
    assert metrics["val"]["contrast"] == pytest.approx(float(score))
    evaluate(str(BEST), IMPORT)
    measured = read_json(BEST.with_suffix(".test.metrics.json"))
    assert measured["contrast"] == pytest.approx(metrics["test"]["contrast"], rel=1e-4)


class Loaders(Memory):
    """Three loaders of images of one class each, of which the second is empty."""

    def val_dataloader(self) -> Any:
        return [*map(loader_of, (self.of(0), [], self.of(2)))]

    test_dataloader = val_dataloader

    def of(self, label: int) -> list[Any]:
        return [
            (images[labels == label], labels[labels == label]) for images, labels in self.batches()
        ]


@cases("evaluate", "validate", "test")
@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:.*zero")
def test_each_loader_is_measured_by_itself(evaluate):
    model, data = classifier(), Loaders()
    run = trainer()
    (*parts,) = getattr(run, evaluate)(model, datamodule=data, verbose=False)
    split = "val" if evaluate == "validate" else "test"
    logged = {name: value for part in parts for name, value in part.items()}
    for label, suffix in ((0, ""), (2, "/dataloader_idx_2")):
        images = torch.cat([images for images, _ in data.of(label)])
        with torch.inference_mode():
            correct = (model.eval()(images).argmax(1) == label).double().mean()
        assert logged[f"{split}/accuracy{suffix}"] == pytest.approx(float(correct))
        assert model.results[split][f"total{suffix}"] == len(images)
    assert f"{split}/accuracy/dataloader_idx_1" not in logged


def test_the_default_model_can_be_sent_to_another_process():
    with warnings.catch_warnings(action="ignore"):  # pickle looks into modules of jsonargparse
        model = pickle.loads(pickle.dumps(classifier(optimizer=torch.optim.SGD)))
    assert model.optimizer is torch.optim.SGD
    default = ImageClassifier(model.class_names, model.preprocessing, "resnet9_slim")
    sent = pickle.loads(pickle.dumps(default, protocol=2))  # that of torch.save
    assert (sent.optimizer, sent.lr_scheduler) == (default.optimizer, default.lr_scheduler)
    assert all(map(torch.equal, sent.state_dict().values(), default.state_dict().values()))


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:.*lr_scheduler.step")
def test_lightnings_pruning_prunes_a_channels_last_network(workplace):
    model = classifier()
    assert model.memory_format == "channels_last"
    pruning = ModelPruning("l1_unstructured", amount=0.5)
    trainer(max_epochs=1, callbacks=[pruning]).fit(model, datamodule=Memory())
    pruned = [value for value in model.network.parameters() if value.dim() > 1]
    zeros = sum(int((value == 0).sum()) for value in pruned)
    assert zeros == pytest.approx(sum(value.numel() for value in pruned) / 2, rel=0.01)


@pytest.mark.filterwarnings("ignore:.*many workers", "ignore:You have overridden")
def test_a_file_of_weights_alone_is_of_the_class_that_was_saved(workplace):
    model = classifier(Counted)
    run = trainer(max_epochs=1)
    run.fit(model, datamodule=Memory())
    run.save_checkpoint("weights.ckpt", weights_only=True)
    assert "about" not in load(Path("weights.ckpt"))
    assert type(ImageClassifier.load_from_checkpoint("weights.ckpt")) is Counted


class Endless(IterableDataset[Any]):
    """Batches whose number is not known."""

    def __iter__(self) -> Any:
        return iter(Memory().batches())


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`", "ignore:.*many workers")
def test_an_epoch_of_unknown_length_logs_its_loss_at_its_end():
    stopping = EarlyStopping("train/loss", check_on_train_epoch_end=True)
    model = classifier(lr_scheduler=partial(StepLR, step_size=1))
    run = trainer(max_epochs=2, callbacks=[stopping])
    run.fit(model, DataLoader(Endless(), batch_size=None))
    assert stopping.best_score == run.callback_metrics["train/loss"]


def test_a_model_that_is_unfrozen_trains_its_batch_statistics_again():
    model = classifier(freeze="backbone")
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert not any(layer.training for layer in layers)
    model.unfreeze()
    assert all(layer.training for layer in layers)


class PlainCLI(LightningCLI):
    """As in Lightning's pages."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        for name in ("class_names", "preprocessing"):
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")


@pytest.mark.filterwarnings("ignore")
def test_lightnings_own_command_tests_a_checkpoint_with_the_options_that_it_has(workplace):
    model = conftest.classifier(arch="tests.conftest.SmallNetwork")
    path = checkpoint_of(model, workplace / "model.ckpt")
    options = [*TINY_DATA, "--trainer.accelerator=cpu", f"--ckpt_path={path}"]
    cli = PlainCLI(ImageClassifier, SyntheticFlowersDataModule, args=["test", *options])
    [expected] = trainer().test(model, datamodule=cli.datamodule, verbose=False)
    assert cli.trainer.callback_metrics == expected


@cases("location", {"cuda:1": "cuda:0"}, lambda storage, _: storage, torch.device("cpu"), "cpu")
def test_a_model_may_be_loaded_with_any_map_of_devices(workplace, location):
    path = checkpoint_of(classifier(), workplace / "model.ckpt")
    loaded = ImageClassifier.load_from_checkpoint(path, location)
    assert loaded.device.type == "cpu"
