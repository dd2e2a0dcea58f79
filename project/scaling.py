"""``python -m project.scaling``: predict training on many devices from steps measured on one, before renting them."""

import statistics
import sys
import time
import warnings
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.strategies import DDPStrategy
from matplotlib.figure import Figure
from torch import Tensor, distributed
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from project.analysis.plots import efficiency_axes
from project.analysis.scaling import (
    CHECKED,
    Bucket,
    Link,
    Step,
    bounds,
    forecast,
    server,
    with_batch,
)
from project.analysis.tables import require_writable, writing
from project.engine.cli.command import one_line_errors
from project.engine.cli.command_line import whole_words
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import require
from project.engine.upstream import options_of
from project.fit import FitCLI

Ways = dict[str, list[tuple[Step, int, Link]]]
"""How a batch grows with the processes: for each number of them, the step of one, that number and the link."""

_STEPS, _WARMUP = 13, 3  # DDP chooses its buckets after the first step


def parse(args: list[str] | None = None) -> tuple[Namespace, list[str]]:
    """Parses the command line, ``sys.argv`` by default; returns its own options, and those of ``project.fit``."""
    parser = OneLineErrorParser(
        prog="python -m project.scaling",
        description="Measures training steps on one device of this machine and predicts images per second on many."
        " Further options are those of project.fit.",
        epilog="example: python -m project.scaling --config my.yaml --machines 4 --per_machine 8 --between 100",
    )
    option = parser.add_argument
    option("--machines", type=PositiveInt, default=4, help="The number of machines.")
    option(
        "--per_machine",
        type=PositiveInt,
        default=1,
        help="Processes of a machine, each with a device.",
    )
    option(
        "--between",
        type=PositiveFloat,
        default=10.0,
        help="Gbit/s between machines, in each direction.",
    )
    option(
        "--within", type=PositiveFloat, default=100.0, help="Gbit/s between devices of a machine."
    )
    option(
        "--latency",
        type=NonNegativeFloat,
        default=30.0,
        help="Microseconds that a message takes beside its bytes.",
    )
    option("--plot", help="A picture of the efficiencies to draw, such as scaling.png.")
    own = {name for action in options_of(parser) for name in action.option_strings}
    words = whole_words(sys.argv[1:] if args is None else args)
    others = [word for word in words if word.partition("=")[0] not in own]
    return parser.parse_args([word for word in words if word not in others]), others


class _UnderDDP(FitCLI):
    """Trains under DDP on one device too, with the options that ``--trainer.strategy`` has."""

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        if self.config.trainer.strategy == "auto":
            self.config.trainer.strategy = "ddp"


def measure(args: list[str], processes: int = 1) -> tuple[Step, FitCLI]:
    """Trains some steps on one device as ``project.fit`` does, under DDP, which tells when a bucket would be sent.

    A batch that so many processes cannot share is refused first.
    """
    marks, buckets = list[list[float]](), list[list[Bucket]]()

    def now() -> float:
        if cli.model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def mark(*_: Any) -> None:
        marks[-1].append(now())

    def start(*_: Any) -> None:
        marks.append([now()])
        buckets.append([])

    def record(bucket: Any) -> torch.futures.Future[Tensor]:
        buckets[-1].append(Bucket(bucket.buffer().nbytes, now() - marks[-1][1]))
        return noop_hook(None, bucket)

    def listen(*_: Any) -> None:
        ddp: Any = cli.trainer.strategy.model
        ddp.register_comm_hook(
            None, lambda _, bucket: record(bucket)
        )  # torch and mypy disagree on its annotations

    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*command line arguments.*"
        )  # Lightning means those of this command
        settings = f"max_steps={_STEPS} max_epochs={_STEPS} limit_val_batches=0 accumulate_grad_batches=1 devices=1"
        settings += f" num_nodes=1 fast_dev_run=false logger=false enable_progress_bar=false default_root_dir={folder}"
        added = [f"--trainer.{setting}" for setting in settings.split()]
        cli = _UnderDDP([*args, *added, "--callbacks.last_checkpoint=false", "--name=measured"])
        strategy = cli.trainer.strategy
        require(
            isinstance(strategy, DDPStrategy), "--trainer.strategy", type(strategy).__name__, "ddp"
        )
        cli.datamodule.require_usable(processes)
        cli.run.create()  # callbacks write there
        marking = LambdaCallback(
            on_train_start=listen,
            on_train_batch_start=start,
            on_before_backward=mark,
            on_after_backward=mark,
            on_train_batch_end=mark,
        )
        cli.trainer.callbacks.append(marking)  # type: ignore[attr-defined]  # set by a connector
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        finally:
            if (
                distributed.is_initialized()
            ):  # Lightning keeps it until the process ends; here, the next follows
                distributed.destroy_process_group()
    times = [[end - begin for begin, end in pairwise(step)] for step in marks[_WARMUP:]]
    forward, backward, update = (statistics.median(part) for part in zip(*times, strict=True))
    spread = statistics.stdev(map(sum, times))
    of_steps = zip(*buckets[_WARMUP:], strict=True)
    ready = tuple(
        Bucket(one[0].size, statistics.median(bucket.ready for bucket in one)) for one in of_steps
    )
    return Step(cli.datamodule.batch_size, forward, backward, update, spread, ready), cli


