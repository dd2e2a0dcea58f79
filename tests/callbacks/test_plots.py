"""A finished run has its plots as files; mistakes are drawn with their confidence."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from project.callbacks import ConfidentMistakesPlot
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY, fit


def test_a_mistake_has_the_models_own_confidence_and_any_index(monkeypatch):
    place, figures, far = "project.callbacks.figures", list[Any](), 2**24 + 1  # no float32 holds it
    monkeypatch.setattr(f"{place}.tensorboards", lambda _: True)
    monkeypatch.setattr(f"{place}.add_figure", lambda *args: figures.append(args[2]))
    half = torch.full((2, 2), 0.5)
    model: Any = SimpleNamespace(class_names=["a", "b"], weights_step=0, probabilities=lambda logits: logits / 8 + half)
    images = SimpleNamespace(image=lambda index: torch.full((3, 8, 8), index - far, dtype=torch.uint8))
    trainer: Any = SimpleNamespace(datamodule=SimpleNamespace(splits={"test": images}), world_size=1)
    batch = SimpleNamespace(indices=torch.tensor([far, far + 1]), labels=torch.tensor([1, 1]))
    callback = ConfidentMistakesPlot(4)
    callback.on_test_batch_end(trainer, model, torch.tensor([[2.0, -2], [-2, 2]]), batch, 0)
    callback.on_test_epoch_end(trainer, model)
    (axes,) = [axes for axes in figures[0].axes if axes.get_title()]
    assert axes.get_title() == "a 75%\nis b"
    assert np.asarray(axes.images[0].get_array()).max() == 0


class Silent(ImageClassifier):
    """Evaluates without returning anything, prints, and overrides hooks without calling ours."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        super().test_step(batch, batch_idx)

    def on_test_start(self):
        self.print("printed by the model")

    def on_validation_epoch_end(self):
        pass

    def on_train_epoch_end(self):
        self.print("an epoch is over")


def test_a_run_ends_with_plots_although_its_steps_return_nothing_and_hooks_print(workplace, capsys):
    own = ["--trainer.enable_progress_bar=true", f"--model={Silent.__module__}.Silent"]
    fit(*TINY, *SLIM, *own, "--name=run", drawn=True)
    said = capsys.readouterr().out
    assert "printed by the model" in said
    assert "an epoch is over" in said
    plots = {path.stem: Image.open(path) for path in Path("runs/run/plots").iterdir()}
    assert set(plots) == {"curves", "confusion_matrix", "classes"}
    for image in plots.values():
        assert min(image.size) > 100
        assert np.asarray(image.convert("RGB")).std() > 5
