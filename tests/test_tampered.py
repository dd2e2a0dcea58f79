"""A tampered file chooses no network, no download and no place to write to."""

import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images._settings import limited_by
from torch import nn
from torchvision.models.segmentation import fcn_resnet50 as imported_from_elsewhere  # noqa: F401  # by its name

from project.data import FolderDataModule, ImageDataModule
from project.model import ImageClassifier
from project.model.pretrained import find_weights
from tests.conftest import cases, evaluate, load

MODULE = "imported_by_a_checkpoint"


@pytest.fixture
def checkpoint(tiny_run, tmp_path):
    """Writes the checkpoint of a real run with changes."""

    def tampered(change) -> Path:
        content = load(tiny_run / "checkpoints" / "best.ckpt")
        change(content)
        torch.save(content, tmp_path / "tampered.ckpt")
        return tmp_path / "tampered.ckpt"

    return tampered


def writes(num_classes: int, place: str) -> None:
    """Neither a network nor makes one, as some functions of libraries that have a parameter ``num_classes``."""
    Path(place).write_text(str(num_classes))


class Pairs(nn.Module):
    """Has a buffer of all pairs of positions, as windows of attention have."""

    def __init__(self, num_classes: int, positions: int) -> None:
        super().__init__()
        places = torch.arange(positions)
        self.register_buffer("pairs", places[:, None] - places, persistent=False)


HERE, FCN, RESNET = __name__, "torchvision.models.segmentation.fcn_resnet50", {"arch": "resnet18"}
WRITES = {"arch": f"{HERE}.writes"}


@cases(
    "said answer",
    ({"arch": FCN}, "give --import torchvision"),
    ({"arch": f"{HERE}.imported_from_elsewhere"}, "give --import torchvision"),
    ({"arch": "fcn_resnet50"}, "there is no network"),
    ({"arch": "timm/hf_hub:someone/evil"}, "there is no network"),
    ({"arch": "timm.create_model"}, "give --import timm"),
    ({"arch": f"{MODULE}.Thing"}, f"give --import {MODULE}"),
    (WRITES | {"arch_args": {"place": "victim"}}, "with a text among its arguments"),
    (WRITES | {"arch_args": {"place": [{"x": "victim"}]}}, "with a text among its arguments"),
    (
        RESNET | {"arch_args": {"weights": "victim"}},
        "multiple values for keyword argument 'weights'",
    ),
    (
        RESNET | {"arch_args": "victim"},
        "damaged: hyper_parameters.arch_args must be a dict or nothing, got 'victim'",
    ),
    (
        RESNET | {"arch_args": {"norm_layer": f"{MODULE}.Thing"}},
        "does not accept {'num_classes': 8, 'norm_layer': ",
    ),
    ({"arch": "resnet18", "arch_args": {"layers": 10**7}}, "far larger than its weights"),
    ({"arch": "resnet50", "arch_args": {"width_per_group": 6000}}, "far larger than its weights"),
    (
        {"arch": "timm/vit_tiny_patch16_224", "arch_args": {"depth": 60_000}},
        "far larger than its weights",
    ),
    # a convolution of one pixel makes a position of each, and a buffer one of each two
    (
        {"arch": "timm/vit_tiny_patch16_224", "arch_args": {"img_size": 100_000}},
        "far larger than its weights",
    ),
    (
        {"arch": "timm/vit_tiny_patch16_224", "arch_args": {"img_size": 4096, "patch_size": 1}},
        "far larger than its weights",
    ),
    ({"arch": "vit_b_16", "arch_args": {"image_size": 160_000}}, "far larger than its weights"),
    (
        {"arch": f"{HERE}.Pairs", "arch_args": {"positions": 100_000}},
        "far larger than its weights",
    ),
    ({"class_names": [str(number) for number in range(100_000)]}, "far larger than its weights"),
)
def test_a_checkpoint_chooses_no_network_that_downloads_imports_writes_or_fills_the_memory(
    checkpoint, workplace, monkeypatch, said, answer
):
    attempts: list[object] = []
    for name in ("socket.socket.connect", "torch.hub.load_state_dict_from_url"):
        monkeypatch.setattr(name, lambda *args, **_: attempts.append(args))
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda *args, **_: attempts.append(args)
    )
    monkeypatch.setattr("lightkeeper.images._settings._allowed", {HERE})  # as --import would
    path = checkpoint(lambda content: content["hyper_parameters"].update(said))
    with pytest.raises(UserError, match=re.escape(answer)):
        ImageClassifier.load_from_checkpoint(path)
    assert not attempts
    assert MODULE not in sys.modules
    assert not (workplace / "victim").exists()


class Fetched(FolderDataModule):
    """Makes its folder, as a data module does that downloads, which a project may be without."""

    def prepare_data(self) -> None:
        self.root.mkdir()


def test_a_checkpoint_chooses_no_place_to_write_to(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("lightkeeper.images._settings._allowed", {HERE})  # as --import would
    victim = tmp_path / "victim"
    init_args = {"root": str(victim), "cache": str(victim), "image_size": 32}
    data = {"class_path": f"{HERE}.Fetched", "init_args": init_args}
    path = checkpoint(lambda content: content["about"].update(data=data))
    for use in (lambda: evaluate(f"{path}"), lambda: ImageDataModule.load_from_checkpoint(path)):
        with pytest.raises(
            UserError, match=r"images in '.*victim', which are not there; say where"
        ):
            use()
    assert not victim.exists()
    assert ImageDataModule.load_from_checkpoint(path, root="data").cache is None  # type: ignore[attr-defined]


def test_weights_whose_preprocessing_cannot_be_bring_none(checkpoint):
    path = checkpoint(lambda content: content["about"]["preprocessing"].update(std=[0, 0, 0]))
    assert find_weights("resnet18", str(path)).preprocessing is None


@pytest.mark.parametrize(
    "arch", ["timm/swin_tiny_patch4_window7_224", "timm/vit_tiny_patch16_224", "convnext_tiny"]
)
def test_a_network_with_sizes_among_its_arguments_is_not_refused(
    tmp_path, without_initialisation, arch
):
    preprocessing = {"resize": 96, "crop": 96, "mean": [0.5] * 3, "std": [0.25] * 3}
    arguments = {"img_size": 96, "embed_dim": 96} if arch.startswith("timm") else {"layer_scale": 2}
    model = ImageClassifier(["a", "b"], cast(Any, preprocessing), arch, arguments)
    with limited_by(model.state_dict(), dict(model.hparams)):
        ImageClassifier(["a", "b"], cast(Any, preprocessing), arch, arguments)
