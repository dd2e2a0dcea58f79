"""Flowers that are drawn once: to draw them takes a quarter of a tiny run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from project.data.drawn.drawing import draw_flowers

_FLOWERS: dict[str, Tensor] = {}


def _flowers(labels: Tensor, indices: Tensor, **options: Any) -> Tensor:
    key = str((labels.tolist(), indices.tolist(), options))
    if key not in _FLOWERS:
        _FLOWERS[key] = draw_flowers(labels, indices, **options)
    return _FLOWERS[key].clone()


@contextmanager
def flowers_drawn_once() -> Iterator[None]:
    """Keeps the flowers that runs have drawn for the next ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("project.data.drawn.module.draw_flowers", _flowers)
        yield
