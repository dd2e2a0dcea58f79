"""What examples and recipes add to a run resumes, too."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from examples.recipes.airbench import Airbench
from examples.tests.test_examples import vit
from tests.conftest import (
    MULTILABEL,
    PAIRS,
    ROOT,
    RUN,
    SmallNetwork,
    load,
    require_same_end,
    rows,
    small,
    stop_at,
)

LAST = RUN / "checkpoints" / "last.ckpt"


class Row(NamedTuple):
    """A run's options, the steps in which it is stopped, its network, and epochs in which it fails before."""

    flags: str
    stops: Iterable[int] = (1, 6)
    slow: bool = False
    network: Callable[[int], object] = SmallNetwork
    fails: Iterable[int] = ()


PAGE = ROOT / "docs" / "change_it.md"  # of which an example is run here
if PAGE.exists():
    (EXAMPLE,) = re.findall(r"^```python\n([^`]+class GrowingBatches[^`]+)", PAGE.read_text(), re.M)
    exec(EXAMPLE)
GROWING = (
    f"--trainer.callbacks+={__name__}.GrowingBatches"
    " --trainer.reload_dataloaders_every_n_epochs=1 --data.batch_size=8"
)
EVERY_THIRD = "--trainer.log_every_n_steps=3"
PLATEAU = (
    "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss"
    " --model.lr_scheduler.patience=0"
)
FIVE_EPOCHS = "--trainer.max_epochs=5 --callbacks.last_checkpoint.every_n_steps=1"
RECIPES = "examples.recipes"
ROWS = {
    "a schedule and plots": Row(EVERY_THIRD, (3, 5), slow=True),
    "a schedule that watches validation across epochs": Row(
        f"{EVERY_THIRD} --trainer.val_check_interval=3 --trainer.check_val_every_n_epoch=null"
        f" {PLATEAU}",
        slow=True,
    ),
    "the head first": Row(
        f"--model.lr_scheduler={RECIPES}.head_first.HeadFirst --model.layer_decay=0.5"
        " --model.optimizer=AdamW",
        (2, 5),
        slow=True,
    ),
    # of eight, four and two steps, in a schedule of 24
    "a batch size that grows": Row(f"{GROWING} --trainer.max_epochs=3", (3, 10, 13)),
    "a batch size that grows, one cycle": Row(
        f"{GROWING} --model.lr_scheduler=OneCycleLR --model.lr_scheduler.max_lr=0.1"
        " --model.lr_scheduler_interval=step",
        (10,),
        slow=True,
    ),
    "images that grow": Row(
        f"--trainer.callbacks+={RECIPES}.progressive_resizing.ProgressiveResizing"
        " --trainer.callbacks.multiple=4",
        (3, 6),
        slow=True,
    ),
    # between a validation and the end of its epoch, and after the last validation
    "seldom validated": Row(
        f"{FIVE_EPOCHS} --trainer.check_val_every_n_epoch=2", (15, 18), fails=(1, 3), slow=True
    ),
    "often validated": Row(
        f"{FIVE_EPOCHS} --trainer.val_check_interval=2", (15,), fails=(1, 3), slow=True
    ),
    "Airbench, Muon, alternating flips": Row(
        f"--model.optimizer={RECIPES}.muon.Muon --model.test_time_augmentation=flip_and_shift"
        f" --data.flip=alternating --data.crop_padding=2 {EVERY_THIRD}"
        f" --trainer.callbacks+={RECIPES}.airbench.WhitenByFirstBatch",
        slow=True,
        network=lambda num_classes: Airbench(num_classes, (8, 16, 16)),
    ),
    "cached features": Row(
        "--model.freeze=backbone --model.weights=weights.pth --data.flip=false"
        " --data.crop_padding=0 --data.cutout=0"
        " --model=examples.recipes.cached_features.CachedFeatures",
        slow=True,
    ),
    "a probe": Row(
        "--model.freeze=backbone --model.weights=weights.pth --data.flip=false"
        " --data.crop_padding=0 --data.cutout=0 --model=examples.recipes.probe.Probe",
        slow=True,
    ),
    "SAM": Row("--model=examples.sam.SAMClassifier", (1, 6), slow=True),
    "several labels": Row(" ".join([*MULTILABEL, *PAIRS[:1]]), (3,)),
    "LoRA": Row("--model=examples.lora.LoRAClassifier --model.rank=2", network=vit, slow=True),
}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.slow] * row.slow, id=name)
        for name, row in ROWS.items()
        if PAGE.exists() or GROWING not in row.flags
    ],
)
def test_a_stopped_run_ends_as_if_undisturbed(workplace, row):
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")  # for the row that needs some
    fit = partial(small, network=row.network)
    for epoch in row.fails:  # once a row of metrics.csv has been written behind the last checkpoint
        failing = LambdaCallback(
            on_train_epoch_start=lambda run, _, epoch=epoch: 1 / (run.current_epoch - epoch)
        )
        with pytest.raises(ZeroDivisionError):
            fit(*row.flags.split(), callbacks=[failing])
        assert len(rows(RUN / "metrics.csv")) == epoch
        assert load(LAST)["global_step"] < 4 * epoch
    flags = row.flags.split()
    fit(*flags, "--trainer.default_root_dir=whole")
    for step in row.stops:
        stop_at(step, *flags, network=row.network)
        assert load(LAST)["global_step"] == step
    fit(*flags)
    require_same_end(Path("whole/run"), RUN)
