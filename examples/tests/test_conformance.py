"""The recipes of configs/imagenet beside the parts that published them: 20 steps of each on the same batches, from the same weights.

What is compared with has torchvision's, timm's and torch's own loss, optimizer, schedule, normalisation and average, in a plain
loop. It gets each batch as it is after augmentation, and torch's RNG state for the stochastic depth. Batches have 16 images, and
learning rates fall with them (Goyal et al., 2017, https://arxiv.org/abs/1706.02677): a network that diverges multiplies rounding.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from pydoc import locate
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import timm
import torch
import yaml
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from timm.loss.binary_cross_entropy import BinaryCrossEntropy
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]  # not in its __all__
from timm.scheduler.scheduler_factory import create_scheduler_v2
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torchvision.models import resnet18
from torchvision.ops._utils import split_normalization_params
from torchvision.transforms.v2 import Normalize

from examples.tests.files import write_imagenet
from project.fit import FitCLI
from tests.conftest import ONE_CPU, QUIET, ROOT, fit
from tests.model.test_classifier import Memory, linear, trainer
from tests.model.test_optimizers import train

BATCH, EPOCHS, STEPS = 16, 10, 2  # of each epoch
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Reference(NamedTuple):
    """What a recipe trains with; ``begin_step`` sets the learning rate of a step, counted from 0."""

    network: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Any
    begin_step: Callable[[int], None]


def by_epochs(step_schedule: Callable[[int], object]) -> Callable[[int], None]:
    """Steps a schedule at the end of each epoch."""

    def begin_step(step: int) -> None:
        if step and step % STEPS == 0:
            step_schedule(step // STEPS)

    return begin_step


def torchvision_v1(epochs: int) -> Reference:
    network = resnet18(num_classes=3)
    optimizer = SGD(network.parameters(), lr=0.1 * BATCH / 256, momentum=0.9, weight_decay=1e-4)
    schedule = StepLR(optimizer, step_size=30, gamma=0.1)
    return Reference(
        network, nn.CrossEntropyLoss(), optimizer, by_epochs(lambda _: schedule.step())
    )


def torchvision_v2(epochs: int) -> Reference:
    network = resnet18(num_classes=3)
    norms, others = split_normalization_params(network)
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 2e-5}]
    optimizer = SGD(groups, lr=0.5 * BATCH / 1024, momentum=0.9)
    parts: list[Any] = [LinearLR(optimizer, start_factor=0.01, total_iters=5)]
    parts.append(CosineAnnealingLR(optimizer, T_max=epochs - 5, eta_min=0.0))
    schedule = SequentialLR(optimizer, parts, milestones=[5])
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Reference(network, loss, optimizer, by_epochs(lambda _: schedule.step()))


def timm_a(
    epochs: int, lr: float, weight_decay: float, smoothing: float, drop_path: float
) -> Reference:
    network = timm.create_model("resnet18", num_classes=3, drop_path_rate=drop_path)
    scale = BATCH / 2048
    optimizer = create_optimizer_v2(network, opt="lamb", lr=lr * scale, weight_decay=weight_decay)
    ends: dict[str, Any] = {"warmup_epochs": 5, "warmup_lr": 1e-4 * scale, "min_lr": 1e-6 * scale}
    schedule, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=epochs, **ends)
    assert schedule is not None
    criterion = BinaryCrossEntropy(smoothing, target_threshold=0.2)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        # as timm's Mixup has smoothed them
        smooth = labels.to(logits) * (1 - smoothing) + smoothing / labels.shape[1]
        result: Tensor = criterion(logits, smooth)
        return result

    return Reference(network, loss, optimizer, by_epochs(schedule.step))


class Blurred(nn.Module):
    """A convolution behind FFCV's blur."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        kernel = torch.tensor([[1, 2, 1], [2, 4, 2], [1, 2, 1]], dtype=x.dtype) / 16
        kernel = kernel.repeat(x.shape[1], 1, 1, 1)
        output: Tensor = self.conv(F.conv2d(x, kernel, padding=1, groups=x.shape[1]))
        return output


