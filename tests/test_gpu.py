"""On a GPU, what other tests promise on a CPU; synchronised BatchNorm makes two processes train as one does."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from lightkeeper.images import ImageBatch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.strategies import DDPStrategy
from torch.optim import SGD

from project.model.schedules import CosineWithWarmup
from tests.conftest import load, one_line, require_same_end, small, stop_at
from tests.data.stubs import NoiseDataModule
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import forked, free_port, run_together
from tests.distributed.test_same_numbers import LossLogger
from tests.engine.toy import outcome
from tests.engine.training.test_steps import BadGradient

GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1", "--trainer.deterministic=true"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_augmentation_is_that_of_a_cpu_to_the_last_bit():
    images = torch.randint(
        0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    batch = ImageBatch(images, torch.zeros(64).long(), torch.arange(64) * 977)
    data = NoiseDataModule(seed=5, flip=True, crop_padding=4, cutout=8)
    there = data.augment(ImageBatch(*(field.cuda() for field in batch)), 3)
    assert torch.equal(there.images.cpu(), data.augment(batch, 3).images)


def test_a_run_that_is_stopped_and_goes_on_with_images_on_the_gpu_ends_as_one_that_fetches_each_batch(
    workplace,
):
    try:
        small(*GPU, "--trainer.default_root_dir=whole")
        stop_at(3, *GPU, "--data.device_cache=true", "--callbacks.last_checkpoint.every_n_steps=2")
        small(*GPU, "--data.device_cache=true")
    finally:
        torch.use_deterministic_algorithms(False)
    require_same_end(Path("runs/run"), outcome(Path("whole/run")))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "RMSprop", "examples.recipes.muon.Muon"])
def test_a_step_does_not_wait_for_the_gpu_and_one_that_is_not_finite_reaches_no_weights(
    workplace, capsys, optimizer
):
    flags = [
        *GPU[:2],
        f"--model.optimizer={optimizer}",
        "--model.optimizer.lr=0.01",
        "--trainer.log_every_n_steps=50",
    ]

    def refuse_to_wait(
        trainer, model, batch, batch_idx
    ):  # but in the fourth step of an epoch, which logs
        torch.cuda.set_sync_debug_mode("error" if batch_idx in (1, 2) else "default")

    try:
        small(*flags, callbacks=[LambdaCallback(on_train_batch_start=refuse_to_wait)])
        said = one_line(lambda: small(*flags, "--name=bad", callbacks=[BadGradient(6)]), capsys)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # the next step that is logged
    assert "step 8" in said
    assert "not finite" in said
    assert {load(path)["global_step"] for path in Path("runs/bad").rglob("*.ckpt")} == {4}


@pytest.mark.parametrize("exact", [None, True, False])
def test_validation_in_training_takes_its_precision_and_the_test_float32(workplace, exact):
    of_bfloat16: dict[str, set[bool]] = {"fit": set(), "test": set()}

    def note(trainer, model, logits, *_):
        of_bfloat16[trainer.state.fn].add(torch.equal(logits, logits.bfloat16().float()))

    flags = [] if exact is None else [f"--model.exact_evaluation={exact}"]
    witness = LambdaCallback(on_validation_batch_end=note, on_test_batch_end=note)
    small(*GPU[:2], "--trainer.precision=bf16-mixed", *flags, callbacks=[witness])
    assert of_bfloat16 == {"fit": {exact is not True}, "test": {exact is False}}


def on_one_gpu(out, machines=2):
    """Trains one of "machines" that share a GPU, over gloo; NODE_RANK says which."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    model = classifier(
        optimizer=partial(SGD, lr=0.001), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0)
    )
    logger = LossLogger()
    trainer(
        1,
        strategy=DDPStrategy(process_group_backend="gloo") if machines > 1 else "auto",
        num_nodes=machines,
        sync_batchnorm=machines > 1,
        log_every_n_steps=1,
        accelerator="gpu",
        logger=logger,
    ).fit(model, datamodule=flowers(32, 5, 8, cutout=8))
    found = {
        "losses": logger.losses,
        "weights": {name: value.cpu() for name, value in model.state_dict().items()},
    }
    torch.save(found, out / f"{os.environ.get('NODE_RANK')}.pt")
    return found


def test_two_processes_on_one_gpu_train_as_one_does(tmp_path):
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": "0",
    }
    command = forked(1, on_one_gpu, tmp_path)
    finished = run_together(
        [(command, {**shared, "NODE_RANK": rank}) for rank in "01"], tmp_path, timeout=240
    )
    assert all(process.code == 0 for process in finished), "\n".join(map(str, finished))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    alone = on_one_gpu(tmp_path, machines=1)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
        if name.endswith(("running_mean", "running_var")):
            assert torch.allclose(value, alone["weights"][name], rtol=1e-3, atol=1e-4), name
    classifier().load_state_dict(first["weights"])  # as plain BatchNorm, on a CPU
