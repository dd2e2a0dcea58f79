"""Options of a data module that follow from how images were prepared before, where they are not given."""

from jsonargparse import Namespace

from project.run.preprocessing import Preprocessing


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
