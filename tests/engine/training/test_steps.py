"""Steps let nothing that is not finite reach the weights, wait for no device, and are logged; averages of weights are exact."""

import json
import math
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
)
from torch import Tensor
from torch.optim.lr_scheduler import ConstantLR

from project.engine.run.loggers import is_logged
from project.engine.training.module import ClassifierModule
from project.engine.training.non_finite import _non_finite
from project.model import ImageClassifier
from tests.conftest import cases, evaluate, make_folder
from tests.engine.run.test_folder import curve
from tests.engine.training.test_resume import SCALED
from tests.model.test_classifier import Memory, linear, trainer
from tests.small import load, one_line, require_same_end, small
from tests.stress import SmallNetwork, differences, outcome

RUN = Path("runs/run")
START = "--trainer.callbacks.update_starting_at"
EMA = [
    "--trainer.callbacks+=EMAWeightAveraging",
    "--trainer.callbacks.decay=0.9",
    "--model.optimizer.lr=0.5",
]
FOLDER = [
    "--data=FolderDataModule",
    "--data.root=images",
    "--data.image_size=32",
    "--data.batch_size=4",
]
FOLDER += ["--data.num_workers=0"]


class Witness(Callback):
    """Remembers the weights before each step and the images of its batches, by step."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.images: dict[int, list[str]] = {}
        self.network: Any = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.network, step, train = (
            pl_module.network,
            trainer.global_step + 1,
            trainer.datamodule.splits["train"],
        )
        self.weights[step] = weights_of(self.network)
        self.images.setdefault(step, []).extend(
            train.name(index) for index in batch.indices.tolist()
        )


class BadGradient(Callback):
    """Puts infinity into a gradient in some steps, counted from 1."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step + 1 in self.steps:
            pl_module.network.fc.bias.grad[0] = math.inf


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


@pytest.fixture
def late(request, monkeypatch):
    """Reads the answers as late as a GPU's, if asked to."""
    if request.param:
        monkeypatch.setattr(
            "project.engine.training.non_finite._copied", lambda flags: flags.clone().tolist
        )
    return request.param


@pytest.mark.parametrize(
    ("accumulate", "step", "late"), [(1, 7, False), (2, 4, True)], indirect=["late"]
)
def test_the_files_behind_a_bad_loss_are_named_and_the_run_resumes_from_before_that_step(
    workplace, monkeypatch, capsys, late, accumulate, step
):
    make_folder(workplace / "images", {"blue": 15, "red": 15})
    flags = [
        f"--trainer.accumulate_grad_batches={accumulate}",
        "--callbacks.last_checkpoint.every_n_steps=1",
    ]
    flags.append("--trainer.log_every_n_steps=1")
    witness, own_step = Witness(), ImageClassifier.training_step

    def spoilt_step(model, batch, batch_idx):
        spoilt = batch_idx % accumulate == 0 and model.trainer.global_step + 1 == step
        return own_step(model, batch, batch_idx) * (math.nan if spoilt else 1.0)

    small(*flags, "--trainer.default_root_dir=whole", data=FOLDER)
    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "training_step", spoilt_step)
        said = one_line(lambda: small(*flags, data=FOLDER, callbacks=[witness]), capsys)
    assert f"training stopped at step {step}: the loss is nan" in said
    assert "in process 0, of the images '" in said
    assert said.endswith("try a lower --model.optimizer.lr, under another --name")
    assert len(witness.images[step]) == said.count(".jpg") == 4 * accumulate
    assert all(
        f"'{name}'" in said and Path("images", name).exists() for name in witness.images[step]
    )
    assert late or differences(witness.weights[step], weights_of(witness.network)) == []
    last, best = (load(RUN / "checkpoints" / f"{name}.ckpt") for name in ("last", "best"))
    assert last["global_step"] == step - 1
    assert all(math.isfinite(value) for _, value in curve(RUN, "train/loss"))
    assert all(
        value.isfinite().all() for one in (last, best) for value in one["state_dict"].values()
    )
    small(*flags, data=FOLDER)
    require_same_end(RUN, outcome(Path("whole/run")))


