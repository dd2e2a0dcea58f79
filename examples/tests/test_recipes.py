"""Recipes in examples/: whitening and Muon against linear algebra, the head's schedule and image sizes against their formulas."""

import math
import re
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightkeeper.exact import UserError
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import LambdaCallback
from PIL import Image
from timm.data.mixup import mixup_target
from timm.data.transforms_factory import transforms_imagenet_train
from timm.loss.binary_cross_entropy import BinaryCrossEntropy as TimmBinaryCrossEntropy
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torchvision.models import resnet18
from torchvision.transforms.v2 import Normalize, RandomErasing
from torchvision.transforms.v2.functional import to_pil_image

from examples.recipes.airbench import Airbench, WhitenByFirstBatch, patch_covariance
from examples.recipes.binary_cross_entropy import BinaryCrossEntropy
from examples.recipes.blurpool import blurpool
from examples.recipes.erasing import NormalizedErasing
from examples.recipes.grad_checkpointing import GradientCheckpointing
from examples.recipes.head_first import HeadFirst
from examples.recipes.linear import LinearWithWarmup
from examples.recipes.muon import Muon
from examples.recipes.progressive_resizing import ProgressiveResizing, resized
from examples.recipes.timm_transforms import RandAugment
from examples.recipes.warmup import CosineFrom
from tests.conftest import ROOT, cases, draw_image, small
from tests.model.test_classifier import (
    Memory,
    classifier,
    linear,
    make_images,
    random_logits,
    require_no_reading,
    trainer,
)
from tests.model.test_optimizers import RATE, cosine, require_rates_that_differ, train


def test_airbench_is_the_papers_network_whose_convolutions_begin_by_copying_their_input():
    network = Airbench(10)
    x = torch.randn(2, 24, 9, 9)
    size = sum(parameter.numel() for parameter in network.parameters())
    assert size == pytest.approx(1.97e6, rel=0.005)
    torch.testing.assert_close(network.layer1[0](x)[:, :24], x)


def test_the_whitened_output_is_white_and_the_layer_is_set_once():
    noise = torch.randn(6, 3, 10, 13, generator=torch.Generator().manual_seed(0))
    # neighbouring pixels and channels are alike, as in photographs
    images = nn.functional.avg_pool2d(noise, 3, stride=1)
    images += noise.mean(1, keepdim=True)[:, :, 1:-1, 1:-1]
    network = Airbench(5, (8, 8, 8))
    one_device = SimpleNamespace(reduce=lambda tensor, **_: tensor, broadcast=lambda tensor: tensor)
    run: Any = SimpleNamespace(strategy=one_device)
    model = SimpleNamespace(network=network, normalization=lambda images, like: images)
    for scale in (1, 3):
        batch = SimpleNamespace(images=scale * images)
        WhitenByFirstBatch().on_train_batch_start(run, model, batch, 0)
    with torch.no_grad():
        output = network.stem[0](images).double().transpose(0, 1).flatten(1)
    products = output @ output.T / output.shape[1]
    variances = torch.linalg.eigvalsh(patch_covariance(images, 2))
    expected = torch.diag(variances / (variances + 5e-4))
    torch.testing.assert_close(products[:12, :12], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(output[12:], -output[:12])


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (64, 24, 1, 1)])
def test_muon_moves_kernels_by_orthogonal_steps_of_their_momentum_and_keeps_their_norm(shape):
    kernel = nn.Parameter(random(*shape, seed=7))
    optimizer = Muon([kernel], lr=0.1, momentum=0.8)
    velocity: Any = 0.0
    for step in range(4):
        before = kernel.detach().double().flatten(1)
        kernel.grad = random(*shape, seed=step)
        gradient = kernel.grad.double().flatten(1)
        velocity = 0.8 * velocity + gradient
        optimizer.step()
        normalised = before * (len(before) ** 0.5 / before.norm())
        moved = (normalised - kernel.detach().double().flatten(1)) / 0.1
        left, values, right = torch.linalg.svd(gradient + 0.8 * velocity, full_matrices=False)
        aligned = left.T @ moved @ right.T
        assert all(0.3 < value < 1.6 for value in aligned.diagonal()[values > values.max() / 10])
        torch.testing.assert_close(aligned, aligned.diagonal().diag(), atol=1e-4, rtol=0)


