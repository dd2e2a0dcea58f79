"""Freezing parameters by a pattern of their names."""

import re
from typing import cast

from lightkeeper.exact import UserError
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn


class FreezeParameters(Callback):
    """Freezes the network's parameters whose names match a regular expression.

    On a CPU, a wide depthwise convolution's gradient can take longer than the rest of its block; in
    fine-tuning, the layers around it learn as much if it is frozen (``conv_dw`` in timm's
    EfficientNets).

    Args:
        pattern: Searched for in each name, such as ``conv_dw`` or ``blocks.0.*bias``.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Freezes the parameters, before the optimizer is built."""
        network = cast(nn.Module, pl_module.network)
        names = [name for name, _ in network.named_parameters() if re.search(self.pattern, name)]
        if not names:
            raise UserError(
                f"FreezeParameters: '{self.pattern}' matches no parameter of {pl_module.arch}"
            )
        for name in names:
            network.get_parameter(name).requires_grad_(False)
