"""Random numbers as a function of (seed, epoch, sample index, purpose), for a whole batch at once.

What a generator yields depends on the worker, the process and the batch that asked before. A hash
does not, so a sample is augmented alike on any number of workers and devices, and after any
interruption. Code that draws from a generator all the same, such as torchvision's transforms, finds
it seeded by such a hash.
"""

import hashlib
import random
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from gc import get_referents
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._errors import is_first_on_machine, note

# 2^64 divided by the golden ratio, odd, as a signed integer
_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIERS = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_WITHOUT_GENERATORS = (str, bytes, int, float, type, ModuleType, np.ndarray, Tensor)
_MOST_PARTS = 2000
"""Longer lists, and dicts of half as many, are a dataset's samples: a search would take long."""


class Purpose(IntEnum):
    """The purposes of random numbers; different ones get independent numbers."""

    CROP = 0
    ORDER = 4
    TRANSFORMS = 5
    BATCH_TRANSFORMS = 6
    STEP = 7
    EVALUATION = 8
    BALANCE = 9
    DATASET = 11
    HELD = 12
    AFTER_FIT = 13
    FETCH = 14
    AFTER_VALIDATION = 15


def uniform(seed: int, epoch: int, indices: Tensor, purpose: int, count: int = 1) -> Tensor:
    """Hashes each sample to numbers that are uniform in [0, 1).

    The mixing function is the finaliser of SplitMix64 (Steele et al., 2014,
    https://doi.org/10.1145/2660193.2660195).

    Args:
        seed: Any integer that fits 64 bits.
        epoch: The number of the epoch.
        indices: int64 (N,), the samples' positions in their dataset.
        purpose: Tells numbers for different things apart: yours from 1000, lower ones are taken.
        count: The numbers of each sample.

    Returns:
        float32 (N, count) on the device of ``indices``, in steps of 2^-24.
    """
    samples = _mix(indices + _state(seed, epoch, purpose))
    draws = torch.arange(1, count + 1, device=indices.device) * _GOLDEN_RATIO
    bits = _shift_right(_mix(samples[:, None] + draws), 40)
    return bits.to(torch.float32) * 2.0**-24


@lru_cache
def _state(*parts: int) -> int:
    """Hashes what all samples of an epoch share, which takes as long as a batch's numbers."""
    state = torch.tensor(0)
    for part in parts:
        state = _mix(state + part)
    return int(state)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN_RATIO
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shifts zeros in from the left: torch's own shift of a signed integer repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def derived_seed(purpose: int, *place: int) -> int:
    """Hashes a purpose and a place, such as (seed, epoch, index), to a seed of 64 bits."""
    text = " ".join(map(str, (int(purpose), *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def seed_generators(
    seed: int, device: torch.device | None = None, held: Sequence[object] = ()
) -> None:
    """Seeds the generators that all code shares: Python's, NumPy's, torch's on CPU and ``device``.

    ``torch.manual_seed`` would ask every kind of device that torch knows, each time with a
    traceback for those not used. ``held`` are those of :func:`held_generators`.
    """
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # what other code draws from
    for number, generator in enumerate(held):
        _seed_held(generator, derived_seed(Purpose.HELD, seed, number))


def held_generators(*owners: object) -> list[object]:
    """Finds generators that transforms or a dataset hold for themselves, to be seeded as well.

    Otherwise a run would resume with other numbers, and each worker would draw the same. They are
    looked for in attributes, containers, closures and variables of a module, and are objects with
    ``set_random_seed``, as of albumentations, and generators of Python, NumPy and torch. A note
    names one of the system's, which cannot be seeded.
    """
    generators: list[object] = []
    unvisited = [*reversed(owners)]
    seen = set[int]()
    while unvisited:
        part = unvisited.pop()
        if id(part) in seen or isinstance(part, _WITHOUT_GENERATORS):
            continue
        seen.add(id(part))
        if isinstance(part, random.SystemRandom):
            if is_first_on_machine():
                note(
                    "a transform or dataset holds a SystemRandom, which cannot be seeded;"
                    " a run will not resume exactly"
                )
        elif _is_generator(part):
            generators.append(part)
        else:
            unvisited.extend(reversed(_parts_of(part)))
    return generators


def _is_generator(part: object) -> bool:
    return isinstance(part, _GENERATORS) or callable(getattr(type(part), "set_random_seed", None))


def _parts_of(value: object) -> list[object]:
    """Returns what an object refers to; of a module's variables, generators alone."""
    if isinstance(value, FunctionType):
        variables = map(value.__globals__.get, value.__code__.co_names)
        return [*(value.__closure__ or ()), *filter(_is_generator, variables)]
    parts = get_referents(value)  # attributes, items, what a method is bound to
    methods = [part for part in vars(type(value)).values() if isinstance(part, FunctionType)]
    return [*(parts if len(parts) <= _MOST_PARTS else ()), *methods]


def _seed_held(generator: Any, seed: int) -> None:
    if hasattr(generator, "set_random_seed"):
        generator.set_random_seed(seed % 2**32)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        numbers = generator.bit_generator
        numbers.state = type(numbers)(seed).state
    else:  # Python's, or NumPy's of old
        generator.seed(seed % 2**32)
