"""The planner of many devices, beside a simulation of each message, DDP's own account of its buckets, and real links."""

import os
import random
import runpy
import sys
from unittest.mock import patch

import pytest
from torch.nn.parallel import DistributedDataParallel

from project.analysis.scaling import Bucket, Link, Step, bounds, forecast, ring, server, with_batch
from project.engine.errors import UserError
from project.scaling import measure, parse, plan
from tests.conftest import ROOT, SLIM, TINY_DATA, TINY_TRAINER, as_in_a_terminal, cases
from tests.distributed.processes import Finished, run

ARGS = [*TINY_DATA, *TINY_TRAINER, *SLIM]
STEP = Step(32, 0.1, 0.3, 0.05, 0.01, (Bucket(4e6, 0.1), Bucket(25e6, 0.2), Bucket(9e6, 0.3)))
LINK = Link(1e8, 1e-4)


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
    step, link = (
        Step(8, 0.5, 1.0, 0.1, 0.0, buckets),
        Link(10 ** rng.uniform(7, 9), 10 ** rng.uniform(-5, -2)),
    )
    processes = rng.randint(2, 9)
    end = max(1.0, every_message(step, processes, link))
    assert forecast(step, processes, link).seconds == pytest.approx(0.5 + end + 0.1)
    assert forecast(step, processes, link, accumulate=3).seconds == pytest.approx(3.5 + end + 0.1)


@cases(
    "algorithm processes seconds",
    *(
        (ring, 1, 0),
        (ring, 2, 1.002),
        (ring, 4, 1.506),
        (server, 1, 0),
        (server, 2, 2.002),
        (server, 4, 6.002),
    ),
)
def test_all_reduces_by_hand(algorithm, processes, seconds):
    assert algorithm(100e6, processes, Link(100e6, 0.001)) == pytest.approx(seconds)


def test_one_process_takes_the_measured_step_and_more_bandwidth_is_never_slower():
    assert forecast(STEP, 1, LINK)[:2] == pytest.approx((0.45, 32 / 0.45))
    assert forecast(STEP, 1, LINK).hidden == 1
    for algorithm in (ring, server):
        for processes in (2, 8, 512):
            rates = [
                forecast(STEP, processes, Link(10**power, 1e-4), algorithm).rate
                for power in range(6, 12)
            ]
            assert rates == sorted(rates)
            assert rates[-1] < processes * 32 / 0.45
    (low, high), found = bounds(STEP, 8, LINK), forecast(STEP, 8, LINK)
    assert low < found.rate < high
    assert 0 < found.hidden < 1
    assert (
        found.rate
        < forecast(STEP, 8, LINK, compression=0.5).rate
        < forecast(STEP, 8, LINK, accumulate=4).rate
    )


def test_the_slowest_of_many_is_waited_for():
    rng = random.Random(0)
    still, compute = STEP._replace(spread=0.0, buckets=()), STEP._replace(buckets=())
    for processes in (2, 8, 64):
        late = sum(max(rng.gauss(0, 0.01) for _ in range(processes)) for _ in range(500)) / 500
        waited = (
            forecast(compute, processes, LINK).seconds - forecast(still, processes, LINK).seconds
        )
        assert late < waited < 2.5 * late


def test_a_batch_in_between_takes_a_time_in_between():
    small = Step(
        8, 0.04, 0.15, 0.05, 0.01, tuple(Bucket(one.size, one.ready / 2) for one in STEP.buckets)
    )
    assert with_batch(small, STEP, 32)[:5] == pytest.approx(STEP[:5])
    middle = with_batch(small, STEP, 20)
    assert middle[:5] == pytest.approx((20, 0.07, 0.225, 0.05, 0.01))
    assert middle.buckets[1] == pytest.approx((25e6, 0.15))


def test_buckets_are_those_that_ddp_logs(workplace, monkeypatch):
    built, register = list[DistributedDataParallel](), DistributedDataParallel.register_comm_hook

    def keep(ddp, *args):
        built.append(ddp)
        register(ddp, *args)

    monkeypatch.setattr(DistributedDataParallel, "register_comm_hook", keep)
    with patch.dict(os.environ), as_in_a_terminal():  # Lightning adds variables
        own = [
            "--trainer.strategy=DDPStrategy",
            "--trainer.strategy.bucket_cap_mb=1",
            "--trainer.fast_dev_run=true",
        ]
        step, cli = measure([*ARGS, *own])
    sizes = [bucket.size for bucket in step.buckets]
    assert len(sizes) > 2  # as the strategy says
    assert ", ".join(map(str, sizes)) == built[0]._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert sum(sizes) == 4 * sum(one.numel() for one in cli.model.parameters())
    assert 0 < step.buckets[0].ready < step.buckets[-1].ready <= step.backward
    assert not list(workplace.iterdir())


def test_a_batch_that_the_processes_cannot_share_is_refused(workplace):
    with (
        patch.dict(os.environ),
        as_in_a_terminal(),
        pytest.raises(UserError, match="must be a multiple of 3"),
    ):
        plan(*parse([*ARGS, "--machines=3"]))


def test_the_page_shows_what_is_predicted_of_published_trainings(capsys):
    runpy.run_path(str(ROOT / "scripts" / "scaling_published.py"))["main"]()
    assert capsys.readouterr().out in (ROOT / "docs" / "results.md").read_text()


@pytest.mark.slow
def test_real_links_take_the_predicted_time(tmp_path):
    def output(code: str) -> Finished:
        code = f"import sys, torch, scaling_check as c; torch.set_num_threads(1); {code}"
        return run(
            [sys.executable, "-c", code],
            tmp_path,
            timeout=300,
            PYTHONPATH=f"{ROOT}:{ROOT / 'scripts'}",
        )

    asked = output("sys.exit(c.unavailable())")
    if asked.code:
        pytest.skip(asked.err.strip())
    found = output(
        "print(*[row['error'] for row in c.check(c.alone(), 2, 100, [c.CASES[1], c.CASES[3]], 1)])"
    )
    assert all(abs(float(error.rstrip("%"))) < 15 for error in found.out.split()), str(found)
    assert len(found.out.split()) == 2