def test_muon_trains_all_but_kernels_as_torchs_adamw_does():
    shapes = ((10, 8), (10,))
    ours, theirs = ([nn.Parameter(random(*shape, seed=7)) for shape in shapes] for _ in range(2))
    muon = Muon(ours, adam_lr=0.01, weight_decay=0.1)
    adam = AdamW(theirs, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    for step in range(5):
        for left, right in zip(ours, theirs, strict=True):
            left.grad = right.grad = random(*left.shape, seed=step)
        muon.step()
        adam.step()
    torch.testing.assert_close(ours, theirs)


def test_the_head_learns_alone_at_first_then_all_layers_by_the_cosine():
    schedule = partial(HeadFirst, head_epochs=2, lrf=0.01, warmup_epochs=0)
    model = linear(optimizer=partial(SGD, lr=0.02), layer_decay=0.5, lr_scheduler=schedule)
    model.network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )
    before = deepcopy(model.network)
    seen: list[Any] = []

    def note(run, *_) -> None:
        layers = [(model.network[place].weight, before[place].weight) for place in (0, 3)]
        rates = sorted({group["lr"] / 0.02 for group in run.optimizers[0].param_groups})
        seen.append([*(not torch.equal(now, then) for now, then in layers), *rates])

    watch = LambdaCallback(on_train_batch_end=note)
    trainer(max_epochs=4, callbacks=[watch], limit_val_batches=0).fit(model, Memory(7))
    # each rate is set for the step after
    rates = [(0.0, 1.0)] * 9 + [(factor / 2, factor) for factor in cosine(10, 0)]
    assert seen == [pytest.approx([step > 9, True, *rate]) for step, rate in enumerate(rates)]


def test_images_grow_to_their_full_size_batch_by_batch_in_training_alone(workplace):
    seen: list[int] = []

    def note(network, inputs):
        seen.extend([inputs[0].shape[-1]] * network.training)

    recipe = "examples.recipes.progressive_resizing.ProgressiveResizing"
    options = [f"--trainer.callbacks+={recipe}", "--trainer.callbacks.multiple=4"]
    watch = LambdaCallback(
        on_train_start=lambda _, model: model.network.register_forward_pre_hook(note)
    )
    cli = small(*options, callbacks=[watch])
    assert seen == [16, 16, 20, 24, 24, 28, 32, 32]
    assert len(cli.model.network._forward_pre_hooks) == 1  # that of this test


@pytest.mark.parametrize(("epochs", "first", "last"), [(88, 65, 76), (16, 11, 13)])
def test_images_have_the_sizes_that_ffcv_interpolates_between_two_epochs(epochs, first, last):
    config = yaml.safe_load((ROOT / f"configs/imagenet/ffcv_rn50_{epochs}.yaml").read_text())
    (options,) = [part for part in config["trainer"]["callbacks"] if "Progressive" in str(part)]
    resizing = ProgressiveResizing(**options["init_args"])
    sizes = np.interp(range(epochs), [first, last], [160, 192])
    expected = [int(np.round(size / 32)) * 32 for size in sizes]
    assert [resizing.image_size(epoch / epochs, 192) for epoch in range(epochs)] == expected


def test_images_keep_their_first_size_for_a_while_as_composers_do():
    resizing = ProgressiveResizing(start=0.5, until=0.8, multiple=4, delay=0.5)
    shares = np.interp(range(100), [50, 80], [0.5, 1])
    expected = [math.floor(224 * share / 4) * 4 for share in shares]
    assert [resizing.image_size(step / 100, 224) for step in range(100)] == expected
    with pytest.raises(UserError, match=r"delay must be below until, 0\.75, got 0\.8"):
        ProgressiveResizing(delay=0.8)


