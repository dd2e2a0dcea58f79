"""A loss that is not finite in one process alone stops all, before the step."""

import pytest
import torch

from tests.distributed.jobs import BAD_RANK, BAD_STEP
from tests.distributed.processes import run, torchrun
from tests.stress import differences


@pytest.mark.slow
def test_no_process_takes_the_step_and_the_images_with_the_bad_loss_are_named(tmp_path):
    finished = run(torchrun(2, "tests.distributed.jobs", "finite", str(tmp_path)), tmp_path)
    seen = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert finished.code != 0
    for rank in seen:
        assert rank["step"] == BAD_STEP
        assert differences(rank["before"], rank["after"]) == []
    assert differences(seen[0]["after"], seen[1]["after"]) == []
    assert f"training stopped at step {BAD_STEP}: the loss is inf in process {BAD_RANK}" in finished.err
    assert len(seen[BAD_RANK]["images"]) == 4
    for name in seen[BAD_RANK]["images"]:
        assert f"'{name}'" in finished.err
    assert "another process" in seen[0]["error"]
    assert len([line for line in finished.err.splitlines() if line.startswith("error: ")]) == 2
    assert "[rank" not in finished.err  # as torch begins the traceback of a process
