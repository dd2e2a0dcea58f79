"""Numbers within bounds, for signatures: the command line checks them, and a type checker sees plain numbers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    PositiveInt = int
    NonNegativeInt = int
    ClosedUnitInterval = float
    OpenUnitInterval = float
    ShareAboveZero = float
else:
    from jsonargparse.typing import (
        ClosedUnitInterval,
        NonNegativeInt,
        OpenUnitInterval,
        PositiveInt,
        restricted_number_type,
    )

    ShareAboveZero = restricted_number_type("ShareAboveZero", float, [(">", 0), ("<=", 1)])

__all__ = [
    "ClosedUnitInterval",
    "NonNegativeInt",
    "OpenUnitInterval",
    "PositiveInt",
    "ShareAboveZero",
    "plain_numbers",
]


def plain_numbers(value: Any) -> Any:
    """Converts numbers of these types to plain ones, which a checkpoint may contain with ``weights_only=True``."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain_numbers, value))
    for kind in (int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value
