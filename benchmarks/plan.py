"""How much is measured, so that the whole ends within three minutes on two CPU cores."""

from dataclasses import dataclass, field

import torch

from benchmarks.startup import COMMANDS


@dataclass(frozen=True)
class Files:
    """The image files of the loading path, by default of the mean area of flower_photos' originals.

    Attributes:
        count: How many there are.
        width: Of each in pixels.
        height: Of each in pixels, at most the width.
        batch_size: Images in a batch; the first batch is not counted.
        image_size: Width and height in pixels.
    """

    count: int = 112
    width: int = 366
    height: int = 276
    batch_size: int = 16
    image_size: int = 224


@dataclass(frozen=True)
class Work:
    """A network and what it is given.

    Attributes:
        title: What it is, for people.
        arch: The network.
        arch_args: Its arguments.
        image_size: Width and height in pixels.
        batch_size: Images in a step.
        steps: How many are measured.
        warm_up: How many come before.
    """

    title: str
    arch: str
    arch_args: dict[str, str]
    image_size: int
    batch_size: int
    steps: int
    warm_up: int = 2

    @property
    def images(self) -> int:
        """How many images all steps take."""
        return (self.warm_up + self.steps) * self.batch_size


@dataclass(frozen=True)
class Plan:
    """What is measured, in this order.

    Attributes:
        files: What is loaded.
        training: What is trained, by a short name.
        evaluation: What is evaluated.
        commands: What is started, by a short name: arguments of Python each, ``{folder}`` being a temporary one.
    """

    files: Files
    training: dict[str, Work]
    evaluation: Work
    commands: dict[str, list[str]] = field(default_factory=lambda: COMMANDS)


def plan_for(device: torch.device) -> Plan:
    """The plan for a GPU, which takes more steps and such batches as its memory has room for, or for a CPU."""
    on_gpu = device.type == "cuda"
    roomy = on_gpu and torch.cuda.get_device_properties(device).total_memory > 32e9
    large, small = (256, 1024) if roomy else (64, 512) if on_gpu else (16, 128)
    warm_up = 10 if on_gpu else 2
    training = {
        "resnet34": Work(
            f"ResNet-34, 224 px, batches of {large}", "resnet34", {}, 224, large, 20 if on_gpu else 4, warm_up
        ),
        "resnet18": Work(
            f"ResNet-18, 32 px, batches of {small}",
            "resnet18",
            {"stem": "cifar"},
            32,
            small,
            20 if on_gpu else 3,
            warm_up,
        ),
    }
    return Plan(Files(), training, evaluation=training["resnet18"])
