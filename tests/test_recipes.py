"""Recipes add up and name their sources, and what measures them compares like with like."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.engine.cli.test_command_line import parse
from tests.test_configs import RECIPES, SMALL
from tests.test_seeds import script

ROOT = Path(__file__).parents[1]
NO_WEIGHTS = shutil.ignore_patterns("*.ckpt")  # to copy a run without what takes most of its room


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_its_source(recipe):
    comment = "".join(line for line in recipe.read_text().splitlines() if line.startswith("#"))
    assert re.search(r"\b(19|20)\d\d\b|references/classification", comment)
    assert "https://" in comment


def test_recipes_add_up(workplace):
    names = ("randaugment", "random_erasing", "mixup", "cutmix", "ema", "one_cycle", "adamw", "cutout")
    config = parse(f"--config={SMALL}", *(f"--config={ROOT}/configs/recipes/{name}.yaml" for name in names))
    data, model = config.data.init_args, config.model.init_args
    specs = [*data.train_transforms, *data.batch_transforms, *config.trainer.callbacks]
    found = [spec.class_path.rpartition(".")[2] for spec in (*specs, model.optimizer, model.lr_scheduler)]
    assert found == ["RandAugment", "RandomErasing", "MixUp", "CutMix", "EMAWeightAveraging", "AdamW", "OneCycleLR"]
    assert (model.arch, data.batch_size, data.cutout) == ("resnet9_slim", 256, 8)


def test_the_table_of_recipes_compares_runs_of_one_seed(tiny_run, workplace, monkeypatch):
    def runs(name, *accuracies):
        for seed, accuracy in enumerate(accuracies):
            metrics = Path(shutil.copytree(tiny_run, f"{name}_{seed}", ignore=NO_WEIGHTS)) / "metrics.json"
            changed = json.loads(metrics.read_text())
            changed["test"]["accuracy"] = accuracy
            metrics.write_text(json.dumps(changed))
        return [Path(f"{name}_{seed}") for seed in range(len(accuracies))]

    table = script("recipes.py", monkeypatch)["table"]({"none": runs("none", 0.5, 0.6), "ema": runs("ema", 0.55, 0.63)})
    *_, alone, ema = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    assert alone[:4] == ["none", "2", "55.00% ± 7.07", ""]
    assert ema[:4] == ["ema", "2", "59.00% ± 5.66", "+4.00 ± 1.41"]
    assert ema[5] == "1.00 (1.00 to 1.00)"
