"""Options of a data module that follow from how images were prepared before, where they are not given."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace

from project.model.pretrained import find_weights

from ..errors import UserError
from ..preprocessing import Preprocessing


def follow(data: Namespace, preprocessing: Preprocessing) -> None:
    """Sets those options of a data module that are not given to what weights or a checkpoint ask for.

    Where another image size is given, ``resize`` keeps its ratio to it.

    Args:
        data: The data module's specification, with all of its options; those that are None were not given.
        preprocessing: What the weights were trained with.
    """
    options = data.get("init_args", {})
    crop, given = preprocessing["crop"], options.get("image_size")
    wanted = {
        "image_size": crop,
        "fit": preprocessing.get("fit", "crop"),
        "resize": preprocessing["resize"] if given is None else round(given * preprocessing["resize"] / crop),
        "interpolation": preprocessing.get("interpolation", "bilinear"),
        "mean": preprocessing["mean"],
        "std": preprocessing["std"],
    }
    for name, value in wanted.items():
        if name in options and options[name] is None:
            options[name] = value


def follow_weights(config: Namespace, resumed: Sequence[Path]) -> None:
    """Lets the data module of a run prepare images as the model's weights want them.

    Args:
        config: The command's, with ``data`` and ``model``, which may be classes of the user's own without such options.
        resumed: The run's checkpoints, the newest first; the first that can be read counts, instead of other weights.

    Raises:
        UserError: Layers are frozen without weights.
    """
    model = config.model.init_args
    if model.get("weights") is None:
        frozen = next((option for option in ("freeze_backbone", "freeze_until") if model.get(option)), None)
        if frozen and not resumed:
            raise UserError(
                f"--model.{frozen} needs --model.weights: without, layers of random weights would never learn"
            )
        return
    if "arch" in model:
        found = (find_weights(model.arch, str(source)).preprocessing() for source in resumed or [model.weights])
        if (preprocessing := next(filter(None, found), None)) is not None:
            follow(config.data, preprocessing)