def plan(options: Namespace, args: list[str]) -> str:
    """Measures, predicts, draws a picture if one is asked for, and returns the tables."""
    if options.plot is not None:
        require(
            options.plot.endswith(".png"),
            "--plot",
            options.plot,
            "a file whose name ends with .png",
        )
        require_writable("--plot", options.plot)
    most = options.machines * options.per_machine
    large, _ = measure(args, most)
    whole = int(large.images)
    small = measure([*args, f"--data.batch_size={whole // most}"])[0] if most > 1 else large
    links = [
        Link(gbit * 1e9 / 8, options.latency / 1e6) for gbit in (options.within, options.between)
    ]
    counts = sorted({2**power for power in range((most - 1).bit_length())} | {most})
    of_counts = [(count, links[count > options.per_machine]) for count in counts]
    shared, each = f"{whole} images in all", f"{whole} images on each"
    ways: Ways = {
        shared: [
            (with_batch(small, large, whole / count), count, link) for count, link in of_counts
        ]
    }
    ways[each] = [(large, count, link) for count, link in of_counts]
    if options.plot is not None:
        with writing("--plot", options.plot):
            draw(ways).savefig(options.plot)
    shares = ", ".join(f"{bucket.ready / large.backward:.0%}" for bucket in large.buckets)
    size = f"{sum(bucket.size for bucket in large.buckets) / 1e6:.1f} MB in {len(large.buckets)} buckets"
    lines = [f"gradients: {size}, ready after {shares} of the backward pass"]
    for step in dict.fromkeys([large, small]):
        parts = (
            f"{name} {1000 * getattr(step, name):.1f} ms"
            for name in ("forward", "backward", "update", "spread")
        )
        lines.append(f"{int(step.images)} images on one device: {', '.join(parts)}")
    heading = f"{'images/s':>13}{'efficiency':>11}{'hidden':>8}"
    lines += ["", f"{'':19}{shared:>32}{each:>32}{'by a server':>13}"]
    lines += [f"{'processes':>9}{'machines':>10}{heading}{heading}{'images/s':>13}"]
    for of_count in zip(*ways.values(), strict=True):
        _, count, link = of_count[0]
        row = f"{count:>9}{-(-count // options.per_machine):>10}"
        for case in of_count:
            _, rate, hidden = forecast(*case)
            row += (
                f"{rate:>13,.1f}{rate / count / forecast(large, 1, link).rate:>11.0%}{hidden:>8.0%}"
            )
        lines.append(f"{row}{forecast(large, count, link, server).rate:>13,.1f}")
    low, high = bounds(small, most, link)
    half, several = (
        forecast(small, most, link, compression=0.5),
        forecast(small, most, link, accumulate=4),
    )
    lines += [
        f"\n{most} processes, {whole} images in all, images/s:",
        f"  {low:,.1f} if nothing hides behind the backward pass, {high:,.1f} if all does that fits",
        f"  {half.rate:,.1f} with --config configs/hardware/compressed_gradients.yaml",
        f"  {several.rate:,.1f} with --trainer.accumulate_grad_batches 4",
        f"  {forecast(large, most, link).rate:,.1f} with --data.batch_size {whole * most}",
    ]
    if most > CHECKED:
        lines.append(f"more than {CHECKED} processes: a guess, see docs/results.md")
    return "\n".join(lines)


def draw(ways: Ways) -> Figure:
    """Draws the efficiency over the number of processes, between nothing and all hidden behind the backward pass."""
    figure = Figure(figsize=(6, 4), layout="constrained", dpi=110)
    axes = figure.subplots()
    for label, cases in ways.items():
        counts, alone = [count for _, count, _ in cases], forecast(*cases[0]).rate
        shares = [
            [rate / case[1] / alone for rate in (forecast(*case).rate, *bounds(*case))]
            for case in cases
        ]
        share, low, high = zip(*shares, strict=True)
        (line,) = axes.plot(counts, share, "o-", label=label)
        axes.fill_between(counts, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_title("bands: no overlap to full overlap")
    efficiency_axes(axes, counts, CHECKED)
    axes.legend()
    return figure


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        print(plan(*parse()))


if __name__ == "__main__":
    main()
