"""Progress is a bar on a terminal, elsewhere a line a minute."""

from itertools import count

import pytest

from project.engine.run.progress import Progress


def use_clock(patch: pytest.MonkeyPatch, step: float) -> None:
    """Time passes while it is looked at, for the bar, too."""
    clock = count(0.0, step)
    patch.setattr("tqdm.std.time", lambda: next(clock))
    patch.setattr("project.engine.run.progress._clock", lambda: next(clock))


def test_looking_at_many_files_is_a_line_a_minute_where_nobody_watches(monkeypatch, capsys):
    for seconds, visible in ((0.5, True), (2.0, True), (100.0, False)):  # an image
        use_clock(monkeypatch, seconds)
        progress = Progress(100, text="checking images", visible=visible)
        for _ in range(100):
            progress.advance(1)
        progress.close()
        if seconds == 2.0:
            first, *others = capsys.readouterr().err.splitlines()
            assert first == "checking images: 30 of 100 images, 0.5 images/s, 2 min 20 s left"
            assert len(others) == 2
        assert capsys.readouterr() == ("", "")
