"""A classifier and a data module of the user's own, through the real commands."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from project.analysis.data import open_data
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY, evaluate, fit
from tests.model.test_classifier import SIDE, Memory, classifier, linear, trainer
from tests.small import load, one_line

SOURCE = '''
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier


class OwnClassifier(ImageClassifier):
    def __init__(self, *args: Any, gamma: float = 1.0, report: Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gamma = gamma

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, reduction="none") ** self.gamma


class FixedClassifier(ImageClassifier):
    """Has a network of its own choice and no options."""

    def __init__(self, class_names: list[str], preprocessing: dict[str, Any]) -> None:
        super().__init__(class_names, preprocessing, arch="resnet9_slim")


class OwnFlowers(SyntheticFlowersDataModule):
    """The drawn flowers under a name of one's own."""
'''
OWN = ["--model=own_models.OwnClassifier", *SLIM]


@pytest.fixture
def own_models(workplace, monkeypatch):
    """A module in the folder in which the command runs."""
    (workplace / "own_models.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(workplace)
    yield
    forget()


def forget() -> None:
    """As in another process, which has not imported the module."""
    for cls in ImageClassifier.__subclasses__():
        if cls.__module__ == "own_models":
            cls.__name__ = "Forgotten"
    module: Any = sys.modules.pop("own_models", None)
    if module is not None:
        module.OwnFlowers.__name__ = "Forgotten"


def best_of(cli: Any) -> Path:
    return Path(cli.run.path / "checkpoints" / "best.ckpt")


def test_a_subclass_trains_and_its_checkpoint_is_measured_where_it_is_imported(workplace, own_models, capsys):
    data = ["--data=own_models.OwnFlowers"]
    cli = fit(*data, *TINY, *OWN, "--model.gamma=0.5", "--model.report=builtins.print", "--name=own")
    model: Any = cli.model
    assert (type(model).__name__, model.gamma) == ("OwnClassifier", 0.5)
    best = best_of(cli)
    content = load(best)
    assert content[ABOUT]["model"] == "OwnClassifier"
    assert (content["hyper_parameters"]["gamma"], content["hyper_parameters"]["arch"]) == (0.5, "resnet9_slim")
    assert not {"report", "_class_path", "_instantiator"} & content["hyper_parameters"].keys()
    loaded: Any = ImageClassifier.load_from_checkpoint(best)
    assert (type(loaded), loaded.gamma) == (type(cli.model), 0.5)
    assert type(open_data(read_checkpoint(best)[ABOUT])).__name__ == "OwnFlowers"

    forget()
    for name in ("OwnClassifier", "os.system", "antigravity.ImageClassifer", "SGD", 3, ["os"]):
        content[ABOUT]["model"] = name  # a file does not choose what is imported
        torch.save(content, "named.ckpt")
        with pytest.raises(UserError, match=r"is no ImageClassifier that is imported here"):
            ImageClassifier.load_from_checkpoint("named.ckpt")
    assert "antigravity" not in sys.modules
    assert "OwnFlowers" in (line := one_line(lambda: evaluate(str(best)), capsys))
    assert "give --import with the module that defines it" in line
    assert "'own_model' cannot be imported" in one_line(lambda: evaluate(str(best), "--import=own_model"), capsys)
    evaluate(str(best), "--import=own_models")
    measured = yaml.safe_load(best.with_suffix(".test.metrics.json").read_text())
    assert (measured["total"], measured["loss"]) == (26, cli.model.results["test"].loss)


def test_a_class_that_fixes_its_network_takes_no_options_resumes_and_gives_way_to_no_other_class(
    workplace, own_models, capsys
):
    flags = ["--model=own_models.FixedClassifier"]
    cli = fit(*TINY, *flags)
    best = best_of(cli)
    assert "fixedclassifier" in cli.run.path.name.lower()
    assert type(ImageClassifier.load_from_checkpoint(best)) is type(cli.model)
    line = one_line(lambda: fit(*TINY, *flags, "--model.lr_scheduler.lrf=0.1"), capsys)
    assert "FixedClassifier has no option 'lr_scheduler" in line
    (cli.run.path / "metrics.json").unlink()
    further = ["--trainer.max_epochs=2", f"--name={cli.run.path.name}"]
    with pytest.raises(UserError, match=r"holds a FixedClassifier, but this command asks for ImageClassifier"):
        fit(*TINY, *SLIM, *further)
    fit(*TINY, *flags, *further)
    assert load(best.with_name("last.ckpt"))["global_step"] == 8
    assert (cli.run.path / "metrics.csv").read_text().count("\n") == 1 + 2


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


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*smaller than the logging interval")
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


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*smaller than the logging interval")
def test_a_bug_of_a_subclass_is_not_blamed_on_the_checkpoint(tmp_path):
    run = trainer()
    run.validate(model := classifier(Broken, arch="resnet9_slim"), datamodule=Memory(), verbose=False)
    run.save_checkpoint(tmp_path / "own.ckpt")
    assert isinstance(model, Broken)
    with pytest.raises(KeyError, match="a bug"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(TypeError, match="has no len"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt", broken=True)
