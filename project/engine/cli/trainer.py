"""The Trainer, annotated so that the command line reads a number of batches as Python does."""

import os
from typing import Any

import torch
from jsonargparse.typing import register_type
from lightning.pytorch import Trainer

# StochasticWeightAveraging has one as a default, which would come to a config as an error text
register_type(torch.device, str, torch.device)


class ExactTrainer(Trainer):
    """Takes 1 as one batch and 1.0 as all of them; Lightning names ``float`` first, which makes both all of them.

    Under torchrun, devices and nodes that were not given are those that it started.

    Args:
        limit_train_batches: Training batches of an epoch: a number of them, or a share from 0.0 to 1.0.
        limit_val_batches: Validation batches: a number of them, or a share from 0.0 to 1.0.
        limit_test_batches: Test batches: a number of them, or a share from 0.0 to 1.0.
        limit_predict_batches: Batches to predict: a number of them, or a share from 0.0 to 1.0.
        overfit_batches: Batches to train and validate on, the same in each epoch, or their share; 0.0 is off.
        kwargs: See ``lightning.pytorch.Trainer``.
    """

    def __init__(
        self,
        *,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        **kwargs: Any,
    ) -> None:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            if kwargs.get("devices") == "auto":
                kwargs["devices"] = int(os.environ["LOCAL_WORLD_SIZE"])
            if kwargs.get("num_nodes") == 1:
                kwargs["num_nodes"] = int(os.environ["GROUP_WORLD_SIZE"])
        super().__init__(
            limit_train_batches=limit_train_batches,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            limit_predict_batches=limit_predict_batches,
            overfit_batches=overfit_batches,
            **kwargs,
        )
