"""The engine: keeps the promises that docs/engine.md names; copy a newer one over it to upgrade."""

__version__ = "0.2.0"
