"""Synchronised BatchNorm makes two processes train as one does; it takes a GPU, which two gloo processes can share."""

import sys

import pytest
import torch

from tests.distributed.job import classifier
from tests.distributed.processes import environment, free_port, run_together

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch synchronises BatchNorm on GPUs only")


@needs_gpu
def test_two_processes_on_one_gpu_train_as_one_does(tmp_path):
    from tests.distributed.job_sync_batchnorm import train

    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "0"}
    commands = [
        (
            [sys.executable, "-m", "tests.distributed.job_sync_batchnorm", f"machine{rank}.pt"],
            environment(**shared, NODE_RANK=str(rank)),
        )
        for rank in range(2)
    ]
    finished = run_together(commands, tmp_path, timeout=240)
    assert all(process.code == 0 for process in finished), "\n".join(map(str, finished))
    first, second = (torch.load(tmp_path / f"machine{rank}.pt", weights_only=True) for rank in range(2))
    alone = train(1)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3)
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
        if name.endswith(("running_mean", "running_var")):
            assert torch.allclose(value, alone["weights"][name], rtol=1e-3, atol=1e-4), name
    classifier().load_state_dict(first["weights"])  # as plain BatchNorm, on a CPU
