"""The promises of ``examples/deploy/to_hub.py``: a folder that timm alone loads."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightkeeper.images import Preprocessing, prepare
from PIL import Image
from torch import nn

from examples.lora import LoRAClassifier
from project.analysis.tables import class_rates
from project.model import ImageClassifier
from project.model.pretrained import find_weights
from tests.conftest import call, cases, checkpoint_of, classifier, draw_image, one_line, read_json

timm = pytest.importorskip("timm", reason="timm is an extra")
to_hub = importlib.import_module("examples.deploy.to_hub")
FILES = ["README.md", "config.json", "model.safetensors"]
TINY = {"depth": 1, "embed_dim": 24, "num_heads": 2}
VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24}


@pytest.mark.slow
@cases(
    "options",
    {"arch": "resnet18"},
    {"arch": "timm/test_efficientnet"},
    {"arch": "timm/vit_tiny_patch16_224", "arch_args": VIT},
    {"arch": "timm/vit_base_patch16_siglip_224", "arch_args": TINY},  # at another size than its own
    {"arch": "timm/eva02_base_patch16_clip_224", "arch_args": TINY},
    {"arch": "timm/vit_small_patch16_dinov3", "arch_args": TINY},
)
def test_timm_alone_gives_the_checkpoints_probabilities_and_weights_start_from_it(
    tmp_path, options
):
    require_same_in_timm(tmp_path, ImageClassifier, options)


def require_same_in_timm(tmp_path, cls, options):
    model = classifier(cls, **options).eval()
    folder = tmp_path / "our flowers"
    call(to_hub, checkpoint_of(model, tmp_path / "a model.ckpt"), folder)
    assert sorted(file.name for file in folder.iterdir()) == FILES
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1  # the umask's
    config = read_json(folder / "config.json")
    assert config["label_names"] == model.class_names
    assert not {"tag", "license", "paper_ids"} & {*config["pretrained_cfg"]}  # of other weights

    size: Any = (model.preprocessing["resize"],) * 2
    draw_image(0.3, seed=1, size=size).save(tmp_path / "photo.png")
    (prediction,) = model.predict_files([tmp_path / "photo.png"])
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    logits = network(transform(Image.open(tmp_path / "photo.png"))[None])
    activation = "softmax(1)" if cls.has_one_class else "sigmoid()"
    assert activation in (folder / "README.md").read_text()
    shares = logits.softmax(1) if cls.has_one_class else logits.sigmoid()
    assert shares[0].tolist() == pytest.approx([*prediction.probabilities.values()], abs=1e-4)

    again = classifier(weights=str(folder), **options).eval()
    torch.testing.assert_close(again.network.state_dict(), model.network.state_dict())
    names = [*model.class_names[::-1], "another"]  # in another order
    turned = ImageClassifier(names, model.preprocessing, weights=str(folder), **options)
    head = model.network_head.weight
    torch.testing.assert_close(turned.network_head.weight[:-1], head.flip(0))
    assert not turned.network_head.weight[-1].any()
    defaults = {"interpolation": "bilinear", "fit": "crop"}
    preprocessing = find_weights(options["arch"], str(folder)).preprocessing
    assert preprocessing == {**defaults, **model.preprocessing}


def test_low_rank_changes_are_merged(tmp_path):
    arch: Any = {"arch": "timm/vit_tiny_patch16_224", "arch_args": VIT}
    about = classifier(**arch).hparams
    about = {name: about[name] for name in ("class_names", "preprocessing")}
    model = LoRAClassifier(**about, **arch)
    for name, parameter in model.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(parameter, std=0.1)
    call(
        to_hub,
        checkpoint_of(model, tmp_path / "x.ckpt"),
        tmp_path / "hub",
        "--import=examples.lora",
    )
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    shares = to_hub.load_folder(tmp_path / "hub")(images)
    torch.testing.assert_close(shares, model.eval()(images).softmax(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@cases("crop resize", (32, 40), (35, 52), (224, 224), (224, 256), ([32, 64], [40, 80]))
def test_timm_prepares_images_as_evaluation_does(fit, crop, resize):
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    preprocessing = Preprocessing(resize=resize, crop=crop, fit=fit, mean=mean, std=std)
    config = timm.data.resolve_data_config(pretrained_cfg=to_hub.to_timm(preprocessing))
    transform = timm.data.create_transform(**config)
    # of a rectangle, timm rounds the scaled size, where torchvision and we cut it off
    other = (91, 240) if isinstance(crop, int) else (90, 240)
    for number, size in enumerate([(300, 200), other]):
        image = draw_image(number / 2, seed=number, size=size)
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        expected = prepare(pixels, preprocessing).float()
        seen = transform(image) * torch.tensor(std).view(3, 1, 1)
        seen = 255 * (seen + torch.tensor(mean).view(3, 1, 1))
        assert seen.shape == expected.shape
        limit = 2.5 if fit == "pad" else 0.6  # of 255; an odd border may be a pixel to the left
        assert (seen - expected).abs().mean() < limit


def test_overwriting_replaces_an_export_and_keeps_other_files(workplace, capsys):
    checkpoint = checkpoint_of(classifier(arch="timm/test_resnet"), workplace / "x.ckpt")
    call(to_hub, checkpoint, "model")
    Path("model/README.md").write_text("edited")
    Path("model/notes.txt").write_text("mine")
    assert "is there already" in one_line(lambda: call(to_hub, checkpoint, "model"), capsys)
    assert Path("model/README.md").read_text() == "edited"
    call(to_hub, checkpoint, "model", "--overwrite")
    assert "timm.create_model" in Path("model/README.md").read_text()
    names = [path.name for path in workplace.rglob("*")]
    assert sorted(names) == sorted([*FILES, "model", "notes.txt", "x.ckpt"])


@pytest.mark.slow
@cases(
    "options reason",
    (
        {"arch": "resnet18", "arch_args": {"stem": "cifar"}},
        "timm has no network like resnet18 with {'stem': 'cifar'}",
    ),
    ({"arch": "timm/test_resnet", "test_time_augmentation": "flip"}, "averages views"),
)
def test_a_network_that_timm_lacks_is_one_line(workplace, capsys, options, reason):
    path = checkpoint_of(classifier(**options), workplace / "model.ckpt")
    assert reason in one_line(lambda: call(to_hub, path, "model"), capsys)
    assert [file.name for file in workplace.iterdir()] == ["model.ckpt"]


def test_the_card_has_the_metrics_of_the_runs_test_by_class_and_controls_no_terminal(tiny_run):
    path = tiny_run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(path)
    model.class_names[0] = "a | b\n<script>\x1b[2J"
    card = to_hub.model_card(model, str(path))
    header = yaml.safe_load(card.split("---")[1])
    assert (header["library_name"], header["license"]) == ("timm", "unknown")
    test = read_json(tiny_run / "metrics.json")["test"]
    assert f"On the test set, {test['total']} images: accuracy {test['accuracy']:.2%}" in card
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith("| ")][1:]
    assert rows[0][0] == r"| a \| b &lt;script&gt;\x1b[2J"
    assert "\x1b" not in card
    for row, rates in zip(rows[1:], class_rates(test)[1:], strict=True):
        assert row[3] == f"{rates['f1']:.4f}"
    assert str(tiny_run) not in card
