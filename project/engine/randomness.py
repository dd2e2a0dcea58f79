"""Random numbers as a function of (seed, epoch, sample index, purpose), for a whole batch at once.

What a generator yields depends on the worker, the process and the batch that asked before. A hash
does not, so a sample is augmented alike on any number of workers and devices, and after any
interruption. Code that draws from a generator all the same, such as torchvision's transforms, finds
it seeded by such a hash.
"""

import hashlib
import random
from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (
    1 << 64
)  # 2^64 divided by the golden ratio, odd, as a signed integer
_MULTIPLIERS = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)


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


def uniform(seed: int, epoch: int, indices: Tensor, purpose: int, count: int = 1) -> Tensor:
    """Hashes each sample to numbers that are uniform in [0, 1).

    The mixing function is the finaliser of SplitMix64 (Steele et al., 2014,
    https://doi.org/10.1145/2660193.2660195).

    Args:
        seed: Any integer that fits 64 bits.
        epoch: The number of the epoch.
        indices: int64 (N,), the samples' positions in their dataset.
        purpose: See :class:`Purpose`; the built-in data have 1 to 3 and numbers from 100, yours
            from 1000.
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


def seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seeds the generators that all code shares: Python's, NumPy's, torch's on CPU and ``device``.

    ``torch.manual_seed`` would ask every kind of device that torch knows, each time with a
    traceback for those not used.
    """
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # what other code draws from
