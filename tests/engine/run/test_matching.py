"""A command that does not match the checkpoint it resumes from is told the difference."""

import string
from typing import Any

import pytest

from project.engine.errors import UserError
from project.engine.run.matching import require_match

CHOSEN: Any = {"monitor": "val/accuracy", "mode": "max"}
MATCH: dict[str, Any] = {
    "model": "ImageClassifier",
    "class_names": [f"class {letter}" for letter in string.ascii_lowercase],
    "arch": "resnet18",
    "arch_args": {"stem": "cifar"},
    "selection": CHOSEN,
}


class ImageClassifier:
    class_names, arch, arch_args = (MATCH[name] for name in ("class_names", "arch", "arch_args"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "OwnClassifier"}, ["holds a OwnClassifier", "asks for ImageClassifier", "see --model"]),
        ({"arch": "resnet50"}, ["another network", "--model.arch resnet50 --model.arch_args.stem cifar"]),
        ({"arch_args": {"stem": "imagenet"}}, ["another network", "--model.arch_args.stem imagenet"]),
        ({"class_names": ["a", "b"]}, ["2 classes a and b,", "26 classes class a, class b"]),
        ({"class_names": [*MATCH["class_names"][:16], "other"]}, ["other", "class q"]),
        ({"selection": None}, ["chooses best.ckpt by nothing", "by val/accuracy, max;"]),
    ],
    ids=str,
)
def test_a_difference_is_named(changed, words):
    about: Any = dict(MATCH)
    require_match(about, "some.ckpt", ImageClassifier(), CHOSEN)
    about |= changed
    with pytest.raises(UserError) as caught:
        require_match(about, "some.ckpt", ImageClassifier(), CHOSEN)
    assert all(word in str(caught.value) for word in words)
