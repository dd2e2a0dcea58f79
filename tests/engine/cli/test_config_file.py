"""A config that cannot be used is one line with its name and its line; an empty one says nothing."""

import pytest
import yaml

from project.engine.cli.config_file import parse_config, read_config
from project.engine.errors import UserError
from tests.engine.cli.test_given import parse
from tests.small import one_line

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", ["", "\n", "# a comment\n", "---\n", "# a comment\n---\n", "model:\n", "{}"])
def test_an_empty_config_says_nothing(text, workplace):
    (workplace / "c.yaml").write_text(text)
    found = parse("--config=c.yaml").as_dict()
    assert found == {**parse().as_dict(), "config": found["config"]}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (bytes(range(256)), "'c.yaml' is not a text file"),
        (b"a: \x00", "c.yaml: unacceptable character"),
        (b"trainer:\n  max_epochs: !!binary aGVsbG8=", "c.yaml, line 2: 'tag:yaml.org,2002:binary' does not belong"),
        (b"trainer: !!python/object/apply:os.system [exit]", "c.yaml, line 1: 'tag:yaml.org,2002:python"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "c.yaml, line 1: too deep or too large"),
        ("\n".join(" " * depth + "a:" for depth in range(3000)).encode(), "c.yaml, line 51: too deep or too large"),
        (BOMB.encode(), "too deep or too large"),
        (b"a: &a [*a]", "c.yaml, line 1: too deep or too large"),
        (b"trainer:\n  max_epochs: 3\n  max_epochs: 4", "c.yaml, line 3: 'max_epochs' is given twice"),
        (b"data:\n  transforms+: [a]\n  transforms: [b]", "c.yaml, line 3: 'transforms' is given twice"),
        (b"- a", "c.yaml, line 1: expected 'option: value', got '- a'"),
        (b"hello", "c.yaml, line 1: expected 'option: value', got 'hello'"),
        (b"trainer:\n\tmax_epochs: 3", "c.yaml, line 2: while scanning"),
        (b"a: 1\n---\nb: 2", "c.yaml, line 2: expected a single document"),
        (b"trainer: 5", "c.yaml, line 1: trainer is a group of options, got '5'"),
        (b"trainer:\n  max_epochs: many", "c.yaml, line 2: --trainer.max_epochs: expected int, not 'many'"),
        (
            b"data:\n  class_path: SyntheticFlowersDataModule\n  init_args:\n    batch_size: many",
            "c.yaml, line 4: --data.batch_size: expected int, not 'many'",
        ),
        (
            b"data:\n  class_path: FolderDataModule\n  init_args: [{root: x}]",
            "c.yaml, line 3: --data: init_args must be options, as in 'NAME: VALUE' without a dash, got '[{'root': 'x'}]'",
        ),
        (
            b"model:\n  optimizer:\n    init_args: lr",
            "c.yaml, line 3: --model.optimizer: init_args must be options, as in",
        ),
        (b"data:\n  dict_kwargs: 3", "c.yaml, line 2: --data: dict_kwargs must be options, as in"),
        (b"data: {class_path: 3}", "c.yaml, line 1: --data: class_path must be the name of a class, got '3'"),
        (b"trainer:\n  max_epochs: 3\n  max_epocs: 3", "c.yaml, line 3: there is no option '--trainer.max_epocs'"),
    ],
)
def test_what_is_wrong_with_a_config_is_one_line_with_the_place(text, answer, workplace, capsys):
    (workplace / "c.yaml").write_bytes(text)
    assert answer in one_line(lambda: parse("--config=c.yaml"), capsys)


def test_values_are_read_as_yaml_reads_them():
    text = "{a: 1, b: 1.0, c: yes, d: 'yes', e: null, f: [1, x], g: {h: 2020-01-01}, i: -3.5, j: &x {k: 1}, l: *x}"
    expected = yaml.safe_load(text)
    expected["g"] = {"h": "2020-01-01"}
    assert parse_config(text, "c").values == expected
    assert parse_config("{a: 1e-3, b: '1e-3', c: 2E5}", "c").values == {"a": 0.001, "b": "1e-3", "c": 200000.0}


def test_no_tag_of_python_is_ever_run(tmp_path):
    (tmp_path / "c.yaml").write_text(f"a: !!python/object/apply:pathlib.Path.touch ['{tmp_path}/touched']")
    with pytest.raises(UserError):
        read_config(str(tmp_path / "c.yaml"))
    assert not (tmp_path / "touched").exists()
