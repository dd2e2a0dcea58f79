"""No loss and no gradient that is not finite reaches the weights, and no step waits for its device to know."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, LambdaCallback
from torch import Tensor

from project.engine.training.last_checkpoint import StoppedError
from project.engine.training.non_finite import StopOnNonFinite, _non_finite
from project.model import ImageClassifier
from project.model.metrics import ClassificationMetrics, Metrics
from tests.conftest import cases, make_folder
from tests.engine.run.test_folder import curve
from tests.engine.training.test_resume import SCALED
from tests.small import AtStep, load, one_line, require_same_end, small
from tests.stress import differences, outcome

RUN = Path("runs/run")
FOLDER = ["--data=FolderDataModule", "--data.root=images", "--data.image_size=32", "--data.batch_size=4"]
FOLDER += ["--data.num_workers=0"]


class Witness(Callback):
    """Remembers the weights before each step and the images of its batches, by step."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, Tensor]] = {}
        self.images: dict[int, list[str]] = {}
        self.network: Any = None
        self.validations = 0

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.validations += 1

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.network, step, train = pl_module.network, trainer.global_step + 1, trainer.datamodule.splits["train"]
        self.weights[step] = weights_of(self.network)
        self.images.setdefault(step, []).extend(train.name(index) for index in batch.indices.tolist())


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
        monkeypatch.setattr("project.engine.training.non_finite._copied", lambda flag: flag.clone().bool().item)


@pytest.mark.parametrize(("accumulate", "step", "late"), [(1, 7, False), (2, 4, True)], indirect=["late"])
def test_the_files_behind_a_bad_loss_are_named_and_the_run_resumes_from_before_that_step(
    workplace, monkeypatch, capsys, late, accumulate, step
):
    make_folder(workplace / "images", {"blue": 15, "red": 15})
    flags = [f"--trainer.accumulate_grad_batches={accumulate}", "--callbacks.last_checkpoint.every_n_steps=1"]
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
    assert all(f"'{name}'" in said and Path("images", name).exists() for name in witness.images[step])
    assert differences(witness.weights[step], weights_of(witness.network)) == []
    last, best = (load(RUN / "checkpoints" / f"{name}.ckpt") for name in ("last", "best"))
    assert last["global_step"] == step - 1
    assert all(value.isfinite().all() for one in (last, best) for value in one["state_dict"].values())
    small(*flags, data=FOLDER)
    require_same_end(RUN, outcome(Path("whole/run")))


def test_no_checkpoint_of_a_users_own_callback_has_numbers_that_are_not_finite(workplace, capsys):
    every = "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks."
    flags = f"{every}save_weights_only=true --trainer.callbacks.every_n_train_steps=1 --trainer.callbacks.save_top_k=-1"

    def spoil(trainer: Any, model: Any, *_: Any) -> None:  # as a forward pass might; training never reads statistics
        if trainer.global_step == 3:
            model.network.bn1.running_mean[0] = math.inf

    said = one_line(lambda: small(*flags.split(), callbacks=[LambdaCallback(on_train_batch_end=spoil)]), capsys)
    assert "network.bn1.running_mean has values that are not finite after step 3;" in said
    assert "to resume" not in said
    assert {load(path)["global_step"] for path in RUN.rglob("*.ckpt")} == {1, 2}


@cases(
    "optimizer step last late",  # of the 4 before a validation
    ("SGD", 3, 3, False),
    ("SGD", 3, 4, True),  # a GPU is a step ahead, which comes to nothing; torch fuses this optimizer
    ("AdamW", 4, 4, True),  # and this one
    ("project.model.Muon", 3, 4, True),
    ("RMSprop", 4, 4, True),
    indirect=["late"],
)
def test_a_bad_gradient_of_a_finite_loss_changes_no_weight_and_no_average_and_is_neither_validated_nor_saved(
    workplace, capsys, late, optimizer, step, last
):
    witness, average = Witness(), cast(Any, EMAWeightAveraging(decay=0.5))
    flags = [f"--model.optimizer={optimizer}", "--model.optimizer.lr=0.01"]
    said = one_line(lambda: small(*flags, callbacks=[BadGradient(step), witness, average]), capsys)
    assert f"training stopped at step {step}: the gradient is not finite in process 0, of the images" in said
    assert "and 8 more;" in said  # of the 16
    assert max(witness.weights) == last
    assert differences(witness.weights[step], weights_of(witness.network)) == []
    assert differences(witness.weights[step], witness.weights[last]) == []
    assert all(value.isfinite().all() for value in average._average_model.parameters())
    assert (witness.validations, [*RUN.rglob("*.ckpt")]) == (0, [])


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step.*")  # of a first skipped step
def test_steps_that_a_loss_scaler_skips_are_counted_and_too_many_in_a_row_are_an_error(workplace, capsys):
    flags = [*SCALED.split(), "--callbacks.stop_on_non_finite.patience=3", "--trainer.log_every_n_steps=2"]
    witness, bad = Witness(), BadGradient(1, 3, 5, 6, 7, 8)
    with pytest.raises(StoppedError):
        small(*flags, callbacks=[AtStep(6), bad, witness])
    said = one_line(lambda: small(*flags, callbacks=[bad, witness]), capsys)
    assert "training stopped at step 8: the gradient is not finite" in said
    kept = [step for step in range(1, 8) if not differences(witness.weights[step], witness.weights[step + 1])]
    assert kept == [1, 3, 5, 6, 7]
    assert curve(RUN, "train/skipped_steps") == [(1, 1), (3, 2), (5, 4)]


@cases("values finite", ([1e30, -1e30], True), ([math.nan, 1], False), ([math.inf, -math.inf], False))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_finite_is_told_from_what_is_not(values, finite, dtype):
    tensors = [torch.tensor(0.5), torch.zeros(2, 3, dtype=dtype), torch.tensor(values, dtype=dtype)]
    assert bool(_non_finite(tensors)) is not finite


class OnMeta(Callback):
    """Moves training to the device without data, where ``item``, ``tolist``, ``cpu``, ``nonzero`` and the like are errors."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.to("meta")
        trainer.strategy._root_device, trainer._teardown = torch.device("meta"), lambda: None
        trainer.strategy.setup_optimizers(trainer)
        next(one for one in trainer.callbacks if isinstance(one, StopOnNonFinite)).on_train_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert batch.images.is_meta
        if batch_idx == 3:
            raise EOFError("the steps were taken")


@cases(
    "flags",
    ["--trainer.enable_progress_bar=true", "--trainer.callbacks+=TQDMProgressBar"],
    ["--data.batch_transforms+=torchvision.transforms.v2.MixUp", "--trainer.accumulate_grad_batches=2"],
    ["--model.optimizer=project.model.Muon", "--trainer.gradient_clip_val=1", "--data.crop_padding=2"],
    ["--data.device_cache=true", "--trainer.precision=bf16-mixed", "--model.loss.class_weights=balanced"],
)
def test_a_step_reads_nothing_from_its_device(workplace, monkeypatch, flags):
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(manual_seed=lambda seed: None))
    monkeypatch.setattr("project.engine.training.non_finite._copied", lambda flag: lambda: False)
    logged = Metrics(1.0, torch.eye(8).long(), None)  # in the second step, which alone may wait
    monkeypatch.setattr(ClassificationMetrics, "compute", lambda _: logged)
    with pytest.raises(EOFError, match="the steps were taken"):
        small("--trainer.logger=false", "--trainer.log_every_n_steps=2", *flags, callbacks=[OnMeta()])