def test_no_checkpoint_of_a_users_own_callback_has_numbers_that_are_not_finite(workplace, capsys):
    every = "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks."
    flags = f"{every}save_weights_only=true --trainer.callbacks.every_n_train_steps=1 --trainer.callbacks.save_top_k=-1"

    def spoil(
        trainer: Any, model: Any, *_: Any
    ) -> None:  # as a forward pass might; training never reads statistics
        if trainer.global_step == 3:
            model.network.bn1.running_mean[0] = math.inf

    said = one_line(
        lambda: small(*flags.split(), callbacks=[LambdaCallback(on_train_batch_end=spoil)]), capsys
    )
    assert "network.bn1.running_mean has values that are not finite after step 3;" in said
    assert "to resume" not in said
    assert {load(path)["global_step"] for path in RUN.rglob("*.ckpt")} == {1, 2}


@pytest.mark.parametrize(  # of the 4 steps before a validation
    ("step", "last", "late"), [(3, 3, False), (3, 4, True), (4, 4, True)], indirect=["late"]
)
def test_a_bad_gradient_of_a_finite_loss_is_neither_validated_nor_saved(
    workplace, capsys, late, step, last
):
    """A GPU is a step ahead, which comes to nothing."""
    witness, average, validated = Witness(), cast(Any, EMAWeightAveraging(decay=0.5)), Mock()
    callbacks = [BadGradient(step), witness, average, LambdaCallback(on_validation_end=validated)]
    said = one_line(lambda: small("--trainer.log_every_n_steps=4", callbacks=callbacks), capsys)
    stopped = f"training stopped at step {step}: the gradient is not finite in process 0, of the"
    assert stopped in said
    assert "and 8 more;" in said  # of the 16
    assert max(witness.weights) == last
    if not late:
        assert differences(witness.weights[step], weights_of(witness.network)) == []
        assert all(value.isfinite().all() for value in average._average_model.parameters())
    assert (validated.called, [*RUN.rglob("*.ckpt"), *RUN.rglob("metrics.csv")]) == (False, [])


@pytest.mark.filterwarnings(
    "ignore:.*lr_scheduler.step.*before.*optimizer.step.*"
)  # of a first skipped step
def test_a_loss_scaler_may_skip_steps_and_too_many_in_a_row_are_an_error(workplace, capsys):
    flags = [*SCALED.split(), "--callbacks.stop_on_non_finite.patience=3"]
    witness = Witness()
    callbacks = [BadGradient(1, 3, 5, 6, 7, 8), witness]
    said = one_line(lambda: small(*flags, callbacks=callbacks), capsys)
    assert "training stopped at step 8: the gradient is not finite" in said
    kept = [
        step
        for step in range(1, 8)
        if not differences(witness.weights[step], witness.weights[step + 1])
    ]
    assert kept == [1, 3, 5, 6, 7]


