"""Progress bars of Lightning's that the user asks for take the place of our lines, and change no number."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import RichProgressBar

from tests.small import require_same_end, small
from tests.stress import outcome


@pytest.mark.skipif(find_spec("rich") is None, reason="rich is not installed")
def test_richs_bar_shows_the_metrics_and_changes_nothing(workplace, capsys):
    small("--trainer.default_root_dir=whole")
    capsys.readouterr()
    cli = small("--trainer.callbacks+=RichProgressBar", "--trainer.enable_progress_bar=true")
    assert isinstance(cli.trainer.progress_bar_callback, RichProgressBar)
    printed = capsys.readouterr()
    assert "Epoch 1/1" in printed.out
    assert f"val/accuracy: {cli.model.results['val'].accuracy:.3f}" in " ".join(printed.out.split())
    assert "epoch 1 of 2" not in printed.err
    require_same_end(Path("runs/run"), outcome(Path("whole/run")))
