"""What is drawn in a step, or in a hook before it, depends on where the step is, not on what came before."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from torch.utils.data import DataLoader

from project.callbacks import SeedEachBatch
from tests.distributed.job import trainer as quiet_trainer


def draw() -> tuple[Any, ...]:
    return torch.rand(4).tolist(), random.random(), np.random.random(2).tolist()  # noqa: NPY002


class Noisy(LightningModule):
    """A model of the user's, on any loader, that draws in every hook of a training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.drawn: dict[tuple[str, int, int], Any] = {}

    def draw(self, hook: str) -> None:
        if self.trainer.training:
            self.drawn[hook, self.trainer.current_epoch, self.trainer.global_step] = draw()

    def on_before_batch_transfer(self, batch, dataloader_idx: int):
        self.draw("before")
        return batch

    def transfer_batch_to_device(self, batch, device, dataloader_idx: int):
        self.draw("transfer")
        return batch.to(device)

    def on_after_batch_transfer(self, batch, dataloader_idx: int):
        self.draw("after")
        return batch

    def training_step(self, batch, batch_idx: int):
        self.draw("step")
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx: int) -> None:
        draw()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before.*")
@pytest.mark.parametrize("step", [0, 3, 4])
def test_hooks_of_a_users_model_draw_alike_after_a_resume(step, workplace):
    def save(trainer, *_) -> None:
        if trainer.global_step == step:  # when a batch was transferred and nothing was done with it
            trainer.save_checkpoint("saved.ckpt")

    loader: Any = DataLoader(list(torch.ones(4, 1)))  # type: ignore[arg-type]  # a list is a dataset
    whole, resumed = Noisy(), Noisy()
    for model, ckpt_path in ((whole, None), (resumed, "saved.ckpt")):
        callbacks = [SeedEachBatch(0), *([] if ckpt_path else [LambdaCallback(on_train_batch_start=save)])]
        trainer = quiet_trainer(1, max_epochs=2, val_check_interval=2, callbacks=callbacks)
        trainer.fit(model, loader, loader, ckpt_path=ckpt_path)
        draw()
    assert len(whole.drawn) == 4 * 8
    assert {place for _, _, place in resumed.drawn} == set(range(step, 8))
    assert resumed.drawn == {place: whole.drawn[place] for place in resumed.drawn}
    assert len(set(map(str, whole.drawn.values()))) == len(whole.drawn)
