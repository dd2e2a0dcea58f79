"""An integer is a number of batches and a fraction a share of them, on the command line as in Python."""

import pytest
import yaml

from project.engine.cli.trainer import ExactTrainer
from tests.engine.cli.test_command_line import parse, parser
from tests.small import one_line

LIMITS = [f"limit_{split}_batches" for split in ("train", "val", "test", "predict")]


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1.0", 1.0), ("2", 2), ("0.5", 0.5)])
def test_an_integer_means_batches(text, value, workplace):
    given = dict.fromkeys([*LIMITS, "overfit_batches", "val_check_interval"], text)
    (workplace / "c.yaml").write_text("trainer:\n" + "".join(f"  {option}: {text}\n" for option in given))
    together = [f"--trainer.{option}={text}" for option in given]
    apart = [part for option in given for part in (f"--trainer.{option}", text)]
    for args in (together, apart, ["--config=c.yaml"]):
        config = parse(*args)
        saved = yaml.safe_load(parser().dump(config))["trainer"]
        for option in given:
            for found in (config.trainer[option], saved[option]):
                assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("option", LIMITS)
def test_null_is_all_and_text_is_refused(option, workplace, capsys):
    assert parse(f"--trainer.{option}=null").trainer[option] is None
    line = one_line(lambda: parse(f"--trainer.{option}=many"), capsys)
    assert f"--trainer.{option}: expected int or float, not 'many'" in line


def test_the_trainer_gets_what_was_given():
    trainer = ExactTrainer(limit_val_batches=1, limit_test_batches=1.0, accelerator="cpu", logger=False)
    assert (type(trainer.limit_val_batches), type(trainer.limit_test_batches)) == (int, float)
