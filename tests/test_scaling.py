"""The planner of many devices, beside a simulation of each message, and the buckets of DDP."""

import os
import random
from unittest.mock import patch

import pytest
from scaling import Bucket, Link, Step, forecast, measure

from project.model.networks import build_network
from tests.conftest import SLIM, TINY_DATA, TINY_TRAINER, as_in_a_terminal


def every_message(step: Step, processes: int, link: Link) -> float:
    """The end of the last all-reduce; each process sends on what its neighbour has sent, one message after another."""
    arrived, free = [0.0] * processes, [0.0] * processes
    for bucket in step.buckets:
        arrived = [max(bucket.ready, time) for time in arrived]
        for _ in range(2 * (processes - 1)):
            begun = [max(arrived[process], free[process]) for process in range(processes)]
            free = [
                time + bucket.size / processes / link.bandwidth + link.latency for time in begun
            ]
            arrived = [free[process - 1] for process in range(processes)]
    return max(arrived)


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_what_a_simulation_of_each_message_takes(seed):
    rng = random.Random(seed)
    ready = sorted(rng.uniform(0, 1) for _ in range(5))
    buckets = tuple(Bucket(rng.uniform(1e6, 3e7), when) for when in ready)
    step = Step(8, 0.5, 1.0, 0.1, 0.0, buckets)
    link = Link(10 ** rng.uniform(7, 9), 10 ** rng.uniform(-5, -2))
    processes = rng.randint(1, 9)
    end = max(1.0, every_message(step, processes, link))
    assert forecast(step, processes, link).seconds == pytest.approx(0.5 + end + 0.1)
    assert forecast(step, processes, link, accumulate=3).seconds == pytest.approx(3.5 + end + 0.1)


def test_the_buckets_hold_all_gradients(workplace):
    small = ["--trainer.strategy=DDPStrategy", "--trainer.strategy.bucket_cap_mb=1"]
    with patch.dict(os.environ), as_in_a_terminal():  # Lightning adds variables
        step = measure([*TINY_DATA, *TINY_TRAINER, *SLIM, *small])
    sizes = [bucket.size for bucket in step.buckets]
    assert len(sizes) > 2  # as the strategy says
    parameters = build_network("resnet9_slim", 8).parameters()
    assert sum(sizes) == 4 * sum(parameter.numel() for parameter in parameters)
    assert 0 < step.buckets[0].ready < step.buckets[-1].ready <= step.backward
    assert not list(workplace.iterdir())
