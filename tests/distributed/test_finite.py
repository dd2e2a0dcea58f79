"""A loss that is not finite in one process alone stops all, before the step."""

import pytest
import torch

from tests.distributed.job_finite import BAD_RANK, BAD_STEP
from tests.distributed.processes import run, torchrun
from tests.stress import differences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The job under torchrun, and what each process saw."""
    out = tmp_path_factory.mktemp("finite")
    finished = run(torchrun(2, "tests.distributed.job_finite", str(out)), out)
    return finished, [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_no_process_takes_the_step(ended):
    finished, seen = ended
    assert finished.code != 0
    for rank in range(2):
        assert seen[rank]["step"] == BAD_STEP
        assert differences(seen[rank]["before"], seen[rank]["after"]) == []
    assert differences(seen[0]["after"], seen[1]["after"]) == []


def test_the_images_of_the_process_with_the_bad_loss_are_named(ended):
    finished, seen = ended
    assert f"training stopped at step {BAD_STEP}: the loss is inf in process {BAD_RANK}" in finished.err
    assert len(seen[BAD_RANK]["images"]) == 4
    for name in seen[BAD_RANK]["images"]:
        assert f"'{name}'" in finished.err
    assert "another process" in seen[0]["error"]
    assert len([line for line in finished.err.splitlines() if line.startswith("error: ")]) == 2
    assert "[rank" not in finished.err  # as torch begins the traceback of a process
