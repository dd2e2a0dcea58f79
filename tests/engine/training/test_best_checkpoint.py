"""The best checkpoint is one of finite metrics."""

import math
from pathlib import Path

import pytest
import torch

from project.callbacks import BestCheckpoint
from project.model.metrics import Metrics
from tests.small import load, small

BEST = Path("runs/run/checkpoints/best.ckpt")


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([1.0, 1.0, 1.0], 12),
        ([1.0, math.nan, 1.0], 12),
        ([1.0, 1.0, math.nan], 8),
        ([1.0, math.nan, math.inf], 4),
        ([math.nan, math.nan, 1.0], 12),
    ],
)
def test_a_loss_that_is_not_finite_makes_no_best_checkpoint(workplace, monkeypatch, losses, step):
    measured = iter([*zip(losses, [0.25, 0.5, 0.75], strict=True), (1.0, 0.5)])  # the last is the test's

    rates = Metrics.rates

    def pretend(metrics):
        if not metrics.confusion.any():
            return rates(metrics)  # for the sake of the names, before training
        loss, accuracy = next(measured)
        return {"loss": loss, "accuracy": accuracy}

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "rates", pretend)
        patch.setattr(Metrics, "as_dict", lambda metrics: {})
        patch.setattr("project.fit.FitCLI._conclude", lambda cli: None)
        small("--trainer.max_epochs=3")
    assert load(BEST)["global_step"] == step


def test_all_of_its_state_is_restored(tmp_path):
    """Lightning's own leaves the newest score out, which a resumed run would then save as none."""
    before, after = BestCheckpoint(tmp_path), BestCheckpoint(tmp_path)
    before.current_score = before.best_model_score = torch.tensor(0.5)
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict()
