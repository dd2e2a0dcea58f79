"""Trains one of two "machines" that share a GPU, over gloo, with BatchNorm synchronised.

Arguments: a file for what it saw. NODE_RANK, MASTER_ADDR and MASTER_PORT say which machine it is.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import SGD

from project.model.schedules import CosineWithWarmup
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.job_train import LossLogger


def train(machines: int) -> dict[str, Any]:
    """The losses and the last weights of a short run."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    model = classifier(optimizer=partial(SGD, lr=0.001), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    logger = LossLogger()
    several: dict[str, Any] = {
        "strategy": DDPStrategy(process_group_backend="gloo"),
        "num_nodes": machines,
        "sync_batchnorm": True,
    }
    options = several if machines > 1 else {"strategy": "auto"}
    one = trainer(1, **{"accelerator": "gpu", "logger": logger, "log_every_n_steps": 1, **options})
    one.fit(model, datamodule=flowers(32, 5, 8, cutout=8))
    weights: dict[str, Tensor] = {name: value.cpu() for name, value in model.state_dict().items()}
    return {"losses": logger.losses, "weights": weights}


if __name__ == "__main__":
    torch.save(train(2), Path(sys.argv[1]))
