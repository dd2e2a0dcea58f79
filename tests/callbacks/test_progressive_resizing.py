"""Training images grow to their full size."""

from typing import Any

import pytest
from lightning.pytorch import Callback

from project.callbacks import ProgressiveResizing
from tests.distributed.job import classifier, flowers, trainer
from tests.small import small


class Sizes(Callback):
    """Remembers the sizes of the network's images in training, and fails on demand."""

    def __init__(self, fails_in: int | None = None) -> None:
        self.fails_in, self.seen = fails_in, list[int]()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.network.register_forward_pre_hook(
            lambda network, inputs: self.seen.append(inputs[0].shape[-1]) if network.training else None
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.fails_in:
            raise ZeroDivisionError


@pytest.mark.parametrize("full", [64, 100, 224])
@pytest.mark.parametrize(("start", "until"), [(0.5, 0.75), (0.1, 1.0), (1.0, 0.5)])
def test_the_size_grows_from_its_start_to_the_full_one(full, start, until):
    resizing = ProgressiveResizing(start, until, multiple=8)
    sizes = [resizing.image_size(step / 200, full) for step in range(201)]
    assert sizes == sorted(sizes)
    assert abs(sizes[0] - start * full) <= 8
    assert set(sizes[round(200 * until) :]) == {full}
    assert all(size % 8 == 0 or size == full for size in sizes)


def test_the_network_sees_it_batch_by_batch_and_evaluation_does_not(workplace):
    options = ["--trainer.callbacks+=ProgressiveResizing", "--trainer.callbacks.multiple=4"]
    cli = small(*options, callbacks=[sizes := Sizes()])
    assert sizes.seen == [16, 16, 20, 24, 24, 28, 32, 32]
    assert cli.model.train_image_size is None


def test_a_training_that_fails_leaves_the_next_at_full_size():
    model, sizes = classifier(), Sizes(fails_in=0)
    with pytest.raises(ZeroDivisionError):
        trainer(1, callbacks=[ProgressiveResizing(multiple=4), sizes]).fit(model, datamodule=flowers(16, 8, 8))
    assert (sizes.seen, model.train_image_size) == ([16], None)
