"""LoRA: low-rank changes of frozen weights (Hu et al., 2021, https://arxiv.org/abs/2106.09685).

python -m project.fit --model examples.lora.LoRAClassifier --model.arch timm/vit_tiny_patch16_224 --model.weights vit.pth
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from project.model import ImageClassifier


class LowRank(nn.Module):
    """Adds the product of two narrow matrices, at first zero, to a weight."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(weight.shape[1], rank, bias=False).weight
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Returns the weight that the layer computes with."""
        return weight + self.up @ self.down


class LoRAClassifier(ImageClassifier):
    """Trains the head of a vision transformer, of timm or torchvision, and low-rank changes of how it attends.

    Args:
        rank: The rank of each change.
        kwargs: See :class:`project.model.classifier.ImageClassifier`.
    """

    def __init__(self, rank: int = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.network.requires_grad_(False)
        self.network_head.requires_grad_(True)
        for module_name, module in [*self.network.named_modules()]:
            name = (
                "weight" if module_name.endswith(".qkv") else "in_proj_weight"
            )  # timm's, torchvision's
            if hasattr(module, name):
                register_parametrization(module, name, LowRank(getattr(module, name), rank))
