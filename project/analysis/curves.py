"""The curves of a run, read from TensorBoard's files in its folder."""

from pathlib import Path
from typing import Any


def read_curves(run: str | Path) -> dict[str, dict[int, float]]:
    """Reads what a run has logged.

    Args:
        run: The run's folder.

    Returns:
        By name, as ``train/loss``, the value at each step; empty where there are no files of TensorBoard.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes a while to import

    accumulator: Any = EventAccumulator
    events = accumulator(str(run), size_guidance={"scalars": 0}).Reload()  # 0: keep every point
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}
