"""A tiny run of the real command, and what it leaves behind."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import SLIM

TINY = [
    "--data=tests.distributed.job_commands.AnnouncingDataModule",
    "--data.train_size=48",
    "--data.val_size=25",
    "--data.test_size=27",
    "--data.image_size=32",
    "--data.batch_size=16",
    "--data.num_workers=0",
    *SLIM,
    "--model.optimizer.lr=0.001",
    "--trainer.accelerator=cpu",
    "--trainer.precision=32-true",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.num_sanity_val_steps=0",
    "--trainer.enable_progress_bar=false",
]


def read(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text())
