"""What the classifier does with networks that are no ResNets."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from project.engine.errors import UserError
from project.model import ImageClassifier
from project.model.networks import head

PREPROCESSING: Any = {"resize": 64, "crop": 64, "mean": [0.5] * 3, "std": [0.25] * 3}
NAMES = ["a", "b", "c"]


class Net(nn.Module):
    """A network of the user's, which knows nothing of the project."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.last(self.body(x).mean((2, 3)))


def images(count=4):
    return torch.randint(0, 256, (count, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def classifier(arch, **options: Any) -> ImageClassifier:
    return ImageClassifier(NAMES, PREPROCESSING, arch=arch, **options)


@pytest.mark.parametrize("arch", [f"{__name__}.Net", "mobilenet_v3_small", "squeezenet1_1", "timm/levit_128s"])
def test_with_a_frozen_backbone_the_head_alone_changes(arch):
    if arch.startswith("timm/"):
        pytest.importorskip("timm")
    size = 224 if "levit" in arch else 64
    model = ImageClassifier(NAMES, PREPROCESSING | {"crop": size}, arch=arch, freeze="backbone")
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    heads = head(model.network, 3)
    assert all(layer.training for layer in heads.values())
    model.eval()
    assert not any(layer.training for layer in heads.values())
    model.train()
    batch = images().repeat(1, 1, size // 64 + 1, size // 64 + 1)[..., :size, :size]
    model(batch).square().sum().backward()
    SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1).step()
    after = model.network.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith(tuple(f"{layer}." for layer in heads)) for name in changed)


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a network of the user's, and what the model says of some images."""
    model = classifier(f"{__name__}.Net")
    content = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    torch.save(content, tmp_path / "net.ckpt")
    return tmp_path / "net.ckpt", model.eval()(images())


def test_a_checkpoint_of_an_own_network_is_opened_where_it_is_imported(saved):
    path, logits = saved
    loaded = ImageClassifier.load_from_checkpoint(path).eval()
    assert torch.equal(loaded(images()), logits)


def test_a_checkpoint_imports_no_network_but_says_which_it_needs(saved, tmp_path):
    path, _ = saved
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"]["arch"] = "antigravity.Flight"  # which opens a browser
    torch.save(content, path)
    with pytest.raises(UserError, match=r"network is antigravity\.Flight; give --import"):
        ImageClassifier.load_from_checkpoint(path)
    assert isinstance(ImageClassifier.load_from_checkpoint(path, arch=f"{__name__}.Net").network, Net)
