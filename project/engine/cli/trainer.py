"""The Trainer's options, where the command line must read a number as Python does."""

from typing import TYPE_CHECKING, Any

import torch
import yaml
from jsonargparse.typing import register_type
from lightning.pytorch import Trainer

if TYPE_CHECKING:
    Batches = int | float
else:

    class Batches:
        """A number of batches, or a share of all of them.

        jsonargparse tries the types of an option in their order, and Lightning names ``float`` before ``int``.
        """


def _read(text: object) -> int | float:
    value = yaml.safe_load(text) if isinstance(text, str) else text
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"Expected a <class 'int'> or <class 'float'>. Got value: {text}")
    return value


register_type(
    Batches,
    serializer=lambda value: value,
    deserializer=_read,
    type_check=lambda value, _: isinstance(value, int | float) and not isinstance(value, bool),
)
# StochasticWeightAveraging has one as a default, which would come to a config as an error text
register_type(torch.device, str, torch.device)


class ExactTrainer(Trainer):
    """Takes 1 as one batch and 1.0 as all of them, where the command line would take both as the latter.

    Args:
        limit_train_batches: Training batches of an epoch: a number of them, or a share from 0.0 to 1.0.
        limit_val_batches: Validation batches: a number of them, or a share from 0.0 to 1.0.
        limit_test_batches: Test batches: a number of them, or a share from 0.0 to 1.0.
        limit_predict_batches: Batches to predict: a number of them, or a share from 0.0 to 1.0.
        overfit_batches: Train on the first training batches alone, the same in each epoch, and validate on the first
            validation batches: how many of each, or a share; 0.0 is off.
        kwargs: See ``lightning.pytorch.Trainer``.
    """

    def __init__(
        self,
        *,
        limit_train_batches: Batches | None = None,
        limit_val_batches: Batches | None = None,
        limit_test_batches: Batches | None = None,
        limit_predict_batches: Batches | None = None,
        overfit_batches: Batches = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            limit_train_batches=limit_train_batches,
            limit_val_batches=limit_val_batches,
            limit_test_batches=limit_test_batches,
            limit_predict_batches=limit_predict_batches,
            overfit_batches=overfit_batches,
            **kwargs,
        )
