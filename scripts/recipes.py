"""Measures what each of ``configs/recipes/`` adds to a config: ``python scripts/recipes.py``."""

import sys

from compare import compare

NAMES = (
    "randaugment",
    "trivialaugment",
    "random_erasing",
    "cutout",
    "mixup",
    "cutmix",
    "mixup_or_cutmix",
    "ema",
    "one_cycle",
    "warm_restarts",
    "adamw",
)
"""Those that suit a small network and a few epochs."""

RECIPES = {name: ["--config", f"configs/recipes/{name}.yaml"] for name in NAMES}

if __name__ == "__main__":
    compare(RECIPES, __doc__, "configs/cifar10_resnet9.yaml", sys.argv[1:])
