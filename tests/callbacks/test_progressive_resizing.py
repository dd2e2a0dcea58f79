"""Training images grow to their full size."""

from typing import Any

import pytest
from lightning.pytorch import Callback
from torchvision.models import VisionTransformer

from project.callbacks import ProgressiveResizing
from project.engine.errors import UserError
from tests.conftest import TINY, fit
from tests.distributed.job import classifier, flowers, trainer
from tests.small import one_line, small


class Sides(Callback):
    """Remembers the sides of what the network is given in training."""

    seen: list[int] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.seen.clear()
        pl_module.network.register_forward_pre_hook(
            lambda network, inputs: self.seen.append(inputs[0].shape[-1]) if network.training else None
        )


@pytest.mark.parametrize("full", [64, 100, 224])
@pytest.mark.parametrize(("start", "until"), [(0.5, 0.75), (0.1, 1.0), (1.0, 0.5)])
def test_the_side_grows_from_its_start_to_the_full_one(full, start, until):
    resizing = ProgressiveResizing(start, until, multiple=8)
    sides = [resizing.image_size(step / 200, full) for step in range(201)]
    assert sides == sorted(sides)
    assert abs(sides[0] - start * full) <= 8
    assert set(sides[round(200 * until) :]) == {full}
    assert all(side % 8 == 0 or side == full for side in sides)


def test_the_network_sees_it_batch_by_batch_and_evaluation_does_not(workplace):
    flags = [
        "--trainer.callbacks+=ProgressiveResizing",
        "--trainer.callbacks.start=0.5",
        "--trainer.callbacks.multiple=4",
    ]
    cli = small(*flags, "--trainer.callbacks+=tests.callbacks.test_progressive_resizing.Sides")
    assert Sides.seen == [16, 16, 20, 24, 24, 28, 32, 32]
    assert cli.model.train_image_size is None


class Broken(Callback):
    """Ends training in its second step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert pl_module.train_image_size == 16
        raise ZeroDivisionError


def test_a_training_that_fails_leaves_the_next_at_full_size():
    model = classifier()
    with pytest.raises(ZeroDivisionError):
        trainer(1, callbacks=[ProgressiveResizing(multiple=4), Broken()]).fit(model, datamodule=flowers(16, 8, 8))
    assert model.train_image_size is None


@pytest.mark.parametrize("options", [{"start": 0.0}, {"start": 1.5}, {"until": 0.0}, {"multiple": 0}])
def test_what_makes_no_sense_is_refused(options):
    with pytest.raises(UserError, match=f"ProgressiveResizing's {next(iter(options))}"):
        ProgressiveResizing(**options)


def test_a_network_of_one_image_size_is_refused_before_training(workplace, capsys):
    resizing = ["--trainer.callbacks+=project.callbacks.ProgressiveResizing", "--model.arch=vit_b_16"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "project.model.classifier.build_network",
            lambda arch, classes, *_: VisionTransformer(64, 16, 1, 1, 8, 8, num_classes=classes),
        )
        line = one_line(lambda: fit(*TINY, *resizing, "--data.image_size=64", "--name=run"), capsys)
    assert "ProgressiveResizing: vit_b_16 does not take images of 32 pixels in place of 64 (Wrong image height" in line
    assert not (workplace / "runs").exists()