def test_parameters_that_a_pattern_matches_stay_as_they_are_and_others_do_not(workplace):
    recipe = "examples.recipes.freeze_parameters.FreezeParameters"
    frozen = [f"--trainer.callbacks+={recipe}", "--trainer.callbacks.pattern"]
    before: dict[str, torch.Tensor] = {}
    note = LambdaCallback(
        on_train_start=lambda _, model: before.update(deepcopy(model.network.state_dict()))
    )
    after = small(*frozen, "conv2|bias", callbacks=[note]).model.network
    same = {name for name, value in after.named_parameters() if torch.equal(value, before[name])}
    assert same == {
        name for name in dict(after.named_parameters()) if re.search("conv2|bias", name)
    }
    with pytest.raises(UserError, match="'depthwise' matches no parameter"):
        small(*frozen, "depthwise", "--name=none")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler looks at modules' deprecated names
def test_a_compiled_network_has_a_finite_gradient_in_bfloat16():
    network = Airbench(10, (8, 8, 8)).to(memory_format=torch.channels_last)
    images = torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last)
    network.compile()
    with torch.autocast("cpu", torch.bfloat16):
        network(images).sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_muon_has_rates_that_a_schedule_scales_and_reads_nothing_from_its_device(
    workplace, monkeypatch
):
    require_rates_that_differ(partial(Muon, lr=0.1, adam_lr=0.01), 1.0)
    muon = ["--model.optimizer=examples.recipes.muon.Muon", "--trainer.gradient_clip_val=1"]
    require_no_reading(monkeypatch, muon)


def photo(size: int = 64) -> torch.Tensor:
    return torch.from_numpy(np.array(draw_image(0.3, seed=1, size=(size, size)))).permute(2, 0, 1)


def test_random_operations_are_those_of_timms_own_training_transforms():
    name, size = "rand-m7-mstd0.5-inc1", 64
    chain = transforms_imagenet_train(size, auto_augment=name, hflip=0, normalize=False).transforms
    changed = 0
    for seed in range(20):
        seed_everything(seed, verbose=False)
        ours = RandAugment(name)(photo(size))
        seed_everything(seed, verbose=False)
        theirs: Any = to_pil_image(photo(size))
        for transform in chain[1:]:  # after the crop
            theirs = transform(theirs)
        torch.testing.assert_close(ours, theirs)
        changed += not torch.equal(ours, photo(size))
    assert changed > 10


@pytest.mark.parametrize("value", [0.0, "random"])
def test_erasing_is_torchvisions_of_normalised_images(value: Any):
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    back = Normalize(
        [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225], [1 / 0.229, 1 / 0.224, 1 / 0.225]
    )
    changed = 0
    for seed in range(20):
        seed_everything(seed, verbose=False)
        ours = NormalizedErasing(0.5, value)(photo())
        seed_everything(seed, verbose=False)
        theirs = RandomErasing(0.5, value=value)(normalize(photo() / 255))
        assert (ours - (back(theirs) * 255).clamp(0, 255)).abs().max() <= 0.51
        changed += not torch.equal(ours, photo())
    assert 3 < changed < 17


def test_a_convolution_with_a_stride_sees_blurred_input_and_keeps_the_names_of_its_weights():
    plain: Any = resnet18(num_classes=3)
    network: Any = blurpool(3, "resnet18")
    network.load_state_dict(plain.state_dict())
    assert type(network.conv1) is nn.Conv2d  # which sees three channels
    x = torch.randn(2, 64, 9, 9, generator=torch.Generator().manual_seed(0))
    blur = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
    kernel = nn.functional.pad(blur, (1, 1, 1, 1))[None, None].expand(64, 1, 5, 5)
    blurred = nn.functional.conv2d(x, kernel, padding=2, groups=64)
    for layer in ("layer2.0.conv1", "layer2.0.downsample.0"):
        expected = plain.get_submodule(layer)(blurred)
        torch.testing.assert_close(network.get_submodule(layer)(x), expected)
    torch.testing.assert_close(network.layer1(x), plain.layer1(x))


def rates_of_torch(optimizer, epochs, warmup, start, last) -> list[float]:
    parts: list[LRScheduler] = [LinearLR(optimizer, start, total_iters=warmup)]
    parts.append(CosineAnnealingLR(optimizer, epochs - warmup, eta_min=last))
    both, rates = SequentialLR(optimizer, parts, [warmup]), []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    return rates


