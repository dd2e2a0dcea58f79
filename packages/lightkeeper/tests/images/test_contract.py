"""Lightning's hooks and arguments of checkpoints do what its documentation says."""

from collections.abc import Callable
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightkeeper.exact import UserError
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn

from tests.toy import (
    BEST,
    LAST,
    PREPROCESSING,
    ToyClassifier,
    ToyData,
    cases,
    differences,
    fit,
    load,
    read_json,
    stop_at,
    toy_trainer,
)

NAMES = ["dark", "grey", "light"]


class Hooked(ToyClassifier):
    """Counts calls of hooks, keeps a word in checkpoints, and has a layer that a hook makes."""

    calls: list[str] = []
    word = "none"

    def configure_model(self) -> None:
        self.calls.append("configure_model")
        if not hasattr(self, "late"):
            self.late = nn.Linear(2, 2)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["word"] = f"of step {self.global_step}"

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.calls.append("on_load_checkpoint")
        self.word = checkpoint["word"]

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        self.calls.append("load_state_dict")
        return super().load_state_dict(*args, **options)

    def on_test_start(self) -> None:
        self.calls.append("test")


@pytest.fixture(autouse=True)
def no_calls(monkeypatch):
    monkeypatch.setattr(Hooked, "calls", [])


def saved(model: LightningModule, data: LightningDataModule | None = None) -> Path:
    """A checkpoint of a short training by a plain trainer."""
    trainer = toy_trainer(max_epochs=1)
    trainer.fit(model, datamodule=data or ToyData())
    trainer.save_checkpoint("plain.ckpt")
    return Path("plain.ckpt")


def test_loading_makes_late_layers_and_calls_the_hook_before_it_loads_weights(workplace):
    model = Hooked(NAMES, PREPROCESSING)
    path = saved(model)
    Hooked.calls.clear()
    loaded = Hooked.load_from_checkpoint(path)
    assert Hooked.calls == ["configure_model", "on_load_checkpoint", "load_state_dict"]
    assert loaded.word == "of step 4"
    assert differences(dict(model.state_dict()), dict(loaded.state_dict())) == []


def test_the_hook_is_called_once_before_the_test_of_a_run_with_the_best_checkpoint(workplace):
    command = fit(f"--model={__name__}.Hooked", "--mode=min")  # the worst, which is another
    calls = Hooked.calls
    assert calls[calls.index("on_load_checkpoint") :] == [
        "on_load_checkpoint",
        "load_state_dict",
        "test",
    ]
    assert command.model.word == f"of step {read_json(BEST.parents[1] / 'metrics.json')['step']}"


def test_the_hook_is_called_once_when_a_run_resumes(workplace):
    stop_at(6, f"--model={__name__}.Hooked")
    Hooked.calls.clear()
    fit(f"--model={__name__}.Hooked")
    until_test = Hooked.calls[: Hooked.calls.index("load_state_dict") + 1]
    assert until_test == ["configure_model", "on_load_checkpoint", "load_state_dict"]
    assert Hooked.calls.count("on_load_checkpoint") == 2  # and before the test


