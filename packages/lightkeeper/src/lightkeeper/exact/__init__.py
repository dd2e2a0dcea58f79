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
    from ._checkpoint_io import AtomicCheckpointIO as AtomicCheckpointIO
    from ._errors import UserError as UserError, note as note
    from ._last_checkpoint import (
        LastCheckpoint as LastCheckpoint,
        newest_checkpoint as newest_checkpoint,
    )
    from ._loader import ExactDataLoader as ExactDataLoader
    from ._loggers import (
        ResumingCSVLogger as ResumingCSVLogger,
        ResumingTensorBoardLogger as ResumingTensorBoardLogger,
        is_logged as is_logged,
    )
    from ._non_finite import StopOnNonFinite as StopOnNonFinite
    from ._randomness import uniform as uniform
    from ._training import ExactTraining as ExactTraining

_MODULES = {
    "AtomicCheckpointIO": "_checkpoint_io",
    "ExactDataLoader": "_loader",
    "ExactTraining": "_training",
    "LastCheckpoint": "_last_checkpoint",
    "ResumingCSVLogger": "_loggers",
    "ResumingTensorBoardLogger": "_loggers",
    "StopOnNonFinite": "_non_finite",
    "UserError": "_errors",
    "newest_checkpoint": "_last_checkpoint",
    "note": "_errors",
    "is_logged": "_loggers",
    "uniform": "_randomness",
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
