"""``python -m benchmarks``: how fast this machine loads, trains, evaluates and starts, beside plain loops."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jsonargparse import Namespace

from benchmarks.loading import loading_variants
from benchmarks.machine import machine, machine_line
from benchmarks.plan import Plan, plan_for
from benchmarks.startup import startup_variants
from benchmarks.timing import Measure, Section, in_turns
from benchmarks.training import OUR_SETTINGS, OURS, evaluation_variants, training_variants
from project.analysis.tables import require_writable, write_json, writing
from project.engine.cli.command import one_line_errors, quiet_libraries
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import require
from project.engine.hardware import tune_malloc

_RATE = "images per second"


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m benchmarks",
        description="Measures how fast this machine loads, trains, evaluates and starts, beside plain loops that do the"
        " same. Needs no data, and takes about three minutes on two CPU cores.",
        epilog="example: python -m benchmarks --plot benchmark.png",
    )
    parser.add_argument("--output", type=str | None, default=None, help="Where everything goes as JSON, if anywhere.")
    parser.add_argument("--plot", type=str | None, default=None, help="Where an image goes as PNG, if anywhere.")
    parser.add_argument("--rounds", type=int, default=3, help="How many times each variant is measured.")
    return parser.parse_args(args)


def benchmark(options: Namespace, plan: Plan | None = None) -> dict[str, Any]:
    """Measures, prints, and writes the files.

    Args:
        options: As :func:`parse` returns them.
        plan: How much is measured, by default what suits the machine.

    Returns:
        What ``--output`` writes.

    Raises:
        UserError: An option has no acceptable value, or a file cannot be written.
    """
    require(options.rounds >= 1, "--rounds", options.rounds, "at least 1")
    for name in ("output", "plot"):
        if options[name] is not None:
            require_writable(f"--{name}", options[name])
    began = time.perf_counter()
    found: dict[str, Any] = {"rounds": options.rounds, "machine": machine(), "sections": []}
    print(machine_line(found["machine"]), flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tune_malloc()  # for all alike: it is a setting of the process, and ours would leave it behind
    with TemporaryDirectory() as folder:
        for section in _sections(plan or plan_for(device), device, options.rounds, Path(folder)):
            found["sections"].append(section.as_dict())
            print(section_table(found["sections"][-1]), flush=True)
    found["seconds"] = time.perf_counter() - began
    print(f"\ntook {found['seconds']:.0f} s, each variant {options.rounds} times in turns")
    _write(options, found)
    return found


def _sections(plan: Plan, device: torch.device, rounds: int, folder: Path) -> Iterator[Section]:
    """Measures one section after another; says what it is at before it begins."""

    def measured(
        name: str,
        title: str,
        unit: str,
        variants: Callable[[], dict[str, Measure]],
        pair: tuple[str, str] | None = None,
    ) -> Section:
        print(f"\n{title}", flush=True)
        return Section(name, title, unit, in_turns(variants(), rounds), pair)

    title = f"loading JPEG files of {plan.files.width} x {plan.files.height} on one core, {_RATE}"
    yield measured("loading", title, _RATE, partial(loading_variants, plan.files, folder))
    for name, work in plan.training.items():
        title, variants = f"training {work.title}, {_RATE}", partial(training_variants, work, device)
        yield measured(f"training_{name}", title, _RATE, variants, (OURS, OUR_SETTINGS))
    title = f"evaluating {plan.evaluation.title}, {_RATE}"
    yield measured("evaluation", title, _RATE, partial(evaluation_variants, plan.evaluation, device))
    yield measured("start", "starting, seconds (less is better)", "seconds", partial(startup_variants, plan.commands))


def section_table(section: dict[str, Any]) -> str:
    """Lays a section out for a terminal.

    Args:
        section: As :meth:`benchmarks.timing.Section.as_dict` returns it.
    """
    width = max(len(variant["name"]) for variant in section["variants"])
    rows = [f"  {'':<{width}}{'median':>10}{'min to max':>20}{'ratio':>10}{'min to max':>16}"]
    for variant in section["variants"]:
        ratio = variant["compared"]
        values = f"{variant['median']:>10,.1f}{_range(variant, 1):>20}"
        rows.append(f"  {variant['name']:<{width}}{values}{ratio['median']:>10.2f}{_range(ratio, 2):>16}")
    if "pair" in section:
        pair = section["pair"]
        rows.append(f"  {pair['variant']} / {pair['base']}: {pair['median']:.3f} ({_range(pair, 3)})")
    return "\n".join(rows)


def _range(spread: dict[str, Any], digits: int) -> str:
    return f"{spread['min']:,.{digits}f} to {spread['max']:,.{digits}f}"


def _write(options: Namespace, found: dict[str, Any]) -> None:
    if options.output is not None:
        write_json("--output", options.output, found)
    if options.plot is not None:
        from benchmarks.plot import benchmark_figure  # matplotlib takes a while to import

        figure = benchmark_figure(found["sections"], machine_line(found["machine"]))
        with writing("--plot", options.plot):
            figure.savefig(options.plot, format="png")


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        benchmark(parse())


if __name__ == "__main__":
    main()
