"""Features of a frozen backbone that are computed once give the numbers of those that are computed each time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from project.callbacks import CachedFeatures, StoppedError
from project.data import FolderDataModule
from project.engine.errors import UserError
from project.model import ImageClassifier
from tests.conftest import evaluate, make_folder
from tests.distributed.job import classifier, flowers, trainer
from tests.small import AtStep, load, small
from tests.stress import SmallNetwork, differences, outcome

PLAIN = ["--data.flip=false", "--data.crop_scale=null", "--data.image_size=32", "--data.batch_size=8"]
FOLDER = ["--data=FolderDataModule", "--data.root=images", "--data.num_workers=0", *PLAIN]
HEAD = ["--model.freeze=backbone", "--model.weights=weights.pth"]
CACHED = [*HEAD, "--trainer.callbacks+=project.callbacks.CachedFeatures"]


@pytest.fixture
def place(workplace) -> Path:
    """A folder of images, and weights of the small network."""
    make_folder(workplace / "images", dict.fromkeys("abc", 16))
    torch.manual_seed(0)
    torch.save(SmallNetwork(3).state_dict(), "weights.pth")
    return workplace


def checkpoint(name: str) -> Any:
    return load(Path("runs") / name / "checkpoints" / "best.ckpt")


def results(name: str) -> Any:
    metrics = json.loads((Path("runs") / name / "metrics.json").read_text())
    return {split: metrics[split] for split in ("val", "test")}


@pytest.mark.parametrize("inverted", [False, True])
def test_the_numbers_are_those_of_computing_the_backbone_each_time(place, monkeypatch, inverted):
    own = FolderDataModule.on_after_batch_transfer

    def invert(self: Any, batch: Any, dataloader_idx: int) -> Any:
        batch = own(self, batch, dataloader_idx)
        return batch._replace(images=255 - batch.images)

    if inverted:  # by a hook of the user's
        monkeypatch.setattr(FolderDataModule, "on_after_batch_transfer", invert)
    small(*HEAD, "--name=each_time", data=FOLDER)
    small(*CACHED, "--name=once", data=FOLDER)
    each_time, once = checkpoint("each_time"), checkpoint("once")
    assert each_time["global_step"] == once["global_step"]
    for name, value in each_time["state_dict"].items():
        torch.testing.assert_close(once["state_dict"][name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(once["state_dict"]["network.fc.weight"], load(Path("weights.pth"))["fc.weight"])
    for split, expected in results("each_time").items():
        found = results("once")[split]
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert found["confusion_matrix"] == expected["confusion_matrix"]


def test_the_images_are_read_once_for_training_and_the_checkpoint_needs_no_cache(place, monkeypatch):
    from project.engine.loading.files import FileDataset

    read: list[int] = []
    served = FileDataset.__getitems__

    def counted(data: FileDataset, keys: list[int]) -> Any:
        read.extend(keys)
        return served(data, keys)

    monkeypatch.setattr(FileDataset, "__getitems__", counted)
    cli = small(*CACHED, "--trainer.max_epochs=3", data=FOLDER)
    assert len(read) == sum(len(data) for data in cli.datamodule.splits.values()) == 48
    with monkeypatch.context() as patch:
        patch.setattr("project.model.classifier.build_network", lambda arch, classes, args: SmallNetwork(classes))
        evaluate("runs/run/checkpoints/best.ckpt", "--split=val", "--output=val.json")
    assert json.loads(Path("val.json").read_text())["accuracy"] == results("run")["val"]["accuracy"]


def test_a_resumed_run_ends_in_the_same_bits(place):
    small(*CACHED, "--trainer.default_root_dir=whole", data=FOLDER)
    with pytest.raises(StoppedError):
        small(*CACHED, data=FOLDER, callbacks=[AtStep(6)])
    small(*CACHED, data=FOLDER)
    assert not differences(outcome(Path("whole/run")), outcome(Path("runs/run")))


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--data.flip=true"], r"the same in every epoch, but --data\.flip would change it"),
        (["--data.crop_scale=[0.5,1]", "--data.cutout=3"], r"but --data\.crop_scale and --data\.cutout would"),
        (
            ["--trainer.accumulate_grad_batches=2", "--model.freeze=null"],
            r"needs --model\.freeze backbone",
        ),
    ],
)
def test_what_would_change_features_is_refused(place, flags, complaint):
    with pytest.raises(UserError, match=complaint):
        small(*CACHED, *flags, data=FOLDER)


def test_the_data_of_a_cached_training_serve_other_models_and_stages(workplace):
    plain: dict[str, Any] = {"flip": False, "crop_padding": 0}
    network: dict[str, Any] = {"arch": "shufflenet_v2_x0_5"}
    data, cached = flowers(32, 8, 8, **plain), trainer(1, callbacks=[CachedFeatures()])
    cached.fit(classifier(**network, freeze="backbone"), datamodule=data)
    cached.save_checkpoint("flowers.ckpt")
    model = ImageClassifier.load_from_checkpoint("flowers.ckpt")
    found = trainer(1).validate(model, datamodule=data, verbose=False)
    assert found == trainer(1).validate(model, datamodule=flowers(32, 8, 8, **plain), verbose=False)
    models = [classifier(**network) for _ in range(2)]
    trainer(1).fit(models[0], datamodule=data)
    trainer(1).fit(models[1], datamodule=flowers(32, 8, 8, **plain))
    assert not differences(models[1].state_dict(), models[0].state_dict())


class HeadsInAList(SmallNetwork):
    """Two heads of which the mean counts, as in timm's CrossViT."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.heads = torch.nn.ModuleList([self.fc, torch.nn.Linear(16, num_classes)])

    def get_classifier(self) -> torch.nn.Module:
        return self.heads


class ScaledHead(SmallNetwork):
    """Does something after the head."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("network", [HeadsInAList, ScaledHead])
def test_a_network_that_does_not_end_in_one_head_is_refused(place, network):
    torch.save(network(3).state_dict(), "weights.pth")
    with pytest.raises(UserError, match=r"in resnet18, more than the head comes after the features"):
        small(*CACHED, data=FOLDER, network=network)
