import math
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    GradientAccumulationScheduler,
    ModelPruning,
)
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from project.callbacks import StopOnNonFinite
from project.data import SyntheticFlowersDataModule
from project.errors import UserError
from project.model import ImageClassifier
from project.model.metrics import ClassificationMetrics

SIDE = 16
PREPROCESSING: Any = {"resize": SIDE, "crop": SIDE, "mean": [0.2, 0.5, 0.7], "std": [0.1, 0.25, 0.4]}
NAMES = ["red", "green", "blue"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


class Batch(NamedTuple):
    images: Tensor
    labels: Tensor


class Loader:
    """Batches in their order; Lightning would take a list for many loaders."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Memory(LightningDataModule):
    """Noisy images, each class of a colour of its own."""

    def __init__(self, batch_size=16, count=32, classes=3):
        super().__init__()
        self.batch_size = batch_size
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(count) % classes
        colours = 150 * torch.eye(3)[self.labels] + 40
        noise = 25 * torch.randn(count, 3, SIDE, SIDE, generator=generator)
        self.images = (colours[:, :, None, None] + noise).clamp(0, 255).to(torch.uint8)

    def batches(self):
        pairs = zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True)
        return [Batch(*pair) for pair in pairs]

    def loader(self):
        return Loader(self.batches())

    train_dataloader = val_dataloader = test_dataloader = loader


class Rates(Callback):
    """The learning rate of every optimizer step."""

    def __init__(self):
        self.seen = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.seen.append([group["lr"] for group in optimizer.param_groups])


def classifier(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ImageClassifier(NAMES, PREPROCESSING, **options)


def linear(**options):
    """One with the smallest of networks, for where a ResNet would only take longer."""
    model = classifier(**options)
    model.network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    return model


def trainer(**options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(accelerator="cpu", **quiet | options)


def logits_of(model, images):
    with torch.inference_mode():
        return model.eval()(images)


def make_images(count=5, side=SIDE):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_forward_normalises_and_classifies(stem):
    model, images = classifier(stem=stem).double().eval(), make_images()
    channels = [
        (images[:, channel].double() / 255 - PREPROCESSING["mean"][channel]) / PREPROCESSING["std"][channel]
        for channel in range(3)
    ]
    with torch.inference_mode():
        expected = model.network(torch.stack(channels, dim=1))
        torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-12)


def test_forward_takes_uint8_in_any_memory_format_and_leaves_it_alone():
    model, images = classifier(), make_images()
    before = images.clone()
    first = logits_of(model, images)
    second = logits_of(model, images.to(memory_format=torch.channels_last))
    assert (first.dtype, first.shape) == (torch.float32, (5, 3))
    assert torch.equal(first, second)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_images_that_are_not_uint8_are_refused_in_one_line(dtype):
    with pytest.raises(TypeError, match=r"^images must be uint8, from 0 to 255, got torch\.[^\n]*$"):
        classifier()(make_images().to(dtype))


@pytest.mark.parametrize("side", [SIDE, 33])
def test_an_image_is_classified_alike_in_any_batch(side):
    model, images = classifier().double(), make_images(side=side)
    alone = torch.cat([logits_of(model, image[None]) for image in images])
    torch.testing.assert_close(logits_of(model, images), alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_training_loss_is_the_cross_entropy_in_double_precision(smoothing):
    model, data = classifier(label_smoothing=smoothing), Memory()
    loss = model.train().training_step(data.batches()[0], 0)
    network = classifier().double().train()
    logits = network(data.images[:16])
    expected = F.log_softmax(logits, 1)
    target = (1 - smoothing) * F.one_hot(data.labels[:16], 3) + smoothing / 3
    assert loss.item() == pytest.approx(-(target * expected).sum(1).mean().item(), rel=1e-4)


def test_it_learns_a_small_set_by_heart():
    model, data = classifier(optimizer=lambda parameters: Adam(parameters, lr=1e-3)), Memory(batch_size=32)
    assert logits_of(model, data.images).argmax(1).tolist() != data.labels.tolist()
    model.train()
    trainer(max_epochs=18, limit_val_batches=0).fit(model, datamodule=data)
    assert logits_of(model, data.images).argmax(1).tolist() == data.labels.tolist()


def expected_rates(steps, base, lrf, warmup):
    """By the formula of the tutorials, after a warmup in equal steps."""
    rising = [base * (step + 1) / warmup for step in range(min(warmup, steps))]
    falling = steps - warmup
    return rising + [
        base * (((1 + math.cos(step * math.pi / falling)) / 2) * (1 - lrf) + lrf) for step in range(max(falling, 0))
    ]


@pytest.mark.parametrize(
    ("options", "steps", "warmup_epochs", "warmup_steps"),
    [
        # 32 images in batches of 7 are 5 batches, and with accumulation 3 steps, in an epoch
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 12, 0, 0),
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 12, 1.5, 4),
        ({"max_epochs": 3}, 15, 1, 5),
        ({"max_epochs": 3, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": -1, "max_steps": 8}, 8, 0, 0),
        ({"max_epochs": -1, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 4}, 3, 0, 0),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 6, 0.5, 1),
        # 5 + 3 + 2 + 2 steps, of which 5 and two fifths of 3 are warmup
        ({"max_epochs": 4, "scheduling": {1: 2, 2: 4}}, 12, 1.4, 6),
        ({"max_epochs": 4, "max_steps": 9, "scheduling": {0: 3}}, 8, 0, 0),
        ({"max_epochs": 9, "max_steps": 9, "scheduling": {0: 3, 1: 2}}, 9, 0, 0),
    ],
    ids=str,
)
def test_the_learning_rate_follows_the_schedule_on_every_optimizer_step(options, steps, warmup_epochs, warmup_steps):
    options = dict(options)
    rates = Rates()
    model = linear(lrf=0.01, warmup_epochs=warmup_epochs, optimizer=lambda parameters: SGD(parameters, lr=0.02))
    scheduling = options.pop("scheduling", None)
    callbacks = [rates, GradientAccumulationScheduler(scheduling)] if scheduling else [rates]
    run = trainer(limit_val_batches=0, **options, callbacks=callbacks)
    run.fit(model, datamodule=Memory(batch_size=7))
    assert len(rates.seen) == steps
    for seen, wanted in zip(rates.seen, expected_rates(steps, 0.02, 0.01, warmup_steps), strict=True):
        assert seen == pytest.approx([wanted, wanted], rel=1e-9)  # one for each of the two groups
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.02 * 0.01)


class ChangedAccumulation(Callback):
    """Changes the number of optimizer steps in a way of its own."""

    def on_train_epoch_start(self, trainer, pl_module):
        trainer.accumulate_grad_batches = 1 + trainer.current_epoch


def test_what_changes_the_number_of_steps_unannounced_is_refused():
    with pytest.raises(UserError, match=r"epochs of 2 batches, 1 of them a step, .* changed that to 2 and 2; use Grad"):
        trainer(max_epochs=2, callbacks=[ChangedAccumulation()]).fit(linear(), datamodule=Memory())
    run = trainer(max_epochs=2, callbacks=[GradientAccumulationScheduler({1: 2})])
    with pytest.raises(UserError, match="base_batch_size scales the learning rate once, but GradientAccumulationSch"):
        run.fit(linear(base_batch_size=16), datamodule=Memory())


def test_a_scheduler_of_ones_own_is_stepped_after_each_epoch_or_step():
    for interval, expected in {"epoch": [1, 1, 0.5, 0.5], "step": [1, 0.5, 0.25, 0.125]}.items():
        rates = Rates()
        model = linear(
            optimizer=lambda parameters: SGD(parameters, lr=1e-3),
            lr_scheduler=lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
            lr_scheduler_interval=interval,
        )
        trainer(max_epochs=2, callbacks=[rates], limit_val_batches=0).fit(model, datamodule=Memory())
        assert [seen[0] for seen in rates.seen] == pytest.approx([1e-3 * factor for factor in expected])


def test_gradients_are_clipped_under_bfloat16():
    model = linear(warmup_epochs=0, lrf=1.0, optimizer=lambda parameters: SGD(parameters, lr=1.0))
    before = parameters_to_vector(model.parameters()).detach().clone()
    run = trainer(max_epochs=-1, max_steps=1, gradient_clip_val=1e-3, precision="bf16-mixed", limit_val_batches=0)
    run.fit(model, datamodule=Memory())
    moved = parameters_to_vector(model.parameters()).detach() - before
    assert moved.norm() == pytest.approx(1e-3, rel=1e-2)


def test_clipping_that_lightning_refuses_is_refused_in_one_line_before_the_first_step():
    model = linear(optimizer=lambda parameters: SGD(parameters, lr=1.0, fused=True))
    with pytest.raises(UserError, match=r"gradient_clip_val: .* leave out --model\.optimizer\.fused"):
        trainer(max_epochs=1, gradient_clip_val=1.0, precision="bf16-mixed").fit(model, datamodule=Memory())
    trainer(max_epochs=1, gradient_clip_val=1.0).fit(model, datamodule=Memory())


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`", "ignore:.*does not have many workers")
def test_loaders_of_a_data_module_are_refused_without_it():
    data = SyntheticFlowersDataModule(train_size=8, val_size=8, test_size=8, image_size=SIDE, batch_size=8)
    data.setup("fit")
    model = ImageClassifier(data.class_names, data.preprocessing)
    with pytest.raises(UserError, match=r"^a data module's loaders need .* trainer\.fit\(model, datamodule=data\)$"):
        trainer(max_epochs=1, limit_val_batches=0).fit(model, train_dataloaders=data.train_dataloader())
    for measure, name in ((Trainer.validate, "validate"), (Trainer.test, "test")):
        with pytest.raises(UserError, match=rf"trainer\.{name}\(model, datamodule=data\)$"):
            measure(trainer(), model, dataloaders=data.val_dataloader())


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`")
def test_a_loader_of_pairs_trains_as_a_data_module_of_the_same_batches():
    weights = []
    for options in ({"datamodule": Memory()}, {"train_dataloaders": Loader([tuple(b) for b in Memory().batches()])}):
        model = linear(optimizer=lambda parameters: SGD(parameters, lr=0.1))
        torch.nn.init.zeros_(model.network[2].weight)
        torch.nn.init.zeros_(model.network[2].bias)
        trainer(max_epochs=2, limit_val_batches=0, callbacks=[StopOnNonFinite()]).fit(model, **options)
        weights.append(parameters_to_vector(model.parameters()))
    assert torch.equal(*weights)
    assert weights[0].any()


@pytest.mark.parametrize(
    ("callback", "advice"),
    [
        (BackboneFinetuning(), "--model.freeze_backbone true"),
        (ModelPruning("l1_unstructured"), "--model.channels_last false"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_callback_that_cannot_work_here_names_another_way(callback, advice):
    with pytest.raises(UserError, match=f"^{type(callback).__name__}: .*{advice}$"):
        trainer(max_epochs=1, callbacks=[callback]).fit(linear(), datamodule=Memory())


def test_without_an_end_the_cosine_schedule_is_refused():
    with pytest.raises(UserError, match=r"--trainer\.max_epochs or --trainer\.max_steps"):
        trainer(max_epochs=-1).fit(linear(), datamodule=Memory())


@pytest.mark.parametrize("batch_size", [3, 16, 32])
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_measures_the_whole_set_however_it_is_cut(split, batch_size):
    model, data = classifier(), Memory(batch_size=batch_size)
    run = trainer()
    (logged,) = (run.validate if split == "val" else run.test)(model, datamodule=data, verbose=False)
    logits = logits_of(model, data.images)
    metrics = model.results[split]
    assert metrics.total == 32
    assert metrics.accuracy == accuracy_score(data.labels, logits.argmax(1))
    assert metrics.f1 == pytest.approx(f1_score(data.labels, logits.argmax(1), average="macro", zero_division=0))
    assert metrics.loss == pytest.approx(F.cross_entropy(logits.double(), data.labels).item(), abs=1e-5)
    assert logged == pytest.approx({f"{split}/{name}": value for name, value in metrics.rates().items()}, rel=1e-6)


def test_images_marked_as_counted_elsewhere_do_not_count():
    model, data = classifier(), Memory()
    logits = logits_of(model, data.images)
    data.labels[::3] = -1
    trainer().validate(model, datamodule=data, verbose=False)
    kept = data.labels >= 0
    metrics = model.results["val"]
    assert metrics.total == int(kept.sum()) == 21
    assert metrics.correct == int((logits.argmax(1) == data.labels)[kept].sum())
    assert metrics.loss == pytest.approx(F.cross_entropy(logits[kept], data.labels[kept]).item(), abs=1e-5)


def test_each_evaluation_starts_anew():
    model, run = classifier(), trainer()
    for _ in range(2):
        run.validate(model, datamodule=Memory(), verbose=False)
        assert model.results["val"].total == 32
    assert isinstance(model.val_metrics, ClassificationMetrics)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model after some training, and its checkpoint."""
    model = classifier(stem="cifar", label_smoothing=0.1, optimizer=lambda parameters: Adam(parameters, lr=1e-3))
    run = trainer(max_epochs=1)
    run.fit(model, datamodule=Memory())
    path = tmp_path_factory.mktemp("checkpoints") / "model.ckpt"
    run.save_checkpoint(path)
    return model, path


def test_a_checkpoint_is_plain_data(trained):
    checkpoint = torch.load(trained[1], weights_only=True)
    assert checkpoint["hyper_parameters"]["class_names"] == NAMES
    assert checkpoint["hyper_parameters"]["preprocessing"] == PREPROCESSING


def test_a_checkpoint_needs_nothing_else_to_give_the_same_logits(trained):
    model, path = trained
    loaded = ImageClassifier.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(logits_of(loaded, make_images(32)), logits_of(model, make_images(32)))
    assert (loaded.class_names, loaded.arch, loaded.stem) == (NAMES, "resnet18", "cifar")


def test_a_loaded_model_trains_on_and_its_checkpoint_is_plain_data_too(trained, tmp_path):
    loaded = ImageClassifier.load_from_checkpoint(trained[1], weights_only=True)
    run = trainer(max_epochs=1, limit_val_batches=0)
    run.fit(loaded, datamodule=Memory())
    run.save_checkpoint(tmp_path / "again.ckpt")
    again = ImageClassifier.load_from_checkpoint(tmp_path / "again.ckpt", weights_only=True)
    assert torch.equal(logits_of(again, make_images()), logits_of(loaded, make_images()))
    assert not torch.equal(logits_of(again, make_images()), logits_of(trained[0], make_images()))


def test_what_was_trained_with_synchronised_batchnorm_loads_anywhere(trained, tmp_path):
    model, path = trained
    checkpoint = torch.load(path, weights_only=True)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(ImageClassifier.load_from_checkpoint(path))
    assert any(isinstance(module, nn.SyncBatchNorm) for module in synchronised.modules())
    torch.save({**checkpoint, "state_dict": synchronised.state_dict()}, tmp_path / "sync.ckpt")
    loaded = ImageClassifier.load_from_checkpoint(tmp_path / "sync.ckpt", weights_only=True)
    assert torch.equal(logits_of(loaded, make_images()), logits_of(model, make_images()))


def test_the_state_dict_holds_the_network_alone(trained):
    assert all(name.startswith("network.") for name in trained[0].state_dict())
