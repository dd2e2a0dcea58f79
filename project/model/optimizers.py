"""Building an optimizer: its parameter groups, its learning rate and its fastest implementation."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, cast

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import Optimizer

from project.engine.errors import UserError
from project.engine.training.steps import accumulation_scheduler
from project.engine.upstream import handles_unscaling, takes_one_rate
from project.model.freezing import blocks

LR_SCALE = "lr_scale"
"""What share of the learning rate a parameter group takes, by timm's name for it; without it, all of it."""


def build_optimizer(
    make: OptimizerCallable, network: nn.Module, trainer: Trainer, base_batch_size: int | None, layer_decay: float = 1.0
) -> Optimizer:
    """Builds a network's optimizer.

    Args:
        make: Makes it from parameter groups.
        network: What it is to train.
        trainer: What it is to train with.
        base_batch_size: The batch size that the learning rate is meant for; None leaves it as it is.
        layer_decay: As :func:`parameter_groups` takes it.

    Raises:
        UserError: The class or Lightning does not accept the settings, or it is not known what batch size there is.
    """
    with explained("--model.optimizer"):
        optimizer = make(parameter_groups(network, layer_decay))
        _require_numbers(optimizer)
    _require_clippable(optimizer, trainer)
    fuse_on_cpu(optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= group.get(LR_SCALE, 1.0)
    if base_batch_size is not None:
        if accumulation_scheduler(trainer) is not None:
            raise UserError(
                "--model.base_batch_size scales the learning rate once, but GradientAccumulationScheduler changes the"
                " batch size from epoch to epoch; leave one of them out"
            )
        data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
        batch_size = getattr(data, "batch_size", None)
        if batch_size is None:
            raise UserError(
                "--model.base_batch_size needs a data module with a batch_size, by which it scales the learning rate; leave"
                " it out, or call trainer.fit(model, datamodule=data)"
            )
        for group in optimizer.param_groups:
            group["lr"] *= batch_size * trainer.accumulate_grad_batches / base_batch_size
    return optimizer


@contextmanager
def explained(option: str) -> Iterator[None]:
    """Tells the user which option a class of torch does not accept."""
    try:
        yield
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{option}: {error}") from error


def _require_numbers(optimizer: Optimizer) -> None:
    """Refuses what torch's own checks let through: NaN compares with nothing, and infinity is above 0."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")


def parameter_groups(network: nn.Module, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """Keeps weight decay off normalisation layers, biases, and what the network itself names for that.

    Decay only hinders these (He et al., 2019, section 3.1, https://arxiv.org/abs/1812.01187). Networks of timm name
    positions, class tokens and the like by a method ``no_weight_decay()``, perhaps with wildcards.

    Args:
        network: Any.
        layer_decay: What the learning rate of each block is multiplied by for each block between it and the output
            (Clark et al., 2020, https://arxiv.org/abs/2003.10555; Bao et al., 2022, https://arxiv.org/abs/2106.08254).

    Returns:
        Two groups for an optimizer, of the parameters that require gradients: matrices and kernels, which take the
        optimizer's own weight decay, and vectors and what the network names, which take none. With ``layer_decay`` below
        1, two for each block, the head's first; ``lr_scale`` is the share of the learning rate that a group takes.
    """
    named = cast(Any, network).no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    groups: list[dict[str, Any]] = []
    for depth, names in enumerate(reversed(blocks(network)) if layer_decay < 1 else [list(trained)]):
        spared: list[nn.Parameter] = []
        decayed: list[nn.Parameter] = []
        for name in names:
            if name in trained:
                is_spared = trained[name].ndim < 2 or any(fnmatchcase(name, pattern) for pattern in named)
                (spared if is_spared else decayed).append(trained[name])
        scale = {LR_SCALE: layer_decay**depth} if layer_decay < 1 else {}
        groups += [{"params": decayed, **scale}, {"params": spared, "weight_decay": 0.0, **scale}]
    return [group for group in groups if group["params"]]


def require_scaled(optimizer: Optimizer, before: list[float]) -> None:
    """Refuses a schedule that gives all groups one learning rate where each has its own.

    Groups have their own by ``layer_decay``, or by an optimizer such as Muon.

    Args:
        optimizer: With its schedule, before the first step.
        before: The learning rate of each group before there was a schedule.

    Raises:
        UserError: It has done so.
    """
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if not all(math.isclose(rate * before[0], now[0] * own) for rate, own in zip(now, before, strict=True)):
        raise UserError(
            "--model.lr_scheduler: such a schedule gives all layers the same learning rate, but --model.layer_decay or the"
            " optimizer gives them several; take one that scales the optimizer's own rates, as the cosine does"
        )


def require_averaged_at_own_rates(optimizer: Optimizer, trainer: Trainer) -> None:
    """Refuses an average of weights that would train all groups at one learning rate where each has its own.

    Args:
        optimizer: Before its first step.
        trainer: With its callbacks.

    Raises:
        UserError: ``StochasticWeightAveraging`` has one for them all.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    swa = any(isinstance(callback, StochasticWeightAveraging) and takes_one_rate(callback) for callback in callbacks)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if swa and len(set(rates)) > 1:
        raise UserError(
            "StochasticWeightAveraging: one swa_lrs gives all layers the same learning rate, but --model.layer_decay or the"
            f" optimizer gives them several; give swa_lrs a list of {len(rates)}, as many as there are parameter groups"
        )


def require_searchable(optimizer: Optimizer, trainer: Trainer) -> None:
    """Refuses a search for the learning rate of an optimizer that has several.

    Args:
        optimizer: Before its first step.
        trainer: With its callbacks.

    Raises:
        UserError: ``LearningRateFinder`` would try the same rate for all of its groups.
    """
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    if len(rates) > 1 and any(isinstance(callback, LearningRateFinder) for callback in callbacks):
        if any(LR_SCALE in group for group in optimizer.param_groups):
            raise UserError(
                "LearningRateFinder tries the same learning rate for all layers, but --model.layer_decay gives each its own;"
                " leave one of them out"
            )
        raise UserError(
            f"LearningRateFinder looks for one learning rate, but {type(optimizer).__name__} has several"
            f" ({', '.join(f'{rate:g}' for rate in sorted(rates))}); leave it out, or take an optimizer with one"
        )


def fuse_on_cpu(optimizer: Optimizer) -> None:
    """Lets an optimizer take each step in one pass over memory where torch can, unless another way was asked for.

    By default torch makes a pass on a CPU for each operation of the formula. Its groups are told and not its class:
    then Lightning still clips gradients, which it refuses where the class could be undoing a loss scale by itself.

    Args:
        optimizer: Before its first step.
    """
    for group in optimizer.param_groups:
        undecided = group.get("fused", False) is None and not group["foreach"] and not group["differentiable"]
        if undecided and all(parameter.device.type == "cpu" for parameter in group["params"]):
            group["fused"] = True


def _require_clippable(optimizer: Optimizer, trainer: Trainer) -> None:
    """Says in advance what Lightning finds at the first step."""
    if trainer.gradient_clip_val and handles_unscaling(optimizer) and "mixed" in trainer.precision:
        raise UserError(
            f"--trainer.gradient_clip_val: with {trainer.precision}, Lightning does not clip gradients for an"
            " optimizer that is fused by its own option; leave out --model.optimizer.fused"
        )
