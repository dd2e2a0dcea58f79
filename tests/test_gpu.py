"""On a GPU, what other tests promise on a CPU."""

import pytest
import torch
from lightkeeper.images import ImageBatch
from lightning.pytorch.callbacks import LambdaCallback

from tests.conftest import small
from tests.stubs import NoiseDataModule

GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_augmentation_is_that_of_a_cpu_to_the_last_bit():
    images = torch.randint(
        0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    batch = ImageBatch(images, torch.zeros(64).long(), torch.arange(64) * 977)
    data = NoiseDataModule(seed=5, flip=True, crop_padding=4, cutout=8)
    there = data.augment(ImageBatch(*(field.cuda() for field in batch)), 3)
    assert torch.equal(there.images.cpu(), data.augment(batch, 3).images)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_does_not_wait_for_the_gpu(workplace, optimizer):
    def refuse_to_wait(trainer, model, batch, batch_idx):
        # but in the fourth step of an epoch, which logs
        torch.cuda.set_sync_debug_mode("error" if batch_idx in (1, 2) else "default")

    options = [f"--model.optimizer={optimizer}", "--trainer.log_every_n_steps=50"]
    try:
        small(*GPU, *options, callbacks=[LambdaCallback(on_train_batch_start=refuse_to_wait)])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("exact", [None, True, False])
def test_validation_in_training_takes_its_precision_and_the_test_float32(workplace, exact):
    of_bfloat16: dict[str, set[bool]] = {"fit": set(), "test": set()}

    def note(trainer, model, logits, *_):
        of_bfloat16[trainer.state.fn].add(torch.equal(logits, logits.bfloat16().float()))

    flags = [] if exact is None else [f"--model.exact_evaluation={exact}"]
    witness = LambdaCallback(on_validation_batch_end=note, on_test_batch_end=note)
    small(*GPU, "--trainer.precision=bf16-mixed", *flags, callbacks=[witness])
    assert of_bfloat16 == {"fit": {exact is not True}, "test": {exact is False}}