def ffcv(epochs: int) -> Reference:
    network: Any = resnet18(num_classes=3)
    norms, others = split_normalization_params(network)
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": others, "weight_decay": 1e-4}]
    optimizer = SGD(groups, lr=1.0, momentum=0.9)
    for layer in (network.layer2, network.layer3, network.layer4):
        layer[0].conv1 = Blurred(layer[0].conv1)
        layer[0].downsample[0] = Blurred(layer[0].downsample[0])

    peak = 1.7 * BATCH / 4096

    def begin_step(step: int) -> None:
        epoch = step // STEPS
        corners = [1e-4 * peak, peak, 0]
        first, last = np.interp([epoch, epoch + 1], [0, 2, epochs], corners)
        for group in optimizer.param_groups:
            group["lr"] = np.interp(step % STEPS, [0, STEPS], [first, last])

    return Reference(network, nn.CrossEntropyLoss(label_smoothing=0.1), optimizer, begin_step)


RECIPES: dict[str, tuple[Callable[[int], Reference], str]] = {
    "torchvision_v1": (torchvision_v1, "--model.arch=resnet18"),
    "torchvision_v2": (torchvision_v2, "--model.arch=resnet18"),
    "timm_a1": (lambda epochs: timm_a(epochs, 5e-3, 0.01, 0.1, 0.05), "--model.arch=timm/resnet18"),
    "timm_a2": (lambda epochs: timm_a(epochs, 5e-3, 0.02, 0.0, 0.05), "--model.arch=timm/resnet18"),
    "timm_a3": (lambda epochs: timm_a(epochs, 8e-3, 0.02, 0.0, 0.0), "--model.arch=timm/resnet18"),
    "ffcv_rn50_88": (ffcv, "--model.arch_args.arch=resnet18"),
    "ffcv_rn50_16": (ffcv, "--model.arch_args.arch=resnet18"),
}


class Record(Callback):
    """All that the reference needs, and what it is compared with."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.inputs: list[Tensor] = []
        self.random: list[Tensor] = []
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.weights: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.weights.append(deepcopy(pl_module.network.state_dict()))
        self.hook = pl_module.network.register_forward_pre_hook(self.before_forward)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.batches.append(batch)

    def before_forward(self, network: nn.Module, inputs: tuple[Tensor]) -> None:
        if network.training:
            self.inputs.append(inputs[0].clone())
            self.random.append(torch.get_rng_state())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        rates = {group["lr"] for group in optimizer.param_groups}
        assert len(rates) == 1
        self.rates.append(rates.pop())

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"].item())
        self.weights.append(deepcopy(pl_module.network.state_dict()))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.hook.remove()


def text_of(name: str) -> str:
    return (ROOT / "configs" / "imagenet" / f"{name}.yaml").read_text()


def peak_of(config: dict[str, Any]) -> float:
    """The learning rate of a config for fewer images in a batch."""
    rate: float = config["model"]["optimizer"]["init_args"]["lr"]
    return rate * BATCH / config["data"]["init_args"]["batch_size"]


def record(name: str, workplace: Path, *options: str) -> Record:
    """Trains by a config on small images."""
    write_imagenet(workplace)
    text = text_of(name)
    Path("recipe.yaml").write_text(text)
    size = 64 if "Progressive" in text else 32  # which halves it at first
    small = [f"--data.image_size={size}", "--data.resize=72", f"--data.batch_size={BATCH}"]
    small.append(f"--model.optimizer.lr={peak_of(yaml.safe_load(text))}")
    short = [f"--trainer.max_epochs={EPOCHS}", f"--trainer.limit_train_batches={STEPS}"]
    quiet = [*ONE_CPU, *QUIET, "--trainer.check_val_every_n_epoch=10", "--data.num_workers=0"]
    noted, own = Record(), FitCLI._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitCLI, "_callbacks", lambda cli: [*own(cli), noted])
        fit("--config=recipe.yaml", *small, *short, *quiet, *options, "--name=run")
    return noted


def load(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads weights by their order, as blurred convolutions have other names."""
    values = list(weights.values())
    network.load_state_dict(dict(zip(network.state_dict(), values, strict=True)))


