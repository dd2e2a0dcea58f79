"""Keeps PyTorch Lightning runs exact.

- :mod:`lightkeeper.exact`: for any LightningModule and any map-style dataset.
- :mod:`lightkeeper.images`: data modules, batches and checkpoints of image classifiers.
- :mod:`lightkeeper.cli`: commands that train, evaluate, predict and export.
"""

__version__ = "0.3.0"
