"""Runs of the real command that take no time, with a small network."""

import signal

import pytest

from project.engine.training.last_checkpoint import StoppedError
from project.fit import FitCLI
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, fit
from tests.engine.toy import (
    AtStep,
    SmallNetwork,
    load as load,
    one_line as one_line,
    read_json as read_json,
    require_same_end as require_same_end,
    rows as rows,
)

DATA = [*TINY_DATA, "--data.cutout=8"]
SMALL = [
    *TINY_TRAINER,
    *QUIET,
    "--trainer.precision=32-true",
    "--trainer.max_epochs=2",
    "--name=run",
]  # 8 steps


def small(*args: str, data=DATA, callbacks=(), network=SmallNetwork) -> FitCLI:
    """Runs ``python -m project.fit`` in this process, by default on drawn flowers, with further callbacks."""
    own = FitCLI._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "project.model.classifier.build_network", lambda arch, classes, args: network(classes)
        )
        patch.setattr(FitCLI, "_callbacks", lambda cli: [*own(cli), *callbacks])
        return fit(*data, *SMALL, *args)


def stop_at(step: int, *args: str, number: int = signal.SIGTERM, **options) -> StoppedError:
    with pytest.raises(StoppedError) as stopped:
        small(*args, callbacks=[AtStep(step, number)], **options)
    return stopped.value