@cases(
    "values finite", ([1e18, -1e18], True), ([math.nan, 1], False), ([math.inf, -math.inf], False)
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_finite_is_told_from_what_is_not(values, finite, dtype):
    tensors = [torch.tensor(0.5), torch.zeros(2, 3, dtype=dtype), torch.tensor(values, dtype=dtype)]
    assert bool(_non_finite(tensors, torch.device("cpu"))) is not finite


class OnMeta(Callback):
    """Moves training to the device without data, where ``item``, ``tolist``, ``cpu``, ``nonzero`` and the like are errors."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.to("meta")
        trainer.strategy._root_device, trainer._teardown = torch.device("meta"), lambda: None
        trainer.strategy.setup_optimizers(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        assert batch.images.is_meta
        if batch_idx == 3:
            raise EOFError("the steps were taken")


@cases(
    "flags",
    ["--trainer.enable_progress_bar=true", "--trainer.callbacks+=TQDMProgressBar"],
    [
        "--data.batch_transforms+=torchvision.transforms.v2.MixUp",
        "--trainer.accumulate_grad_batches=2",
    ],
    [
        "--model.optimizer=examples.recipes.muon.Muon",
        "--trainer.gradient_clip_val=1",
        "--data.crop_padding=2",
    ],
    [
        "--data.device_cache=true",
        "--trainer.precision=bf16-mixed",
        "--model.loss.class_weights=balanced",
    ],
)
def test_a_step_reads_nothing_from_its_device(workplace, monkeypatch, flags):
    monkeypatch.setattr(
        torch, "get_device_module", lambda _: SimpleNamespace(manual_seed=lambda seed: None)
    )
    monkeypatch.setattr(
        "project.engine.training.non_finite._copied", lambda flags: lambda: [False, False]
    )
    logged = {"loss": 1.0, "accuracy": 0.5}  # in the second step, which alone may wait
    monkeypatch.setattr(ClassifierModule, "conclude", lambda *_: logged)
    with pytest.raises(EOFError, match="the steps were taken"):
        small(
            "--trainer.logger=false", "--trainer.log_every_n_steps=2", *flags, callbacks=[OnMeta()]
        )


@cases("every changes", (100, {0: 1}), (100, {0: 1, 1: 2}), (100, {0: 4, 2: 1}), (0, {0: 1, 1: 2}))
def test_every_epoch_is_logged_however_many_steps_it_has(every, changes):
    logged: list[int] = []
    witness = LambdaCallback(
        on_train_batch_end=lambda run, *_: logged.extend([run.current_epoch] * is_logged(run))
    )
    callbacks = [GradientAccumulationScheduler(changes), witness]
    run = trainer(max_epochs=3, limit_val_batches=0, log_every_n_steps=every, callbacks=callbacks)
    run.fit(linear(lr_scheduler_interval="epoch"), datamodule=Memory())
    assert {*logged} == ({0, 1, 2} if every else set())
    assert run.log_every_n_steps == every  # as the next training with this trainer may be longer


@cases(
    "batches accumulate changes",
    (4, 2, {}),
    (1, 4, {}),
    (3, 2, {}),
    (4, 3, {}),
    (4, 1, {0: 3, 1: 2, 2: 8}),
)
def test_each_step_has_the_mean_gradient_of_its_batches_as_in_a_plain_loop(
    batches, accumulate, changes
):
    data, schedule = Memory(batch_size=8), partial(ConstantLR, factor=1.0)
    model = linear(lr_scheduler=schedule, lr_scheduler_interval="epoch")
    plain = deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        size = changes.get(epoch, accumulate)
        for start in range(0, batches, size):
            step = data.batches()[start : min(start + size, batches)]
            images, labels = (torch.cat(field) for field in zip(*step, strict=True))
            optimizer.zero_grad()
            plain.loss(plain(images), labels).mean().backward()
            optimizer.step()
    options = {"max_epochs": 3, "limit_train_batches": batches, "limit_val_batches": 0}
    if changes:
        options["callbacks"] = GradientAccumulationScheduler(changes)
    trainer(accumulate_grad_batches=accumulate, **options).fit(model, datamodule=data)
    torch.testing.assert_close(model.network.state_dict(), plain.network.state_dict())


def real(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of weights and statistics, without the counts of batches, of which there is no mean."""
    return {name: value.clone() for name, value in state.items() if value.is_floating_point()}


class Float32(SmallNetwork):
    """Remembers in training and evaluation whether a GPU may round to TF32."""

    rounding: ClassVar[set[tuple[bool, bool]]] = set()

    def forward(self, x):
        self.rounding.add((self.training, torch.backends.cudnn.allow_tf32))
        return super().forward(x)


def test_tf32_is_off_in_exact_evaluation_alone(workplace):
    fresh = LambdaCallback(on_train_start=lambda *_: Float32.rounding.clear())
    small("--trainer.max_steps=1", network=Float32, callbacks=[fresh])
    assert Float32.rounding == {(True, True), (False, False)}


PLATEAU = [
    "--model.lr_scheduler=ReduceLROnPlateau",
    "--model.lr_scheduler.patience=0",
    "--model.lr_scheduler.threshold=1e9",  # nothing is an improvement but the first
    "--trainer.max_epochs=4",
]


@cases(
    "flags monitor looks",  # how often it looked at the metric, in four epochs of four steps
    ("", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=2", "val/loss", 2),
    ("--model.lr_scheduler_interval=step", "val/loss", 4),
    ("--model.lr_scheduler_interval=step --trainer.val_check_interval=2", "val/loss", 8),
    ("--model.lr_scheduler_interval=step --trainer.log_every_n_steps=1", "train/loss", 16),
    ("--trainer.check_val_every_n_epoch=2", "train/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=3", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=9", "val/loss", 0),
    ("--trainer.check_val_every_n_epoch=2 --model.lr_scheduler_interval=step", "val/loss", 0),
    ("--trainer.val_check_interval=00:01:00:00", "val/loss", 0),
    ("--model.lr_scheduler_interval=step --trainer.log_every_n_steps=3", "train/loss", 0),
    ("--trainer.log_every_n_steps=0", "train/loss", 0),
)
def test_a_schedule_looks_at_a_metric_when_it_was_measured_or_is_refused_before_the_first_step(
    workplace, capsys, flags, monitor, looks
):
    options = [*PLATEAU, f"--model.lr_scheduler.monitor={monitor}", *flags.split()]
    if looks:
        (config,) = small(*options).trainer.lr_scheduler_configs
        assert config.scheduler.last_epoch == looks
    else:
        said = one_line(lambda: small(*options), capsys)
        assert said.startswith(f"error: ReduceLROnPlateau watches {monitor}, which is not measured")
        assert not RUN.exists()


class Averaged(Callback):
    """An exponential moving average in a plain loop, updated after steps from 1 and epochs from 0, and what is validated."""

    def __init__(self, after_step: Any, after_epoch: Any) -> None:
        self.after_step, self.after_epoch = after_step, after_epoch
        self.average: dict[str, Tensor] | None = None
        self.expected: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []
        self.losses: list[float] = []

    def update(self, model, wanted: bool) -> None:
        now = real(model.network.state_dict())
        if wanted:
            before = self.average or now
            self.average = {name: 0.9 * before[name] + 0.1 * value for name, value in now.items()}
        self.newest = now

    def on_train_batch_end(self, trainer, pl_module, *_) -> None:
        self.update(pl_module, self.after_step(trainer.global_step))

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.update(pl_module, self.after_epoch(trainer.current_epoch))

    def on_validation_batch_end(self, trainer, pl_module, *_) -> None:
        self.seen = real(pl_module.network.state_dict())

    def on_validation_end(self, trainer, pl_module) -> None:
        self.expected.append(self.average or self.newest)
        self.validated.append(self.seen)
        self.losses.append(float(trainer.callback_metrics["val/loss"]))


@cases(
    "start after_step after_epoch",
    ([], lambda step: True, lambda epoch: False),
    ([f"{START}_step=6"], lambda step: step >= 7, lambda epoch: False),
    (
        [f"{START}_epoch=1", "--trainer.callbacks.update_every_n_steps=0"],
        lambda step: False,
        lambda epoch: epoch >= 1,
    ),
)
def test_the_average_is_that_of_a_plain_loop_or_else_the_newest(
    workplace, monkeypatch, start, after_step, after_epoch
):
    """In epochs of four steps; steps are counted from 0 by the option, and from 1 here."""
    by_hand = Averaged(after_step, after_epoch)
    small(*EMA, *start, "--trainer.max_epochs=3", "--monitor=val/loss", callbacks=[by_hand])
    assert len(by_hand.validated) == 3
    torch.testing.assert_close(by_hand.validated, by_hand.expected)
    best = load(RUN / "checkpoints" / "best.ckpt")
    assert best["epoch"] == by_hand.losses.index(min(by_hand.losses))
    saved = {
        name.removeprefix("network."): value
        for name, value in best["state_dict"].items()
        if "network." in name
    }
    torch.testing.assert_close(real(saved), by_hand.expected[best["epoch"]])
    monkeypatch.setattr(
        "project.model.classifier.build_network", lambda arch, classes, args: SmallNetwork(classes)
    )
    evaluate(f"{RUN}/checkpoints/best.ckpt")
    evaluated = json.loads((RUN / "checkpoints" / "best.test.metrics.json").read_text())
    assert json.loads((RUN / "metrics.json").read_text())["test"].items() <= evaluated.items()
