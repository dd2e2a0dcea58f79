"""A classifier of the user's own; how every command opens it is tested in tests/test_own_package.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY, fit
from tests.model.test_classifier import SIDE, Memory, classifier, linear, trainer
from tests.small import load, one_line


class FixedClassifier(ImageClassifier):
    """Has a network of its own choice, and two options."""

    def __init__(
        self, class_names: list[str], preprocessing: Any, gamma: int = 1, report: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(class_names, preprocessing, arch="resnet9_slim")
        self.gamma = gamma


def test_a_class_that_fixes_its_network_resumes_and_gives_way_to_no_other_class(workplace, capsys):
    flags = [f"--model={__name__}.FixedClassifier", "--model.gamma=3", "--model.report=builtins.print"]
    run = fit(*TINY, *flags).run.path
    assert "fixedclassifier" in run.name.lower()
    line = one_line(lambda: fit(*TINY, *flags, "--model.lr_scheduler.lrf=0.1"), capsys)
    assert "FixedClassifier has no option 'lr_scheduler" in line
    (run / "metrics.json").unlink()
    further = ["--trainer.max_epochs=2", f"--name={run.name}"]
    with pytest.raises(UserError, match=r"holds a FixedClassifier, but this command asks for ImageClassifier"):
        fit(*TINY, *SLIM, *further)
    assert fit(*TINY, *flags, *further).trainer.global_step == 8
    best = run / "checkpoints" / "best.ckpt"
    # what could name code is left out
    assert load(best)["hyper_parameters"].keys() == {"class_names", "preprocessing", "gamma"}
    loaded: Any = ImageClassifier.load_from_checkpoint(best)
    assert (type(loaded), loaded.gamma) == (FixedClassifier, 3)


class Careless(ImageClassifier):
    """Calls no hook that it overrides, returns nothing from its test, and builds its optimizer itself."""

    example_input_array = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    setup = on_fit_start = on_train_start = on_train_batch_start = on_train_batch_end = on_train_epoch_end = _nothing
    on_validation_start = on_validation_epoch_end = on_test_start = on_test_epoch_end = on_train_end = _nothing

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        super().test_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adadelta(self.parameters())


def test_hooks_without_super_leave_metrics_and_checkpoints_as_they_are(tmp_path):
    model, run = linear(Careless), trainer(max_epochs=1, log_every_n_steps=1, enable_model_summary=True)
    run.fit(model, datamodule=Memory())
    assert {"train/loss", "val/accuracy"} <= run.callback_metrics.keys()
    run.save_checkpoint(tmp_path / "last.ckpt")
    about = load(tmp_path / "last.ckpt")[ABOUT]
    assert (about["optimizer"]["name"], about["lr_scheduler"]) == ("Adadelta", {})
    run.test(model, datamodule=Memory(), verbose=False)
    assert model.results["test"].total == 32
    run = trainer(max_epochs=2)
    run.fit(linear(Careless), datamodule=Memory(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert run.current_epoch == 2


class Broken(ImageClassifier):
    """Has a bug in its constructor and another in what loads its weights."""

    def __init__(self, *args: Any, broken: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if broken:
            len(3)  # type: ignore[arg-type]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("a bug")


def test_a_bug_of_a_subclass_is_not_blamed_on_the_checkpoint(tmp_path):
    run = trainer()
    run.validate(classifier(Broken), datamodule=Memory(), verbose=False)
    run.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(KeyError, match="a bug"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(TypeError, match="has no len"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt", broken=True)


class Forgetful(ImageClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*returned `None`")
def test_a_training_step_that_returns_nothing_is_an_error():
    with pytest.raises(UserError, match=r"^Forgetful\.training_step must return the loss"):
        trainer(max_epochs=1).fit(linear(Forgetful), datamodule=Memory())
