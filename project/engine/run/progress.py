"""Progress on standard error: a bar on a terminal, elsewhere a line a minute."""

import sys
import time
from typing import Any

from tqdm import tqdm

from ..errors import LINES, printable

_clock = time.monotonic
EVERY = 60.0
"""Seconds between two lines where nobody watches."""


def note(text: str) -> None:
    """Prints a line about the work to standard error; standard output is for results."""
    print(printable(text, keep=LINES), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Formats a time: ``45 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate(count: float, seconds: float) -> str:
    """Formats images a second."""
    speed = count / max(seconds, 1e-9)
    return f"{speed:,.1f} images/s" if speed < 10 else f"{speed:,.0f} images/s"


class Progress:
    """Progress through images: how many are done, how fast, and how long the rest will take.

    With a ``text``, it is about a preparation: the bar comes late and goes again. ``done`` images were done before.
    Where it is not ``visible``, as in all processes but the first, it only counts.
    """

    def __init__(
        self, total: int | None, done: int = 0, text: str = "", visible: bool = True
    ) -> None:
        self._total, self._before, self._done, self._visible = total, done, done, visible
        self._text, self._began = f"{text}: " if text else "", _clock()
        self._said, self._bar = self._began, None
        if visible and sys.stderr.isatty():
            look: dict[str, Any] = (
                {"desc": text, "delay": 1, "leave": False} if text else {"unit": " images"}
            )
            self._bar = tqdm(total=total, initial=done, file=sys.stderr, **look)

    def advance(self, count: int) -> None:
        """Counts images that are done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._visible and (now := _clock()) - self._said >= EVERY:
            self._said = now
            sys.stderr.write(f"{self._text}{self._line(now - self._began)}\n")

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()

    def summary(self) -> str:
        """Returns how many images were done by this command, and how fast."""
        count, seconds = self._done - self._before, _clock() - self._began
        return f"{count:,} {'image' if count == 1 else 'images'} in {duration(seconds)}, {rate(count, seconds)}"

    def _line(self, seconds: float) -> str:
        count = self._done - self._before
        if self._total is None:
            return f"{self._done:,} images, {rate(count, seconds)}"
        left = seconds * (self._total - self._done) / max(count, 1)
        return f"{self._done:,} of {self._total:,} images, {rate(count, seconds)}, {duration(left)} left"
