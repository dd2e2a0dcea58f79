"""Runs compared: the test against SciPy's binomial, settings against what was changed."""

import pytest
import torch
from scipy import stats

from project.analysis.compare import differing_settings, mcnemar, seed_groups


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (1, 0), (5, 5), (3, 17), (40, 12), (600, 520)])
def test_the_p_value_is_that_of_the_exact_binomial_test(only_first, only_second):
    first = torch.tensor([True] * only_first + [False] * only_second + [True] * 7 + [False] * 4)
    second = torch.tensor([False] * only_first + [True] * only_second + [True] * 7 + [False] * 4)
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (only_first, only_second)
    differing = only_first + only_second
    expected = stats.binomtest(only_first, differing).pvalue if differing else 1.0  # type: ignore[attr-defined]  # has no types
    assert found.p_value == pytest.approx(expected, rel=1e-9)


def test_what_differs_is_named_as_on_the_command_line_and_runs_that_differ_in_seed_alone_are_a_group():
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
    adam = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}}
    first = {"seed_everything": 0, "model": {"arch": "resnet18", "optimizer": sgd}, "trainer": {"callbacks": None}}
    second = {"seed_everything": 1, "model": {"arch": "resnet18", "optimizer": adam}, "trainer": {"callbacks": None}}
    assert differing_settings({"a": first, "b": second}) == {
        "seed_everything": {"a": 0, "b": 1},
        "model.optimizer": {"a": "SGD", "b": "AdamW"},
        "model.optimizer.momentum": {"a": 0.9, "b": None},
    }
    assert differing_settings({"a": first, "b": first}) == {}
    again = first | {"seed_everything": 2, "name": "again", "trainer": {"callbacks": None, "default_root_dir": "there"}}
    assert seed_groups({"a": first, "b": second, "again": again}) == [["a", "again"], ["b"]]
