"""A process of a sweep whose trials are :mod:`tests.search.stub_fit`: ``python -m tests.search.process FILE ...``."""

import json
import sys
from pathlib import Path

from project import sweep
from project.engine.training.monitor import Monitor
from project.search import loop, trial


def read_stub(run: str | Path) -> dict[str, dict[int, float]]:
    """The curve that a stub has written."""
    lines = (Path(run) / "events.out.tfevents.stub").read_text().splitlines()
    return {"val/accuracy": {10 * step: float(json.loads(line)) for step, line in enumerate(lines, start=1)}}


def use_stub() -> None:
    """Puts the stub in the place of ``project.fit``."""
    trial.FIT = [sys.executable, "-S", str(Path(__file__).with_name("stub_fit.py"))]
    trial.read_curves = read_stub  # type: ignore[attr-defined,unused-ignore]
    trial._EVERY = 0.05
    loop.monitor_of = lambda arguments: Monitor("val/accuracy", "max")


if __name__ == "__main__":
    use_stub()
    sweep.main()
