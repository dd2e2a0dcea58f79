"""Two or more runs beside each other: what differs in their configurations, and whether a difference is chance."""

from collections.abc import Mapping
from math import comb
from typing import Any, NamedTuple

from torch import Tensor

_OF_ONE_RUN = {"seed_everything", "data.seed", "name", "trainer.default_root_dir"}


class McNemar(NamedTuple):
    """McNemar's exact test of two models on the same images (McNemar, 1947, https://doi.org/10.1007/BF02295996).

    Attributes:
        only_first: How many images the first model alone classifies correctly.
        only_second: How many images the second model alone classifies correctly.
        p_value: The probability of a difference at least as large between two equally good models, two-sided.
    """

    only_first: int
    only_second: int
    p_value: float


def mcnemar(first: Tensor, second: Tensor) -> McNemar:
    """Tests whether two models are equally good, by the images that one classifies correctly and the other does not.

    Args:
        first: bool (N,), whether the first model is right about each image.
        second: bool (N,), the same of the second, in the same order.

    Raises:
        ValueError: They are not about the same number of images.
    """
    if first.shape != second.shape:
        raise ValueError(f"both must be about the same images, got {len(first)} and {len(second)}")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    differing = only_first + only_second
    tail = sum(comb(differing, count) for count in range(min(only_first, only_second) + 1))
    return McNemar(only_first, only_second, float(min(1.0, 2 * tail / 2**differing)))


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings of a configuration under their names on the command line, ``model.optimizer.lr`` for example."""
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
    """The settings that are not the same in all runs.

    Args:
        configs: By run, what its ``config.yaml`` holds.

    Returns:
        By setting, the value of each run; None where a run has no such setting.
    """
    flat = {run: flattened(config) for run, config in configs.items()}
    names = dict.fromkeys(name for settings in flat.values() for name in settings)
    rows = {name: {run: settings.get(name) for run, settings in flat.items()} for name in names}
    return {name: row for name, row in rows.items() if any(value != next(iter(row.values())) for value in row.values())}


def seed_groups(configs: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Runs in groups that differ in nothing but their seed, their name and the folder that they are in.

    Args:
        configs: By run, what its ``config.yaml`` holds.
    """
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for run, config in configs.items():
        settings = {name: value for name, value in flattened(config).items() if name not in _OF_ONE_RUN}
        group = next((members for known, members in groups if known == settings), None)
        if group is None:
            groups.append((settings, [run]))
        else:
            group.append(run)
    return [members for _, members in groups]
