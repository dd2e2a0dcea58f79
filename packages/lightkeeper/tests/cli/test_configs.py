"""What a command line and its configs say of limits, and configs that cannot be read."""

import re
import shlex
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from lightkeeper.cli._trainer import ExactTrainer
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from lightning.pytorch import Callback
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import SGD

from tests.toy import (
    BEST,
    RUN,
    ToyClassifier,
    ToyFit,
    cases,
    evaluate,
    fit,
    one_line,
    read_json,
    stop_at,
)


class ParsingOnly(ToyFit):
    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


def split(words: str) -> list[str]:
    return re.split(" (?=--)", words)


@cases(
    "options epochs",
    ("--trainer.max_steps=100", -1),
    ("--trainer.max_time=00:00:10:00", -1),
    ("--config={trainer: {max_steps: 100}}", -1),
    ("--trainer.max_steps=100 --trainer.max_epochs=3", 3),
    ("--trainer.max_steps=-1", ToyFit.defaults["trainer.max_epochs"]),
    ("--trainer.min_epochs=2", ToyFit.defaults["trainer.max_epochs"]),
    ("--trainer.min_epochs=9", 9),
)
def test_the_default_number_of_epochs_gives_way_to_another_limit(options, epochs):
    assert ParsingOnly(split(options)).config.trainer.max_epochs == epochs


LIMITS = [
    *(f"limit_{split}_batches" for split in ("train", "val", "test", "predict")),
    "overfit_batches",
]


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1.0", 1.0), ("2", 2), ("0.5", 0.5)])
def test_an_integer_is_a_number_of_batches_and_a_fraction_a_share(text, value, workplace):
    (workplace / "c.yaml").write_text(
        "trainer:\n" + "".join(f"  {option}: {text}\n" for option in LIMITS)
    )
    for args in ([f"--trainer.{option}={text}" for option in LIMITS], ["--config=c.yaml"]):
        cli = ParsingOnly(args)
        saved = yaml.safe_load(cli.parser.dump(cli.config))["trainer"]
        for options in (cli.config.trainer, saved):
            assert [repr(options[option]) for option in LIMITS] == [repr(value)] * len(LIMITS)


@cases(
    "text answer",
    (bytes(range(256)), "'c.yaml' cannot be read: 'utf-8' codec can't decode"),
    (b"trainer: {max_epochs: [3", "c.yaml: while parsing a flow sequence in"),
    (
        b"trainer: !!python/object/apply:os.system [exit]",
        "c.yaml: could not determine a constructor",
    ),
    (
        b"[" * 5000,
        "c.yaml: while increasing flow level exceeded maximum nesting depth|c.yaml: while parsing"
        " a flow node did not find expected node content",  # of older versions of PyYAML
    ),
    (b"hello", "c.yaml: expected 'option: value', got 'hello'"),
    (b"data:", "c.yaml: expected 'option: value', got 'data:'"),
    (b"trainer: 5", "c.yaml, trainer: expected 'option: value', got '5'"),
    (b"callbacks: false", "c.yaml, callbacks: expected 'option: value', got 'False'"),
    (
        b"trainer: {max_epochs: 1}\nmodel:\n  arch: resnet18\n  arch: resnet34\n",
        "c.yaml: 'arch' is given twice in the mapping of line 3",
    ),
    (b"data:\n  batch_size: 4\ndata:\n  flip: false\n", "'data' is given twice"),
)
def test_a_config_that_cannot_be_read_is_one_line(text, answer, workplace, capsys):
    (workplace / "c.yaml").write_bytes(text)
    said = one_line(lambda: ParsingOnly(["--config=c.yaml"]), capsys)
    assert any(words in said for words in answer.split("|"))


RATE = 0.1


class OfAConstant(ToyClassifier):
    """Its optimizer's rate is no number that jsonargparse reads from code."""

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        optimizer: OptimizerCallable = lambda params: SGD(params, lr=RATE),
    ) -> None:
        super().__init__(class_names, preprocessing, optimizer)


@pytest.mark.filterwarnings(r"ignore:\s*Unable to serialize")
def test_a_default_that_no_config_can_hold_is_refused_before_there_is_a_run(workplace, capsys):
    said = one_line(lambda: fit(f"--model={__name__}.OfAConstant"), capsys)
    assert "--model.optimizer: config.yaml cannot hold its default" in said
    assert not RUN.exists()


@pytest.mark.parametrize("name", ["model", "model.interval", "data.batch_size"])
def test_a_default_of_a_class_names_the_place_where_it_belongs(name, monkeypatch):
    monkeypatch.setattr(ToyFit, "defaults", {**ToyFit.defaults, name: 1})
    with pytest.raises(UserError, match=f"'{name}' is no .* default_arguments"):
        ParsingOnly([])


class OfALoss(ToyClassifier):
    """Has an argument of a class, whose path is not that of its module."""

    not_saved: ClassVar = ["loss"]

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        loss: nn.Module = nn.CrossEntropyLoss(reduction="none"),  # noqa: B008
        rate: float = 0.1,
    ) -> None:
        super().__init__(class_names, preprocessing, partial(SGD, lr=rate))
        self.criterion = loss  # type: ignore[assignment]


def test_a_resumed_run_names_its_own_config_which_resumes_it(workplace, capsys):
    command = [f"--model={__name__}.OfALoss", "--name=of one"]
    stop_at(3, *command)
    said = one_line(lambda: fit(*command, "--model.rate=0.5"), capsys)
    (options,) = re.findall("to resume as before, give (.*) alone", said)
    fit(*shlex.split(options))
    assert read_json("runs/of one/run.json")["resumed_step"] == 3


class OfAPartial(ToyClassifier):
    """Has a default that configs describe without an address."""

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Preprocessing,
        optimizer: OptimizerCallable = partial(SGD, lr=0.1),  # noqa: B008
    ) -> None:
        super().__init__(class_names, preprocessing, optimizer)


@pytest.mark.filterwarnings(r"ignore:\s*Unable to serialize")
def test_a_default_without_an_address_resumes(workplace):
    stop_at(3, f"--model={__name__}.OfAPartial")
    fit(f"--model={__name__}.OfAPartial")


def test_the_config_that_evaluate_prints_is_a_command(workplace, capsys):
    fit()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        evaluate(str(BEST), "--print_config")
    Path("printed.yaml").write_text(capsys.readouterr().out)
    evaluate("--config=printed.yaml")
    assert BEST.with_suffix(".test.metrics.json").exists()


def test_batchnorm_is_not_synchronised_between_cpus():
    with pytest.raises(UserError, match="GPUs alone"):
        ExactTrainer(accelerator="cpu", devices=2, sync_batchnorm=True, logger=False)


class LoadsWhatDoesNotFit(Callback):
    def on_train_start(self, trainer, pl_module):
        nn.Linear(3, 2).load_state_dict(nn.Linear(4, 2).state_dict())


def test_a_callback_that_loads_other_weights_keeps_its_own_error(workplace):
    stop_at(3)
    with pytest.raises(RuntimeError, match="state_dict for Linear"):
        fit(callbacks=[LoadsWhatDoesNotFit()])
