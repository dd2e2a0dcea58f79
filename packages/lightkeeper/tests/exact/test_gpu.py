"""On a GPU, what other tests promise on a CPU; synchronised BatchNorm makes two processes train as one does."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.optim import SGD

from tests.exact.test_same_numbers import LossLogger
from tests.images.test_steps import BadGradient
from tests.job import classifier, trainer
from tests.processes import forked, free_port, run_together
from tests.toy import (
    RUN,
    SmallNetwork,
    ToyClassifier,
    ToyData,
    fit,
    load,
    one_line,
    outcome,
    require_same_end,
    stop_at,
)

GPU = ["--trainer.accelerator=gpu", "--trainer.devices=1", "--trainer.deterministic=true"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_a_run_that_resumes_with_images_on_the_gpu_ends_as_one_that_fetches_each_batch(workplace):
    try:
        fit(*GPU, "--trainer.default_root_dir=whole")
        stop_at(3, *GPU, "--data.device_cache=true", "--callbacks.last_checkpoint.every_n_steps=2")
        fit(*GPU, "--data.device_cache=true")
    finally:
        torch.use_deterministic_algorithms(False)
    require_same_end(RUN, outcome(Path("whole/run")))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "RMSprop"])
def test_a_step_does_not_wait_for_the_gpu_and_one_that_is_not_finite_reaches_no_weights(
    workplace, capsys, optimizer
):
    flags = [
        *GPU[:2],
        f"--model.optimizer={optimizer}",
        "--model.optimizer.lr=0.01",
        "--trainer.log_every_n_steps=50",
    ]

    def refuse_to_wait(trainer, model, batch, batch_idx):
        # but in the fourth step of an epoch, which logs
        torch.cuda.set_sync_debug_mode("error" if batch_idx in (1, 2) else "default")

    try:
        fit(*flags, callbacks=[LambdaCallback(on_train_batch_start=refuse_to_wait)])
        said = one_line(lambda: fit(*flags, "--name=bad", callbacks=[BadGradient(6)]), capsys)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # the next step that is logged
    assert "step 8" in said
    assert "not finite" in said
    assert {load(path)["global_step"] for path in Path("runs/bad").rglob("*.ckpt")} == {4}


class WithoutDropout(ToyClassifier):
    """Draws nothing that would differ by process."""

    def build_network(self, num_classes: int) -> nn.Module:
        network = SmallNetwork(num_classes)
        network.dropout = nn.Identity()
        return network


def on_one_gpu(out, machines=2):
    """Trains one of "machines" that share a GPU, over gloo; NODE_RANK says which."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    model = classifier(WithoutDropout, optimizer=partial(SGD, lr=0.001))
    logger = LossLogger()
    trainer(
        1,
        strategy=DDPStrategy(process_group_backend="gloo") if machines > 1 else "auto",
        num_nodes=machines,
        sync_batchnorm=machines > 1,
        log_every_n_steps=1,
        accelerator="gpu",
        logger=logger,
    ).fit(model, datamodule=ToyData(32, 8, val=5, test=5))
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
