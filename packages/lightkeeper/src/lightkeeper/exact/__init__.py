"""Exact order, randomness and resuming for any LightningModule and any map-style dataset."""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._errors import UserError as UserError, note as note
    from ._loggers import is_logged as is_logged
    from ._randomness import uniform as uniform

_MODULES = {
    "UserError": "_errors",
    "note": "_errors",
    "is_logged": "_loggers",
    "uniform": "_randomness",
}

__getattr__ = lazy_names(__name__, _MODULES)