def difference(network: nn.Module, weights: dict[str, Tensor]) -> float:
    pairs = zip(network.state_dict().values(), weights.values(), strict=True)
    return max(float((left - right).abs().max()) for left, right in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_each_step_of_the_whole_schedule_has_the_published_learning_rate(name):
    config = yaml.safe_load(text_of(name))
    epochs, part = config["trainer"]["max_epochs"], config["model"]["lr_scheduler"]
    schedule: Any = partial(cast(Any, locate(part["class_path"])), **part["init_args"])
    interval = config["model"].get("lr_scheduler_interval")
    model = {"optimizer": partial(SGD, lr=peak_of(config))}
    short = {"max_epochs": epochs, "limit_train_batches": STEPS}
    seen, _ = train(schedule, interval, model=model, **short)
    reference = RECIPES[name][0](epochs)
    expected = []
    for step in range(epochs * STEPS):
        reference.begin_step(step)
        expected.append(reference.optimizer.param_groups[0]["lr"])
        reference.optimizer.step()
    found = [rates[0] for rates in seen[:-1]]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_twenty_steps_have_the_losses_and_weights_of_the_published_parts(name, workplace, capsys):
    build, arch = RECIPES[name]
    noted = record(name, workplace, arch, "--trainer.precision=64-true")
    with torch.random.fork_rng():
        reference = build(EPOCHS)
        network, optimizer = reference.network, reference.optimizer
        network.double().to(memory_format=torch.channels_last)  # as ours
        load(network, noted.weights[0])
        differ = {"rate": 0.0, "loss": 0.0, "input": 0.0, "weights": 0.0}
        for step, (images, labels, _) in enumerate(noted.batches):
            reference.begin_step(step)
            x = noted.inputs[step]
            normal = Normalize(MEAN, STD)(images.double() / 255)
            resized = F.interpolate(normal, x.shape[2:], mode="bilinear", antialias=True)
            torch.set_rng_state(noted.random[step])
            loss = reference.loss(network(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            found = {
                "rate": abs(noted.rates[step] / rate - 1),
                "loss": abs(loss.item() - noted.losses[step]),
                "input": float((resized - x).abs().max()),
                "weights": difference(network, noted.weights[step + 1]),
            }
            differ = {part: max(value, found[part]) for part, value in differ.items()}
    with capsys.disabled():
        print(f"\n{name}: {differ}")
    assert len(noted.losses) == EPOCHS * STEPS
    assert max(differ["rate"], differ["loss"], differ["weights"]) < 1e-6
    assert differ["input"] < 1e-5  # resized in float32
    first, last = (noted.weights[at]["fc.weight"] for at in (0, -1))
    assert differ["weights"] < 1e-6 * (first - last).abs().max()


def test_the_average_is_torchs_and_timms_differs_by_what_it_keeps_of_the_first_weights():
    noted, decay = Record(), 0.9
    averaging = EMAWeightAveraging(decay=decay, update_every_n_steps=2)
    model = linear(optimizer=partial(SGD, lr=0.1))
    run = trainer(max_epochs=2, callbacks=[noted, averaging], limit_val_batches=0)
    run.fit(model, Memory(7))
    ours, network = model.network.state_dict(), deepcopy(model.network)
    network.load_state_dict(noted.weights[0])
    of_torch = AveragedModel(network, avg_fn=get_ema_avg_fn(decay), use_buffers=True)
    of_timm = ModelEmaV3(network, decay=decay)
    used = noted.weights[1::2]
    for weights in used:
        network.load_state_dict(weights)
        of_torch.update_parameters(network)
        of_timm.update(network)
    torch.testing.assert_close(ours, of_torch.module.state_dict())
    for name, value in of_timm.module.state_dict().items():
        kept = decay ** len(used) * (noted.weights[0][name] - used[0][name])
        torch.testing.assert_close(value - ours[name], kept, atol=1e-6, rtol=0)
        assert kept.abs().max() > 1e-4
