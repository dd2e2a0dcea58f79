"""Features of a frozen backbone that are computed once give the numbers of those of each time."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset

from tests.conftest import SMALL_FILES, SmallNetwork, cases, load, make_folder, read_json, small

PLAIN = ["--data.flip=false", "--data.crop_scale=null", "--data.batch_size=8"]
FOLDER = ["--data=FolderDataModule", "--data.root=images", *SMALL_FILES, *PLAIN]
HEAD = ["--model.freeze=backbone", "--model.weights=weights.pth"]
CACHED = [*HEAD, "--model=examples.recipes.cached_features.CachedFeatures"]


@pytest.fixture
def place(workplace) -> Path:
    make_folder(workplace / "images", dict.fromkeys("abc", 16))
    torch.manual_seed(0)
    torch.save(SmallNetwork(3).state_dict(), "weights.pth")
    return workplace


def test_the_numbers_are_those_of_computing_the_backbone_each_time_and_each_image_is_read_once(
    place, capsys
):
    small(*HEAD, "--name=each_time", data=FOLDER)
    with patch.object(
        FileDataset, "__getitems__", autospec=True, side_effect=FileDataset.__getitems__
    ) as reading:
        cli = small(*CACHED, "--name=once", data=FOLDER)
    read = sum(len(keys) for (_, keys), _ in reading.call_args_list)
    assert read == sum(len(data) for data in cli.datamodule.splits.values()) == 48
    assert "--import" not in capsys.readouterr().out  # as an ImageClassifier opens it
    paths = [Path("runs") / name for name in ("each_time", "once")]
    each_time, once = (load(path / "checkpoints" / "best.ckpt")["state_dict"] for path in paths)
    checkpoint = load(paths[1] / "checkpoints" / "best.ckpt")
    # which opens it without --import
    assert checkpoint["about"]["model"] == checkpoint["model"] == "ImageClassifier"
    for name, value in each_time.items():
        torch.testing.assert_close(once[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.equal(once["network.fc.weight"], load(Path("weights.pth"))["fc.weight"])
    expected, found = (read_json(path / "metrics.json") for path in paths)
    for split in ("val", "test"):
        assert found[split]["loss"] == pytest.approx(expected[split]["loss"], abs=1e-5)
        assert found[split]["confusion_matrix"] == expected[split]["confusion_matrix"]


class ScaledHead(SmallNetwork):
    def forward(self, x):
        return 2 * super().forward(x)


@cases(
    "network flags complaint",
    (
        SmallNetwork,
        ["--data.crop_scale=[0.5,1]", "--data.cutout=3"],
        r"but --data\.crop_scale, --data\.cutout would",
    ),
    (SmallNetwork, ["--model.freeze=null"], r"needs --model\.freeze backbone"),
    (ScaledHead, [], "is not its last layer"),
)
def test_what_changes_features_and_what_does_not_end_in_its_head_is_refused(
    place, network, flags, complaint
):
    # of other classes: the new head is zero, whatever comes after it
    torch.save(network(5).state_dict(), "weights.pth")
    with pytest.raises(UserError, match=complaint):
        small(*CACHED, *flags, data=FOLDER, network=network)
