"""Measures what ``scaling.py`` predicts: ``python scripts/scaling_check.py TABLE.csv PLOT.png``, as root on Linux.

Each process has a network namespace, whose link ``tc`` limits in both directions. They train under DDP over gloo, with
ResNet-18's gradients; backward passes sleep instead of computing, as eight processes would share this machine's cores. So
this checks the model of communication, not of computing; where ``busy`` is near 100, the cores are slower than the links.
"""

import csv
import ctypes
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib import style
from matplotlib.figure import Figure
from scaling import CHECKED, Bucket, Link, Step, bounds, forecast, ring, server
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

Case = tuple[Callable[[float, int, Link], float], float, int]
"""Algorithm, the share of the bytes that travels, and accumulated batches."""

CASES: list[Case] = [
    (ring, 1.0, 1),
    (ring, 0.5, 1),
    (ring, 1.0, 4),
    (server, 1.0, 1),
    (server, 0.5, 1),
]
RATES = {100: "100 Mbit/s", 1000: "1 Gbit/s"}
FORWARD, BACKWARD = 0.2, 0.4  # seconds
HUB = "scalinghub"


class Sleep(torch.autograd.Function):
    """A layer whose gradient, 0, is there some time after the start of the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, network: Any, when: float) -> Tensor:
        """Passes the input on."""
        ctx.gradient, ctx.network, ctx.when = weight.new_zeros(()).expand_as(weight), network, when
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Waits until the time."""
        time.sleep(max(0.0, ctx.network.start + ctx.when - time.perf_counter()))
        return gradient, ctx.gradient, None, None


class Sleeping(nn.Module):
    """A network with ResNet-18's parameters, whose gradients come at even intervals."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.weights = 0.0, nn.ParameterList(resnet18(num_classes=10).parameters())

    def forward(self, x: Tensor) -> Tensor:
        """Sleeps through the forward pass."""
        time.sleep(FORWARD)
        for position, weight in enumerate(self.weights):
            x = Sleep.apply(x, weight, self, BACKWARD * (1 - position / len(self.weights)))
        return x


def through_server(
    turns: ThreadPoolExecutor, bucket: Any, half: bool
) -> torch.futures.Future[Tensor]:
    """Sends a bucket to the first process, which adds all up and answers; one bucket after another."""
    content = bucket.buffer().to(torch.bfloat16) if half else bucket.buffer()
    done, others = torch.futures.Future[Tensor](), range(1, distributed.get_world_size())

    def exchange() -> None:
        if distributed.get_rank() == 0:
            parts = [torch.empty_like(content) for _ in others]
            _wait([distributed.irecv(part, rank) for part, rank in zip(parts, others, strict=True)])
            for part in parts:
                content.add_(part)
            _wait([distributed.isend(content, rank) for rank in others])
        else:
            distributed.send(content, 0)
            distributed.recv(content, 0)
        done.set_result(content.to(bucket.buffer().dtype))

    turns.submit(exchange)
    return done


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def steps(case: Case, count: int) -> tuple[list[float], float, list[Bucket]]:
    """Trains; returns the seconds of each step, the share of the cores in use, and one process's buckets.

    The first step is left out, as DDP chooses its buckets after it.
    """
    algorithm, compression, accumulate = case
    network, turns, seen = Sleeping(), ThreadPoolExecutor(1), list[Bucket]()
    ddp = DistributedDataParallel(network, gradient_as_bucket_view=True)

    def send(bucket: Any) -> torch.futures.Future[Tensor]:
        if distributed.get_world_size() == 1:
            seen.append(Bucket(bucket.buffer().nbytes, time.perf_counter() - network.start))
            return noop_hook(None, bucket)
        if algorithm is server:
            return through_server(turns, bucket, compression < 1)
        return (bf16_compress_hook if compression < 1 else allreduce_hook)(None, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(
        None, lambda _, bucket: send(bucket)
    )  # torch and mypy disagree on its annotations
    seconds, cores = [], []
    for _ in range(count + 1):
        cores.append([int(field) for field in Path("/proc/stat").read_text().split()[1:9]])
        seen.clear()
        begin = time.perf_counter()
        for batch in range(accumulate):
            with nullcontext() if batch == accumulate - 1 else ddp.no_sync():
                y = ddp(torch.zeros(1, requires_grad=True))
                network.start = time.perf_counter()
                y.backward()
        seconds.append(time.perf_counter() - begin)
    spent = [last - first for first, last in zip(cores[0], cores[-1], strict=True)]
    return seconds[1:], 1 - spent[3] / max(1, sum(spent)), seen  # the fourth is idle time


@contextmanager
def network(machines: int, rate: int) -> Iterator[list[str]]:
    """Makes namespaces that are machines, each with a link of so many Mbit/s to a switch."""
    names = [f"scaling{number}" for number in range(machines)]
    limit = f"root tbf rate {rate}mbit burst 128kb limit 2mb"
    try:
        _run(f"ip netns add {HUB}", f"ip -n {HUB} link add switch up type bridge")
        for number, name in enumerate(names):
            _run(
                f"ip netns add {name}",
                f"ip -n {name} link add eth0 type veth peer name port{number} netns {HUB}",
            )
            _run(
                f"ip -n {name} addr add 10.77.0.{number + 1}/24 dev eth0",
                *(f"ip -n {name} link set {one} up" for one in ("lo", "eth0")),
            )
            _run(
                f"ip -n {HUB} link set port{number} master switch up",
                f"tc -n {name} qdisc add dev eth0 {limit}",
            )
            _run(f"tc -n {HUB} qdisc add dev port{number} {limit}")
        yield names
    finally:
        for name in (HUB, *names):
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def unavailable() -> str | None:
    """Returns why this machine cannot be several, if it cannot."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        return "skipped: to limit links takes root, ip and tc"
    try:
        with network(1, 100):
            return None
    except subprocess.CalledProcessError as error:
        return f"skipped: this machine refuses {' '.join(error.cmd)}"


