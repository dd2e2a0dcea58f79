"""Muon for convolutional networks: orthogonal updates for kernels, Adam for the rest."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of a quintic whose slope at 0 is steep; see Jordan et al.
_EPS = 1e-7


class Muon(Optimizer):
    """Changes each kernel by an orthogonal matrix in the direction of its Nesterov momentum.

    After Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/, as for CIFAR-10 in
    airbench: the kernels of a layer keep a norm of 1 on average, which normalisation after them
    makes possible. All other parameters are trained by Adam (Kingma and Ba, 2015,
    https://arxiv.org/abs/1412.6980). ``torch.optim.Muon`` takes matrices alone.

    Args:
        params: Parameters or groups of them.
        lr: The learning rate of the kernels.
        momentum: Of the kernels, from 0 to 1.
        adam_lr: The learning rate of all other parameters.
        betas: Adam's.
        eps: Adam's.
        weight_decay: The share of ``adam_lr`` by which all other parameters decay in a step, as in
            AdamW.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.8,
        adam_lr: float = 0.01,
        betas: tuple[float, float] = (0.8, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        listed = list(params)
        groups = listed if isinstance(listed[0], dict) else [{"params": listed}]
        split: list[dict[str, Any]] = []
        for group in groups:
            kernels = [parameter for parameter in group["params"] if parameter.ndim == 4]
            others = [parameter for parameter in group["params"] if parameter.ndim != 4]
            split.append({"lr": lr, "momentum": momentum, **group, "params": kernels})
            split.append(
                {"lr": adam_lr, "betas": tuple(betas), "eps": eps, **group, "params": others}
            )
        super().__init__(
            [group for group in split if group["params"]], {"weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Takes a step; ``closure`` computes loss and gradients, as for torch's optimizers."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            update = _step_kernel if "momentum" in group else _step_by_adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, parameter.grad, self.state[parameter], group)
        return loss


def _step_kernel(
    kernel: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
) -> None:
    if not state:
        state["momentum_buffer"] = torch.zeros_like(kernel)
    average = state["momentum_buffer"]
    average.mul_(group["momentum"]).add_(gradient)
    direction = gradient.add(average, alpha=group["momentum"])
    kernel.mul_(
        len(kernel) ** 0.5 / kernel.norm().clamp(min=_EPS)
    )  # a new head of 1x1 kernels starts from zero
    kernel.sub_(orthogonalized(direction.flatten(1)).view(kernel.shape), alpha=group["lr"])


def orthogonalized(matrix: Tensor) -> Tensor:
    """Moves singular values to about 0.5 to 1.5, by Newton and Schulz's iteration."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    x = x / (x.norm() + _EPS)
    for _ in range(3):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


def _step_by_adam(
    parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
) -> None:
    if not state:
        state["step"] = torch.tensor(0.0)
        state["exp_avg"], state["exp_avg_sq"] = (
            torch.zeros_like(parameter),
            torch.zeros_like(parameter),
        )
    first, second = group["betas"]
    mean, square, steps = state["exp_avg"], state["exp_avg_sq"], state["step"].add_(1).item()
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    mean.lerp_(gradient, 1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    deviation = (square / (1 - second**steps)).sqrt().add_(group["eps"])
    parameter.addcdiv_(mean / (1 - first**steps), deviation, value=-group["lr"])