def rates_of_timm(optimizer, epochs, warmup, start, last) -> list[float]:
    first = {"warmup_t": warmup, "warmup_lr_init": start * RATE}
    schedule, rates = CosineLRScheduler(optimizer, epochs, last, **first), []
    for epoch in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step(epoch + 1)
    return rates


@cases(
    "rates_of prefix epochs warmup start last",
    (rates_of_torch, True, 9, 3, 0.01, 0.0),
    (rates_of_timm, False, 12, 5, 0.02, 0.0001),
)
def test_epochs_have_the_learning_rates_of_torchs_and_of_timms_cosine_with_warmup(
    rates_of, prefix, epochs, warmup, start, last
):
    expected = rates_of(SGD([nn.Parameter(torch.ones(1))], RATE), epochs, warmup, start, last)
    schedule = partial(CosineFrom, lrf=last / RATE, warmup_epochs=warmup)
    schedule = partial(schedule, warmup_start=start, warmup_prefix=prefix)
    seen, _ = train(schedule, "epoch", max_epochs=epochs)
    assert [rates[0] for rates in seen[:-1:5]] == pytest.approx(expected, rel=1e-9)


def test_the_line_after_the_warmup_is_ffcvs(workplace):
    epochs, steps, peak = 6, 5, 0.02
    schedule = partial(LinearWithWarmup, lrf=0.0, warmup_epochs=2, warmup_start=1e-4)
    seen, _ = train(schedule, max_epochs=epochs)
    corners = np.interp(range(epochs + 1), [0, 2, epochs], [1e-4 * peak, peak, 0])
    expected = np.interp(np.arange(epochs * steps + 1) / steps, range(epochs + 1), corners)
    assert [rates[0] for rates in seen] == pytest.approx(expected, abs=1e-12)


def note_in(kept: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    kept.append(x)
    return x


def test_checkpointed_blocks_have_the_gradient_of_those_that_keep_their_activations():
    arch, found = "timm/vit_tiny_patch16_224", {}
    for callbacks in ([], [GradientCheckpointing()]):
        kept: list[torch.Tensor] = []
        seed_everything(0, verbose=False)
        model = classifier(arch=arch, arch_args={"img_size": 16, "patch_size": 4, "depth": 3})
        run = trainer(max_steps=1, callbacks=callbacks, limit_val_batches=0)
        with saved_tensors_hooks(partial(note_in, kept), lambda x: x):
            run.fit(model, Memory())
        found[len(callbacks)] = sum(x.numel() for x in kept), model.state_dict()
    assert found[1][0] < found[0][0] / 2
    torch.testing.assert_close(found[1][1], found[0][1])
    with pytest.raises(UserError, match=r"of timm, --model\.arch timm/NAME, got"):
        trainer(max_steps=1, callbacks=[GradientCheckpointing()]).fit(classifier(), Memory())


def test_lamb_of_timm_trains_with_its_two_groups(workplace):
    cli = small("--model.optimizer=timm.optim.Lamb", "--model.optimizer.weight_decay=0.02")
    groups = cli.trainer.optimizers[0].param_groups
    assert [group["weight_decay"] for group in groups] == [0.02, 0.0]
    assert cli.trainer.global_step == 8


def test_a_smaller_image_is_the_one_of_pil_and_another_stays():
    images = make_images(1, side=50)
    pixels, found = (batch[0].permute(1, 2, 0).numpy() for batch in (images, resized(images, 32)))
    expected = np.array(
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float32
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.0)
    assert resized(images, None) is resized(images, 50) is images


@pytest.mark.parametrize("sum_classes", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.2])
def test_binary_cross_entropy_is_that_of_timm_with_labels_that_its_mixup_makes(
    threshold, sum_classes
):
    logits, labels = random_logits(16, 5), torch.arange(16) % 5
    ours = BinaryCrossEntropy(0.1, threshold, sum_classes)
    theirs = TimmBinaryCrossEntropy(0.1, threshold, sum_classes=sum_classes)
    soft = [mixup_target(labels, 5, 0.7, smoothing) for smoothing in (0.0, 0.1)]
    for left, right in ((labels, labels), soft):  # timm's mixup smooths, torchvision's does not
        losses = ours(logits, left)
        torch.testing.assert_close(losses.mean(), theirs(logits, right))
        assert losses.shape == (16,)