class Renamed(ToyClassifier):
    """Reads weights of an earlier name of its last layer."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        weights = checkpoint["state_dict"].items()
        checkpoint["state_dict"] = {name.replace(".fc.", ".head."): x for name, x in weights}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        weights = checkpoint["state_dict"].items()
        checkpoint["state_dict"] = {name.replace(".head.", ".fc."): x for name, x in weights}


def test_the_hook_may_change_what_is_loaded(workplace):
    stop_at(6, f"--model={__name__}.Renamed")
    assert "network.head.weight" in load(LAST)["state_dict"]
    loaded = Renamed.load_from_checkpoint(LAST)
    expected = load(LAST)["state_dict"]["network.head.weight"]
    assert torch.equal(loaded.state_dict()["network.fc.weight"], expected)
    fit(f"--model={__name__}.Renamed")
    assert (BEST.parents[1] / "metrics.json").exists()


class Stateful(Callback):
    """Remembers a step, which its state in a checkpoint says."""

    def __init__(self) -> None:
        self.step = 0
        self.tested: list[int] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.step = trainer.global_step

    def on_test_start(self, trainer, pl_module) -> None:
        self.tested.append(self.step)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]


def test_callbacks_have_the_state_of_the_tested_checkpoint(workplace):
    callback = Stateful()
    fit("--mode=min", "--trainer.max_epochs=4", callbacks=[callback])
    assert callback.tested == [load(BEST)["global_step"]] != [load(LAST)["global_step"]]


@pytest.fixture
def tested(monkeypatch) -> dict[str, Any]:
    """The weights that are tested."""
    weights: dict[str, Any] = {}
    monkeypatch.setattr(
        ToyClassifier, "on_test_start", lambda model: weights.update(deepcopy(model.state_dict()))
    )
    return weights


def require_average(tested: dict[str, Any], path: Path) -> None:
    checkpoint = load(path)
    assert differences(dict(checkpoint["state_dict"]), tested) == []
    assert differences(checkpoint["current_model_state"], tested)


def test_an_average_of_weights_is_tested_not_the_raw_ones(workplace, tested):
    fit(callbacks=[EMAWeightAveraging(decay=0.5)])
    require_average(tested, BEST)


def test_a_plain_trainer_tests_the_average_too_whose_callback_comes_before_the_models(
    workplace, tested
):
    saving = ModelCheckpoint(".")
    callbacks = [EMAWeightAveraging(decay=0.5), saving]
    trainer = toy_trainer(enable_checkpointing=True, callbacks=callbacks)
    model, data = ToyClassifier(NAMES, PREPROCESSING), ToyData()
    trainer.fit(model, datamodule=data)
    trainer.test(model, data, saving.best_model_path, verbose=False, weights_only=True)
    require_average(tested, Path(saving.best_model_path))


@cases("ours theirs", (ToyClassifier, LightningModule), (ToyData, LightningDataModule))
def test_the_arguments_are_lightnings_in_their_order(ours, theirs):
    names = [*signature(theirs.load_from_checkpoint).parameters]
    assert [*signature(ours.load_from_checkpoint).parameters] == [x for x in names if x != "cls"]


class Named(ToyClassifier):
    """Has further hyperparameters, of which some are no plain values."""

    def __init__(
        self,
        *args: Any,
        steps: Any = None,
        scale: float = 1.0,
        function: Callable[[int], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.steps = steps
        self.scale = scale
        self.function = function
        self.save_hyperparameters({"git_sha": "abc123"})


def test_hyperparameters_of_a_subclass_are_kept(workplace):
    steps = {"lr": np.float32(0.5), "kind": torch.float32, "sizes": (np.int64(3),)}
    path = saved(Named(NAMES, PREPROCESSING, steps=steps, scale=np.float64(2)))
    written = load(path)["hyper_parameters"]
    assert written["git_sha"] == "abc123"
    loaded = Named.load_from_checkpoint(path)
    assert loaded.steps == {"lr": 0.5, "kind": torch.float32, "sizes": (3,)}
    assert type(loaded.scale) is float
    assert loaded.scale == 2
    other = Path("hparams.yaml")
    other.write_text(yaml.dump({**written, "scale": 3.0, "steps": None}))
    assert Named.load_from_checkpoint(path, None, other).scale == 3
    assert Named.load_from_checkpoint(path, "cpu", other, None, True, scale=4).scale == 4


def test_hyperparameters_that_are_no_values_are_left_out_aloud_and_once(workplace, capsys):
    model = Named(NAMES, PREPROCESSING, function=abs)
    path = saved(model)
    model.trainer.save_checkpoint("again.ckpt")
    said = capsys.readouterr().err
    assert said.count("leave out function (a builtin_function_or_method);") == 1
    assert Named.load_from_checkpoint(path).function is None
    assert Named.load_from_checkpoint(path, function=abs).function is abs


def test_a_file_that_names_a_function_is_refused_it_aloud(workplace, capsys):
    path = saved(Named(NAMES, PREPROCESSING))
    content = load(path)
    content["hyper_parameters"]["function"] = {"class_path": "os.system"}
    torch.save(content, path)
    assert Named.load_from_checkpoint(path).function is None
    assert "may not choose the class or function for function" in capsys.readouterr().err


@cases("strict", None, False, True)
def test_loading_is_as_strict_as_the_model_unless_told_otherwise(workplace, strict):
    path = saved(ToyClassifier(NAMES, PREPROCESSING))
    content = load(path)
    content["state_dict"]["further"] = torch.zeros(1)
    torch.save(content, path)

    class Lenient(ToyClassifier):
        strict_loading = False

    if strict:
        with pytest.raises(UserError, match=r"plain\.ckpt' does not fit this model: .*further"):
            Lenient.load_from_checkpoint(path, strict=strict)
    else:
        Lenient.load_from_checkpoint(path, strict=strict)
    if strict is None:
        with pytest.raises(UserError, match="further"):
            ToyClassifier.load_from_checkpoint(path)


class StatefulData(ToyData):
    """Keeps a state in checkpoints."""

    seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": 7}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]


def test_a_data_modules_state_is_restored(workplace):
    path = saved(ToyClassifier(NAMES, PREPROCESSING), StatefulData())
    assert StatefulData.load_from_checkpoint(path).seen == 7
    command = fit(f"--data={__name__}.StatefulData")
    assert command.datamodule.seen == 7  # by the test of the best checkpoint


def test_numpys_numbers_and_paths_as_options_of_data_leave_a_checkpoint_readable(workplace):
    class Sized(ToyData):
        def __init__(self, place: Path, rates: Any, size: int = 64, **options: Any) -> None:
            super().__init__(size, **options)

    data = Sized(
        Path("here"),
        rates=[np.float64(0.5), np.bool_(True), np.str_("x")],
        size=np.int64(48),  # type: ignore[arg-type]  # as NumPy's users pass it
        split_seed=np.int32(3),
    )
    path = saved(ToyClassifier([np.str_(name) for name in NAMES], PREPROCESSING), data)
    loaded = ToyClassifier.load_from_checkpoint(path)
    assert [type(name) for name in loaded.class_names] == [str] * 3
    opened: Any = Sized.load_from_checkpoint(path, place=Path("there"))
    assert opened.sizes["train"] == 48
    assert load(path)["about"]["data"]["init_args"]["rates"] == [0.5, True, "x"]
    assert load(path)["datamodule_hyper_parameters"]["place"] == "here"


class Unsaveable(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"best": {"array": np.zeros(3)}}


class Saveable(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"best": np.float64(0.5)}


def test_a_state_that_could_not_be_read_again_is_refused_when_it_is_first_saved(workplace):
    with pytest.raises(TypeError, match=r"callbacks\.Unsaveable\.best\.array is a ndarray"):
        fit(callbacks=[Unsaveable()])
    fit("--name=other", callbacks=[Saveable()])
    assert load(Path("runs/other/checkpoints/last.ckpt"))["callbacks"]["Saveable"] == {"best": 0.5}
