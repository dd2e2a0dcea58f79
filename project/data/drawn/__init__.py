"""The built-in dataset: drawn flowers, so that the first run needs no download."""

from project.data.drawn.module import SyntheticFlowersDataModule

__all__ = ["SyntheticFlowersDataModule"]
