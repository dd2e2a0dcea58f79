"""The classifier against plain loops: logits, any loss, views at test time; with any loader; a step waits for no device."""

import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.exact._non_finite import StopOnNonFinite
from lightning.pytorch import Callback, LightningDataModule
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD
from torch.utils.data import DataLoader

from project.data import SyntheticFlowersDataModule
from project.model import CrossEntropy, ImageClassifier
from project.model.formats import ProbabilityNetwork
from project.model.inference import mean_logits
from tests.conftest import SLIM, TINY, cases, evaluate, fit, quiet_trainer, small

trainer: Any = quiet_trainer
SIDE = 16
PREPROCESSING: Any = {
    "resize": SIDE,
    "crop": SIDE,
    "mean": [0.2, 0.5, 0.7],
    "std": [0.1, 0.25, 0.4],
}


def loader_of(batches: list[Any]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]  # a list is a dataset


class Memory(LightningDataModule):
    """Noisy images, each class of a colour of its own."""

    def __init__(self, batch_size=16):
        super().__init__()
        self.batch_size = batch_size
        self.labels = torch.arange(32) % 3
        colours = 150 * torch.eye(3)[self.labels, :, None, None] + 40
        noise = 25 * torch.randn(32, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        self.images = (colours + noise).clamp(0, 255).to(torch.uint8)

    def batches(self):
        fields = (field.split(self.batch_size) for field in (self.images, self.labels))
        return [*zip(*fields, strict=True)]

    def loader(self):
        return loader_of(self.batches())

    train_dataloader = val_dataloader = test_dataloader = loader


def classifier(cls=ImageClassifier, **options):
    """A small one, with settings that do not follow the template's defaults."""
    settings = {"arch": "resnet9_slim", "optimizer": partial(SGD, lr=0.1, momentum=0.9)} | options
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return cls(["red", "green", "blue"], PREPROCESSING, **settings)


def linear(cls=ImageClassifier, **options):
    model = classifier(cls, **options)
    model.network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    return model


def plain_logits(model, images):
    """By the formula of normalisation, in double precision."""
    mean, std = (
        torch.tensor(model.preprocessing[name]).double()[:, None, None] for name in ("mean", "std")
    )
    with torch.inference_mode():
        return deepcopy(model.network).eval().double()((images.double() / 255 - mean) / std)


def make_images(count=5, side=SIDE):
    return torch.randint(
        256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_trainer_predicts_the_test_images_and_those_of_any_loader():
    data = SyntheticFlowersDataModule(
        train_size=8, val_size=8, test_size=10, image_size=SIDE, batch_size=4
    )
    model = ImageClassifier(
        data.class_names, data.preprocessing, "resnet9_slim", test_time_augmentation="flip"
    )
    data.setup("test")
    batches = [(batch.images, batch.labels) for batch in data.whole_split("test")]
    alone = [images for images, _ in batches]
    assert [*map(len, alone)] == [4, 4, 2]
    for source in (data, *map(loader_of, (batches, alone, [[images] for images in alone]))):
        for images, probabilities in zip(alone, trainer().predict(model, source), strict=True):
            expected = (plain_logits(model, images) + plain_logits(model, images.flip(3))) / 2
            torch.testing.assert_close(
                probabilities.double(), expected.softmax(1), rtol=0, atol=1e-5
            )
    with pytest.raises(TypeError, match=r"^images must be torch.uint8, got torch\.float32[^\n]*$"):
        model(alone[0].float())


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`")
def test_a_loader_of_pairs_trains_as_a_data_module_of_the_same_batches():
    weights = []
    for options in (
        {"datamodule": Memory()},
        {"train_dataloaders": loader_of(Memory().batches())},
    ):
        model = linear(optimizer=partial(SGD, lr=0.1))
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        trainer(max_epochs=2, limit_val_batches=0, callbacks=[StopOnNonFinite()]).fit(
            model, **options
        )
        weights.append(parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)
    assert weights[0].any()


@cases("views places", ("flip", {1: 1.0}), ("flip_and_shift", {1: 1 / 2, 0: 1 / 4, 2: 1 / 4}))
def test_views_are_crops_of_the_reflected_image_and_their_mirror_images(views, places):
    images = make_images(4, side=13)[:, :, :9]
    weights = torch.arange(images[0].numel(), dtype=torch.float64).sin().reshape(1, -1)

    def classify(view):
        """Depends on where a pixel is."""
        return (view.flatten(1) * weights).sum(1)

    padded = F.pad(images.double(), (1,) * 4, mode="reflect").to(torch.uint8)
    expected = torch.zeros(4, dtype=torch.float64)
    for top, weight in places.items():  # the centre, up and left, down and right
        view = padded[:, :, top : top + 9, top : top + 13]
        mirrored = torch.from_numpy(view.numpy()[..., ::-1].copy())
        expected += weight * (classify(view) + classify(mirrored)) / 2
    torch.testing.assert_close(mean_logits(classify, images, views), expected)


def test_what_is_exported_takes_means_over_views():
    model, images = classifier(test_time_augmentation="flip_and_shift").eval(), make_images(4)
    with torch.no_grad():
        expected = mean_logits(model, images, "flip_and_shift").softmax(1)
        torch.testing.assert_close(ProbabilityNetwork(model).eval()(images), expected)


@pytest.mark.parametrize("exact", [None, True, False])
def test_evaluation_is_in_float32_unless_training_s_precision_is_asked_for(exact):
    model, batch = classifier(exact_evaluation=exact).eval(), (make_images(4), torch.arange(4) % 3)
    with torch.no_grad():
        expected = model(batch[0])
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(batch[0]).float()
            rounds_on_gpus: list[bool] = []
            model.network.register_forward_pre_hook(
                lambda *_: rounds_on_gpus.append(torch.backends.cudnn.allow_tf32)
            )
            logits = [step(batch, 0) for step in (model.validation_step, model.test_step)]
    assert not torch.equal(rounded, expected)
    assert all(torch.equal(of, rounded if exact is False else expected) for of in logits)
    assert rounds_on_gpus == [exact is False] * 2
    assert torch.backends.cudnn.allow_tf32


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
    ["--trainer.gradient_clip_val=1", "--data.crop_padding=2"],
    [
        "--data.device_cache=true",
        "--trainer.precision=bf16-mixed",
        "--model.loss=CrossEntropy",
        "--model.loss.class_weights=balanced",
    ],
)
def test_a_step_reads_nothing_from_its_device(workplace, monkeypatch, flags):
    require_no_reading(monkeypatch, flags)


def require_no_reading(monkeypatch, flags):
    monkeypatch.setattr(
        torch, "get_device_module", lambda _: SimpleNamespace(manual_seed=lambda seed: None)
    )
    # the last step of an epoch, which alone is logged, may wait
    quiet = ["--trainer.logger=false", "--trainer.log_every_n_steps=50"]
    with pytest.raises(EOFError, match="the steps were taken"):
        small("--model.optimizer=SGD", *quiet, *flags, callbacks=[OnMeta()])


class Counted(Memory):
    def __init__(self, *numbers: int) -> None:
        super().__init__(batch_size=32)
        self.labels = torch.tensor(numbers).repeat(len(self.labels) // 8)

    def class_counts(self) -> list[int]:
        return self.labels.bincount(minlength=3).tolist()


def random_logits(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_labels_may_be_soft_and_are_smoothed():
    logits, soft = random_logits(16, 3), random_logits(16, 3).sigmoid().softmax(1)
    losses = -(0.8 * soft.double() + 0.2 / 3) * logits.double().log_softmax(1)
    for weights in (None, [1.0, 0.0, 4.0]):
        expected = losses @ torch.tensor(weights or [1.0] * 3, dtype=torch.float64)
        found = CrossEntropy(0.2, weights)(logits, soft).double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_each_training_minimises_the_mean_weighted_by_its_own_images_and_validation_measures_as_ever():
    model = linear(optimizer=partial(SGD, lr=0.0), loss=CrossEntropy(0.0, "balanced"))
    for data in (Counted(0, 0, 0, 0, 0, 1, 1, 2), Counted(2, 2, 2, 2, 2, 1, 1, 0)):
        trainer(max_steps=1, num_sanity_val_steps=0).fit(model, datamodule=data)
        weights = torch.tensor(
            compute_class_weight("balanced", classes=np.arange(3), y=data.labels.numpy())
        )
        logits = model.eval()(data.images).detach().double()
        costs = F.cross_entropy(logits, data.labels, reduction="none")
        loss = model.train().training_step((data.images, data.labels), 0)
        assert loss.item() == pytest.approx(float((weights[data.labels] * costs).mean()), rel=1e-5)
        assert model.results["val"]["loss"] == pytest.approx(float(costs.mean()), rel=1e-5)


@cases(
    "weights data why",
    ("balanced", Counted(0, 0, 0, 0, 0, 0, 1, 1), "needs images of every class, got none of c"),
    ("balanced", None, "balanced needs a data module; or give numbers"),
    ([1.0, 2.0], None, "must be 3 numbers, of the classes a, b, c, in their order, got 2"),
)
def test_class_weights_need_an_image_or_a_number_of_each_class(weights, data, why):
    with pytest.raises(UserError, match=why):
        CrossEntropy(class_weights=weights).prepare(data, ["a", "b", "c"])


def test_training_minimises_any_loss_that_is_given():
    loss = nn.MultiMarginLoss(reduction="none")
    model, data = classifier(loss=loss), Memory()
    value = model.train().training_step(data.batches()[0], 0)
    expected = loss(classifier().double().train()(data.images[:16]), data.labels[:16]).mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)
    mean = classifier(loss=nn.MultiMarginLoss()).train()
    assert mean.training_step(data.batches()[0], 0).item() == pytest.approx(value.item(), rel=1e-6)
    assert mean.train_metrics.compute_and_reset()["loss"] == pytest.approx(value.item(), rel=1e-5)
    with pytest.raises(UserError, match=r"of shape \(16,\), or their mean, got \(16, 3\)"):
        trainer(max_epochs=1).fit(
            classifier(loss=nn.BCEWithLogitsLoss(reduction="none")), datamodule=Soft()
        )


class Soft(Memory):
    """Has soft labels."""

    def batches(self):
        return [(images, F.one_hot(labels, 3).float()) for images, labels in super().batches()]


SOURCE = """
import torch
from torch.nn.functional import cross_entropy

class Focal(torch.nn.Module):
    def __init__(self, gamma: float = 2.0):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weights", torch.linspace(1, gamma, 8))

    def forward(self, logits, labels):
        losses = cross_entropy(logits, labels, reduction="none")
        return (1 - (-losses).exp()) ** self.gamma * losses

def squared(logits, labels):
    return cross_entropy(logits, labels, reduction="none") ** 2
"""


@pytest.mark.parametrize(
    "flags",
    [
        ["--model.loss=own_losses.Focal", "--model.loss.gamma=1.5"],
        pytest.param(["--model.loss=own_losses.squared"], marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_with_any_loss_and_its_checkpoint_needs_it_no_more(
    workplace, monkeypatch, flags
):
    Path("own_losses.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    run = fit(*TINY, *SLIM, *flags, "--name=own").run
    run.metrics.unlink()
    assert (
        fit(
            "--config=runs/own/config.yaml", "--trainer.max_epochs=2", "--name=own"
        ).trainer.global_step
        == 8
    )
    del sys.modules["own_losses"]
    evaluate(str(run.best))
    assert "own_losses" not in sys.modules
