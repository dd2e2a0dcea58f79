"""What ``fit`` reports of averaged weights is what its ``best.ckpt`` holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch.nn import functional as F

from project.fit import FitCLI
from tests.conftest import evaluate
from tests.small import load, small, stop_at
from tests.stress import SmallNetwork, differences, outcome

RUN = Path("runs/run")
AVERAGING = {
    "EMAWeightAveraging": ["--trainer.callbacks.decay=0.9"],
    "WeightAveraging": [],
}


def options(callback: str) -> list[str]:
    return [f"--trainer.callbacks+={callback}", *AVERAGING[callback], "--model.optimizer.lr=0.5"]


def measured_by_a_plain_loop(cli: FitCLI, network: torch.nn.Module) -> tuple[list[list[int]], float]:
    """The confusion matrix and the mean loss over the test set, image by image."""
    test, preprocessing = cli.datamodule.splits["test"], cli.model.preprocessing
    mean, std = (torch.tensor(preprocessing[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        logits = torch.cat([network((test.image(i) / 255 - mean)[None] / std) for i in range(len(test))])
    matrix = confusion_matrix(test.labels, logits.argmax(1), labels=range(len(cli.model.class_names)))
    return matrix.tolist(), F.cross_entropy(logits, test.labels).item()


def require_metrics_of_best(cli: FitCLI, monkeypatch: Any) -> None:
    reported = json.loads((RUN / "metrics.json").read_text())["test"]
    checkpoint = load(RUN / "checkpoints" / "best.ckpt")
    network = SmallNetwork(len(cli.model.class_names)).eval()
    network.load_state_dict({name.removeprefix("network."): value for name, value in checkpoint["state_dict"].items()})
    matrix, loss = measured_by_a_plain_loop(cli, network)
    assert reported["confusion_matrix"] == matrix
    assert reported["loss"] == pytest.approx(loss, abs=1e-5)

    with monkeypatch.context() as patch:
        patch.setattr("project.model.classifier.build_network", lambda arch, classes, stem: SmallNetwork(classes))
        evaluate(f"--ckpt_path={RUN}/checkpoints/best.ckpt")
    evaluated = json.loads((RUN / "checkpoints" / "best.test.metrics.json").read_text())
    assert {name: evaluated[name] for name in reported} == reported


@pytest.mark.parametrize("callback", AVERAGING)
def test_the_metrics_are_those_of_best(workplace, monkeypatch, callback):
    require_metrics_of_best(small(*options(callback)), monkeypatch)


def test_after_a_resume_too(workplace, monkeypatch):
    stop_at(6, *options("EMAWeightAveraging"))
    require_metrics_of_best(small(*options("EMAWeightAveraging")), monkeypatch)


def test_training_that_ends_before_an_epoch_does_too(workplace, monkeypatch):
    require_metrics_of_best(small(*options("EMAWeightAveraging"), "--trainer.max_steps=3"), monkeypatch)


SWA = [
    "--trainer.callbacks+=StochasticWeightAveraging",
    "--trainer.callbacks.swa_lrs=0.01",
    "--trainer.callbacks.swa_epoch_start=2",  # of three epochs; in a fourth, Lightning computes BatchNorm's statistics
    "--trainer.callbacks.annealing_epochs=2",
    "--trainer.max_epochs=3",
]


def test_stochastic_weight_averaging_is_resumed_exactly(workplace, monkeypatch):
    (workplace / "whole").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(workplace / "whole")
        require_metrics_of_best(small(*SWA), monkeypatch)
        assert load(RUN / "checkpoints" / "last.ckpt")["epoch"] == 4
    for step in (2, 6, 9, 10, 12):  # before averaging, while there is one, and between it and the statistics
        stop_at(step, *SWA)
    small(*SWA)
    # in the epoch of statistics nothing is scheduled, and Lightning does not restore a schedule there
    whole, resumed = (
        {name: value for name, value in outcome(place / RUN).items() if "lr_schedulers" not in name}
        for place in (workplace / "whole", workplace)
    )
    assert not differences(whole, resumed)
