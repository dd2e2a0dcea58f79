"""The engine: keeps the promises that docs/promises.md names; copy a newer one over it to upgrade."""

__version__ = "0.2.0"
