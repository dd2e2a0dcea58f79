"""Each default callback can be given options or be switched off, and nothing else changes."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import Callback

from project.callbacks import ConfidentMistakesPlot, ConfusionMatrixPlot, DefaultCallbacks
from project.engine.training.last_checkpoint import LastCheckpoint
from project.fit import FitCLI
from project.model.metrics import Metrics
from tests.small import load, small

RUN = Path("runs/run")
NAMES = [field.name for field in fields(DefaultCallbacks)]
OFF = [f"--callbacks.{name}=false" for name in NAMES]


def kinds(callbacks: list[Callback]) -> set[str]:
    return {type(callback).__name__ for callback in callbacks}


def build(**given: bool) -> set[str]:
    return kinds(DefaultCallbacks(**given).build(Path("checkpoints"), "val/accuracy", "max", seed=0))


def callbacks_of(cli: FitCLI) -> list[Callback]:
    return list(cli.trainer.callbacks)  # type: ignore[attr-defined]  # set by a connector


def test_each_can_be_switched_off_alone():
    whole = build(**dict.fromkeys(NAMES, True))
    missing = [whole - build(**dict.fromkeys(NAMES, True) | {name: False}) for name in NAMES]
    assert all(len(one) == 1 for one in missing)
    assert set.union(*missing) == whole
    assert whole == build()


def test_a_run_without_any_ends_with_its_last_weights(workplace, capsys):
    cli = small(*OFF)
    own = [one for one in callbacks_of(cli) if type(one).__module__.startswith("project.")]
    assert kinds(own) == {"Bookkeeping"}
    assert [path.name for path in (RUN / "checkpoints").iterdir()] == ["best.ckpt"]
    assert not (RUN / "plots").exists()
    best = load(RUN / "checkpoints" / "best.ckpt")
    assert (best["global_step"], best["about"]["selection"]) == (8, None)
    assert "best.ckpt (step 8, the last)" in capsys.readouterr().out

    config = yaml.safe_load((RUN / "config.yaml").read_text())
    assert config["callbacks"] == dict.fromkeys(NAMES, False)
    again = small(f"--config={RUN}/config.yaml", "--name=again", "--callbacks.confusion_matrix=true")
    assert kinds(callbacks_of(again)) - kinds(callbacks_of(cli)) == {"ConfusionMatrixPlot"}


def test_options_of_one_reach_it_and_the_runs_config(workplace):
    given = "{callbacks: {last_checkpoint: {every_minutes: 7}, first_batch: null}}"
    cli = small(f"--config={given}", "--callbacks.last_checkpoint.every_n_steps=5", "--trainer.max_epochs=1")
    (last,) = [one for one in callbacks_of(cli) if isinstance(one, LastCheckpoint)]
    assert (last.every_minutes, last.every_n_steps) == (7, 5)
    assert "FirstBatchPlot" not in kinds(callbacks_of(cli))
    kept = yaml.safe_load((RUN / "config.yaml").read_text())["callbacks"]
    assert kept["last_checkpoint"] == {"every_minutes": 7.0, "every_n_steps": 5}
    assert not kept["first_batch"]


def test_a_mistake_has_the_models_own_confidence_and_any_index(monkeypatch):
    place, figures, far = "project.callbacks.figures", list[Any](), 2**24 + 1  # no float32 holds it
    monkeypatch.setattr(f"{place}.tensorboards", lambda _: True)
    monkeypatch.setattr(f"{place}.add_figure", lambda *args: figures.append(args[2]))
    half = torch.full((2, 2), 0.5)
    model: Any = SimpleNamespace(class_names=["a", "b"], weights_step=0, probabilities=lambda logits: logits / 8 + half)
    model.test_metrics = SimpleNamespace(predicted=lambda logits: logits.argmax(1))
    images = SimpleNamespace(image=lambda index: torch.full((3, 8, 8), index - far, dtype=torch.uint8))
    trainer: Any = SimpleNamespace(world_size=1, testing=True, is_global_zero=True)
    trainer.datamodule = SimpleNamespace(splits={"test": images})
    batch = SimpleNamespace(indices=torch.tensor([far, far + 1]), labels=torch.tensor([1, 1]))
    callback = ConfidentMistakesPlot(4)
    callback.on_test_batch_end(trainer, model, torch.tensor([[2.0, -2], [-2, 2]]), batch, 0)
    callback.on_test_epoch_end(trainer, model)
    (axes,) = [axes for axes in figures[0].axes if axes.get_title()]
    assert axes.get_title() == "a 75%\nis b"
    assert np.asarray(axes.images[0].get_array()).max() == 0


def test_the_confusion_matrix_is_drawn_in_ten_epochs_at_most(monkeypatch):
    drawn: list[int] = []
    monkeypatch.setattr("project.callbacks.figures.tensorboards", lambda _: True)
    monkeypatch.setattr("project.callbacks.figures.add_figure", lambda trainer, *_: drawn.append(trainer.current_epoch))
    model = SimpleNamespace(results={"val": Metrics(0.0, torch.eye(2).long(), None)}, class_names=["a", "b"])
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"), testing=False, sanity_checking=False)
    for trainer.max_epochs, first in ((-1, 0), (10, 0), (25, 2)):
        for trainer.current_epoch in range(first + 1):
            ConfusionMatrixPlot().on_validation_end(trainer, model)
    assert drawn == [0, 0, 2]
