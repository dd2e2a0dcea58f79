import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """On busy cores, threads that wait for one another make small tensors many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