def train(machines: int, rate: int, cases: Sequence[Case], count: int) -> Any:
    """Trains in each case on so many machines, and returns what the first one found."""
    pids = list[int]()
    with network(machines, rate) as names, TemporaryDirectory() as folder:
        for rank, name in enumerate(names):
            if (pid := os.fork()) == 0:
                try:
                    with open(f"/run/netns/{name}") as namespace:
                        ctypes.CDLL(None).setns(namespace.fileno(), 0x40000000)  # CLONE_NEWNET
                    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
                    options: dict[str, Any] = {"rank": rank, "world_size": machines}
                    distributed.init_process_group(
                        "gloo", init_method="tcp://10.77.0.1:29500", **options
                    )
                    Path(folder, str(rank)).write_text(
                        json.dumps([steps(case, count) for case in cases])
                    )
                    distributed.barrier()
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        return json.loads(Path(folder, "0").read_text())


def alone() -> Step:
    """Measures one process, as ``scaling.py`` does."""
    (((seconds,), _, buckets),) = train(1, 1000, CASES[:1], 1)
    return Step(1, FORWARD, seconds - FORWARD, 0.0, 0.0, tuple(Bucket(*one) for one in buckets))


def check(
    step: Step, machines: int, rate: int, cases: Sequence[Case], count: int
) -> Iterator[dict[str, Any]]:
    """Yields a row for each case, predicted and measured."""
    found = train(machines, rate, cases, count)
    for (algorithm, compression, accumulate), (seconds, busy, _) in zip(cases, found, strict=True):
        predicted = forecast(step, machines, link(rate), algorithm, compression, accumulate).seconds
        mean = statistics.mean(seconds)
        row = {"mbit_s": rate, "processes": machines, "algorithm": algorithm.__name__}
        row |= {
            "gradients": "float32" if compression == 1 else "bfloat16",
            "accumulate": accumulate,
        }
        row |= {
            "predicted_s": f"{predicted:.3f}",
            "measured_s": f"{mean:.3f}",
            "least_s": f"{min(seconds):.3f}",
        }
        yield row | {
            "most_s": f"{max(seconds):.3f}",
            "error": f"{predicted / mean - 1:+.1%}",
            "busy": f"{busy:.0%}",
        }


def link(rate: int) -> Link:
    """Returns a link of so many Mbit/s without the headers of Ethernet, IP and TCP."""
    return Link(rate * 1e6 / 8 * 1448 / 1514, 0.0)


def draw(step: Step, rows: Sequence[dict[str, Any]], counts: Sequence[int]) -> Figure:
    """Draws images per second of N processes, as a share of N times one's, over N."""
    figure, alone = Figure(figsize=(9, 3.8), layout="constrained"), step.forward + step.backward
    for axes, (rate, title) in zip(figure.subplots(1, 2), RATES.items(), strict=True):
        for colour, algorithm in (("C0", ring), ("C1", server)):
            line = [
                alone / forecast(step, count, link(rate), algorithm).seconds for count in counts
            ]
            axes.plot(counts, line, color=colour, label=f"{algorithm.__name__}, predicted")
            plain = {
                "mbit_s": rate,
                "algorithm": algorithm.__name__,
                "gradients": "float32",
                "accumulate": 1,
            }
            points = {
                row["processes"]: alone / float(row["measured_s"])
                for row in rows
                if plain.items() <= row.items()
            }
            axes.plot(
                list(points),
                list(points.values()),
                "o",
                color=colour,
                label=f"{algorithm.__name__}, measured",
            )
        band = zip(
            *(
                [images / count * alone for images in bounds(step, count, link(rate))]
                for count in counts
            ),
            strict=True,
        )
        axes.fill_between(
            counts, *band, color="C0", alpha=0.2, linewidth=0, label="ring: nothing to all hidden"
        )
        axes.set_title(title)
        if counts[-1] > CHECKED:
            axes.axvspan(
                CHECKED, counts[-1], color="grey", alpha=0.12, linewidth=0, label="a guess"
            )
        axes.set(xlabel="processes", ylabel="efficiency", ylim=(0, 1.05))
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.grid(alpha=0.3)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    return figure


def main(table: Path, plot: Path) -> None:
    """Prints and writes the table, and the plot."""
    if reason := unavailable():
        sys.exit(reason)
    torch.set_num_threads(1)
    step, rows = alone(), list[dict[str, Any]]()
    for rate, machines in itertools.product(RATES, (2, 4, 8)):
        for row in check(step, machines, rate, CASES, count=2 if rate == 100 else 4):
            rows.append(row)
            print(*row.values(), sep="\t", flush=True)
    with open(table, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    with style.context(Path(__file__).with_name("pages.mplstyle")):
        draw(step, rows, [2**power for power in range(7)]).savefig(plot, dpi=100)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
