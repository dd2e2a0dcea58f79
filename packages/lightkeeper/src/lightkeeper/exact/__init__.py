"""Exact order, randomness and resuming for any LightningModule and any map-style dataset.

Examples:
    Random numbers are functions of (seed, epoch, index, purpose), the same on any devices:

    >>> import torch
    >>> [round(number, 4) for number in uniform(0, 1, torch.tensor([5, 9]), 1000)[:, 0].tolist()]
    [0.2593, 0.126]

    A mistake that a person makes is one line:

    >>> try:
    ...     raise UserError("there is no file 'absent.pth'")
    ... except UserError as error:
    ...     note(f"error: {error}")
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._errors import UserError as UserError, note as note
    from ._randomness import uniform as uniform

_MODULES = {
    "UserError": "_errors",
    "note": "_errors",
    "uniform": "_randomness",
}

__getattr__ = lazy_names(__name__, _MODULES)
