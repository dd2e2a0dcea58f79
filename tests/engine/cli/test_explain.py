"""Mistakes and errors of the environment are one line; bugs, those of user code above all, keep their tracebacks."""

import errno
import traceback

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from project.engine.cli.command import one_line_errors
from project.engine.cli.explain import TRACEBACK, explain
from project.engine.errors import UserError


def caught(function) -> BaseException:
    with pytest.raises(BaseException) as found:  # noqa: PT011  # any
        function()
    return found.value


def trained(model: LightningModule, **options) -> BaseException:
    return caught(
        lambda: Trainer(
            accelerator="cpu",
            max_steps=1,
            limit_val_batches=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        ).fit(model)
    )


pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's, as of its boring model


class WrongLog(BoringModel):
    def training_step(self, batch, batch_idx):
        self.log("a", "text")
        return super().training_step(batch, batch_idx)


class WrongValue(BoringModel):
    def training_step(self, batch, batch_idx):
        raise ValueError("mine")


class WrongState(BoringModel):
    def training_step(self, batch, batch_idx):
        raise MisconfigurationException("mine")


@pytest.mark.parametrize("model", [WrongLog, WrongValue, WrongState])
def test_a_bug_in_a_step_keeps_its_traceback(model):
    error = trained(model())
    assert explain(error) is None
    assert "in training_step" in "".join(traceback.format_exception(error))


def a_bug_instead(suppressed: bool, first: BaseException) -> None:
    try:
        raise first
    except type(first):
        if suppressed:
            raise KeyError("bug") from None
        raise KeyError("bug")  # noqa: B904  # what a user may write


MISSING = ModuleNotFoundError("No module named 'shiny'", name="shiny")
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("first", "suppressed", "line"),
    [
        (MISSING, True, None),
        (MISSING, False, None),
        (FULL, True, None),
        (FULL, False, "cannot write: No space left on device; make room"),
        (UserError("wrong path"), True, None),
        (UserError("wrong path"), False, "wrong path"),
    ],
)
def test_only_a_reason_that_python_shows_explains_an_error(first, suppressed, line):
    assert explain(caught(lambda: a_bug_instead(suppressed, first))) == line


def test_a_missing_package_is_named():
    def importing() -> None:
        import shiny  # type: ignore[import-not-found]  # noqa: F401

    assert f"the package 'shiny' is not installed ({__file__}, line " in str(explain(caught(importing)))


def test_a_variable_shows_the_traceback_of_a_mistake_too(monkeypatch, capsys):
    assert TRACEBACK == "PROJECT_TRACEBACK"
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(UserError), one_line_errors():
        raise UserError("wrong path")
    monkeypatch.delenv(TRACEBACK)
    with pytest.raises(SystemExit), one_line_errors():
        raise UserError("wrong path")
    assert capsys.readouterr().err == "error: wrong path\n"
