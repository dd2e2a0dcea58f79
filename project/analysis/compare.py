"""Runs beside each other: the settings in which they differ, and a test of their difference."""

from collections.abc import Mapping
from math import comb
from typing import Any, NamedTuple

from torch import Tensor

_OF_ONE_RUN = {"seed_everything", "data.seed", "name", "trainer.default_root_dir"}


class McNemar(NamedTuple):
    """Counts of the images that one model alone classifies correctly, and the two-sided p-value of their difference."""

    only_first: int
    only_second: int
    p_value: float


def mcnemar(first: Tensor, second: Tensor) -> McNemar:
    """Tests whether two models are equally good (McNemar, 1947, https://doi.org/10.1007/BF02295996).

    Args:
        first: bool (N,), true where the first model classifies an image correctly.
        second: bool (N,), the same for the second model, in the same order.
    """
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    differing = only_first + only_second
    tail = sum(comb(differing, count) for count in range(min(only_first, only_second) + 1))
    return McNemar(only_first, only_second, float(min(1.0, 2 * tail / 2**differing)))


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names the settings of a configuration as the command line does, ``model.optimizer.lr`` for example."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = prefix if name == "init_args" else f"{prefix}.{name}" if prefix else str(name)
        if name == "class_path":
            found[prefix] = str(value).rpartition(".")[-1]
        elif isinstance(value, Mapping) and value:
            found |= flattened(value, key)
        else:
            found[key] = value
    return found


def differing_settings(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Finds the settings that differ between runs, each with its value by run, from the content of ``config.yaml``."""
    flat = {run: flattened(config) for run, config in configs.items()}
    names = dict.fromkeys(name for settings in flat.values() for name in settings)
    rows = {name: {run: settings.get(name) for run, settings in flat.items()} for name in names}
    return {
        name: row
        for name, row in rows.items()
        if any(value != next(iter(row.values())) for value in row.values())
    }


def seed_groups(configs: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Groups runs that differ in nothing but their seed, their name and their folder."""
    groups: dict[str, list[str]] = {}
    for run, config in configs.items():
        settings = {
            name: value for name, value in flattened(config).items() if name not in _OF_ONE_RUN
        }
        groups.setdefault(repr(sorted(settings.items(), key=lambda item: item[0])), []).append(run)
    return list(groups.values())
