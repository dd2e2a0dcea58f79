"""Synchronised BatchNorm makes two processes train as one does; it takes a GPU, which two gloo processes can share."""

import sys

import pytest
import torch

from tests.distributed.job import classifier
from tests.distributed.processes import environment, free_port, run_together


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch synchronises BatchNorm on GPUs only")
def test_two_processes_on_one_gpu_train_as_one_does(tmp_path):
    from tests.distributed.jobs import on_one_gpu

    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "tests.distributed.jobs", "on_one_gpu", "."]
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
