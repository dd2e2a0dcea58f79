"""Synchronised BatchNorm makes two processes train as one does; it takes a GPU, which two gloo processes can share."""

import os
import sys
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.optim import SGD

from project.model.schedules import CosineWithWarmup
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import environment, free_port, named, run_together
from tests.distributed.test_same_training import LossLogger


def on_one_gpu(out, machines=2):
    """Trains one of "machines" that share a GPU, over gloo, with BatchNorm synchronised; NODE_RANK says which."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    model = classifier(optimizer=partial(SGD, lr=0.001), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    logger = LossLogger()
    strategy: Any = DDPStrategy(process_group_backend="gloo") if machines > 1 else "auto"
    options = {"strategy": strategy, "num_nodes": machines, "sync_batchnorm": machines > 1, "log_every_n_steps": 1}
    trainer(1, **options, accelerator="gpu", logger=logger).fit(model, datamodule=flowers(32, 5, 8, cutout=8))
    found = {"losses": logger.losses, "weights": {name: value.cpu() for name, value in model.state_dict().items()}}
    torch.save(found, out / f"{os.environ.get('NODE_RANK')}.pt")
    return found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch synchronises BatchNorm on GPUs only")
def test_two_processes_on_one_gpu_train_as_one_does(tmp_path):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "tests.distributed.job", *named(on_one_gpu, tmp_path)]
    finished = run_together([(command, environment(**shared, NODE_RANK=rank)) for rank in "01"], tmp_path, timeout=240)
    assert all(process.code == 0 for process in finished), "\n".join(map(str, finished))
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    alone = on_one_gpu(tmp_path, machines=1)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
        if name.endswith(("running_mean", "running_var")):
            assert torch.allclose(value, alone["weights"][name], rtol=1e-3, atol=1e-4), name
    classifier().load_state_dict(first["weights"])  # as plain BatchNorm, on a CPU
