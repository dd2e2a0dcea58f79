import string
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.matching import changed_data, require_match

MATCH: dict[str, Any] = {
    "model": "ImageClassifier",
    "class_names": ["a", "b"],
    "arch": "resnet18",
    "arch_args": {"stem": "cifar"},
}


def about(**changed) -> Any:
    return MATCH | changed


def test_a_checkpoint_that_matches_is_accepted():
    require_match(about(), "some.ckpt", **MATCH)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "OwnClassifier"}, ["holds a OwnClassifier", "asks for ImageClassifier", "see --model"]),
        ({"arch": "resnet50"}, ["another network", "--model.arch resnet50 --model.arch_args.stem cifar"]),
        ({"arch_args": {"stem": "imagenet"}}, ["another network", "--model.arch_args.stem imagenet"]),
        ({"class_names": ["a", "b", "c"]}, ["3 classes a, b and c,", "2 classes a and b;"]),
        ({"class_names": ["x", "b"]}, ["classes x and b,", "classes a and b;"]),
        ({"class_names": ["b", "a"]}, ["classes b and a,", "classes a and b;"]),
    ],
    ids=str,
)
def test_what_differs_is_named(changed, words):
    with pytest.raises(UserError, match=r"some\.ckpt") as caught:
        require_match(about(**changed), "some.ckpt", **MATCH)
    assert all(word in str(caught.value) for word in words)


def test_classes_that_differ_late_in_the_list_are_named():
    names = [f"class {letter}" for letter in string.ascii_lowercase]
    with pytest.raises(UserError, match=r"class q.*other|other.*class q"):
        require_match(
            about(class_names=[*names[:16], "other", *names[17:]]), "some.ckpt", **MATCH | {"class_names": names}
        )


def test_options_of_the_data_that_are_tensors_are_compared():
    def changes(before: Any) -> str:
        about: Any = {"data": {"class_path": "Own", "init_args": {"weights": before}}}
        return changed_data(about, SimpleNamespace(hparams={"weights": torch.ones(2)}, transforms_in_words=dict))

    assert changes(torch.ones(2)) == ""
    assert changes([0, 1]).endswith("--data.weights is tensor([1., 1.]), not [0, 1]")
    for other in (torch.zeros(2), torch.ones(3), np.zeros(2)):
        assert "--data.weights is tensor([1., 1.]), not" in changes(other)
