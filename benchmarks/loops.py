"""Training and evaluation without loading: a tutorial's loop, a plain loop with our settings, and ``project.fit``."""

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightkeeper.images import ArrayDataset, ImageBatch, Preprocessing
from lightkeeper.images._hardware import best_precision
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.timing import Measure, StepClock
from project.data import AugmentedDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.networks import build_network
from project.model.optimizers import build_optimizer
from project.model.schedules import CosineWithWarmup

TUTORIAL, PLAIN, OURS = (
    "plain loop, as in tutorials",
    "plain loop, our settings",
    "ours, through Lightning",
)
IN_TRAINING = "ours, in training's precision"
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class Work:
    """A network and the images that it is given."""

    arch: str
    arch_args: dict[str, Any]
    image_size: int
    batch_size: int
    steps: int
    warmup: int = 2

    @property
    def title(self) -> str:
        """Network, image size and batch size."""
        return f"{self.arch}, {self.image_size} px, batches of {self.batch_size}"

    @property
    def images(self) -> int:
        """The number of images of all steps."""
        return (self.warmup + self.steps) * self.batch_size


def planned(device: torch.device) -> list[Work]:
    """Chooses batches by the device's memory: ResNet-34 at 224 pixels and ResNet-18 at 32."""
    large, small, steps, warmup = 16, 128, 4, 2
    if device.type == "cuda":
        steps, warmup = 20, 10
        large, small = (
            (256, 1024)
            if torch.cuda.get_device_properties(device).total_memory > 32e9
            else (64, 512)
        )
    return [
        Work("resnet34", {}, 224, large, steps, warmup),
        Work("resnet18", {"stem": "cifar"}, 32, small, steps, warmup),
    ]


class RandomImagesDataModule(AugmentedDataModule):
    """The same random images in each split, on the device already."""

    def __init__(self, size: int, image_size: int, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__(flip=False, **kwargs)
        self.size, self.image_size, self.device = size, image_size, device

    def pins_memory(self) -> bool:
        """Returns False: only what is not on the device yet can be pinned."""
        return False

    @property
    def class_names(self) -> list[str]:
        """Ten digits."""
        return list("0123456789")

    @property
    def preprocessing(self) -> Preprocessing:
        """ImageNet's statistics."""
        return {"resize": self.image_size, "crop": self.image_size, "mean": _MEAN, "std": _STD}

    def load(self) -> dict[str, ArrayDataset]:
        """Draws the images on the CPU, so that they are the same on any device."""
        rng, shape = (
            torch.Generator().manual_seed(0),
            (self.size, 3, self.image_size, self.image_size),
        )
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)
        labels = torch.randint(0, 10, (self.size,), generator=rng)
        return dict.fromkeys(
            ("train", "val", "test"),
            ArrayDataset(images.to(self.device), labels.to(self.device), "random image"),
        )

    def batches(self) -> list[ImageBatch]:
        """Returns the training batches of the first epoch, in order."""
        self.setup("fit")
        return list(self.train_dataloader())


def variants(work: Work, device: torch.device, training: bool) -> dict[str, Measure]:
    """Measures images per second of training or of evaluation."""
    data = images_for(work, device)
    return {
        TUTORIAL: lambda _: tutorial_loop(work, data, device, training),
        **({PLAIN: lambda _: plain_loop(work, data, device)[0]} if training else {}),
        **(
            {}
            if training
            else {IN_TRAINING: lambda _: through_lightning(work, device, training, exact=False)[0]}
        ),
        OURS: lambda _: through_lightning(work, device, training)[0],
    }


def images_for(work: Work, device: torch.device) -> RandomImagesDataModule:
    """Builds as many images as the steps take, the same for all variants."""
    return RandomImagesDataModule(
        work.images, work.image_size, str(device), batch_size=work.batch_size
    )


def tutorial_loop(
    work: Work, data: RandomImagesDataModule, device: torch.device, training: bool
) -> float:
    """Runs in float32 on normalised images, and calls ``item()`` on the loss in each step."""
    network = build_network(work.arch, 10, work.arch_args).to(device).train(training)
    optimizer = SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    criterion, clock = nn.CrossEntropyLoss(), StepClock(work.warmup, work.steps, device)
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    batches = [
        ((batch.images.float() / 255 - mean) / std, batch.labels) for batch in data.batches()
    ]
    running_loss, correct = 0.0, 0
    for images, labels in batches:
        with torch.set_grad_enabled(training):
            outputs = network(images)
            loss: Tensor = criterion(outputs, labels)
        if training:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        else:
            correct += (outputs.argmax(1) == labels).sum().item()
        running_loss += loss.item()
        clock.tick()
    return clock.rate(work.batch_size)


def plain_loop(
    work: Work, data: RandomImagesDataModule, device: torch.device
) -> tuple[float, ImageClassifier]:
    """Takes the training steps of ``project.fit`` in a loop that does nothing else; returns its speed and its model."""
    torch.manual_seed(0)
    model = ImageClassifier(data.class_names, data.preprocessing, work.arch, work.arch_args).to(
        device
    )
    optimizer = build_optimizer(model.optimizer, model)
    schedule, steps = CosineWithWarmup(optimizer), work.warmup + work.steps
    schedule.set_length(total_steps=steps, steps_per_epoch=steps)
    in_bfloat16 = best_precision("auto") == "bf16-mixed"
    clock = StepClock(work.warmup, work.steps, device)
    model.train()
    for batch in data.batches():
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            loss = model.loss(model(batch.images), batch.labels).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        clock.tick()
    return clock.rate(work.batch_size), model


def through_lightning(
    work: Work, device: torch.device, training: bool, exact: bool = True
) -> tuple[float, ImageClassifier]:
    """Trains or validates as ``project.fit`` does, and prints nothing; returns the speed and the model."""
    clock = StepClock(work.warmup, work.steps, device)
    with (
        TemporaryDirectory() as folder,
        open(os.devnull, "w") as null,
        redirect_stdout(null),
        redirect_stderr(null),
    ):
        cli = FitCLI(
            [
                *("--seed_everything=0", "--name=run", f"--trainer.default_root_dir={folder}"),
                *("--data=benchmarks.loops.RandomImagesDataModule", f"--data.device={device}"),
                *(f"--data.size={work.images}", f"--data.image_size={work.image_size}"),
                *(f"--data.batch_size={work.batch_size}", f"--model.arch={work.arch}"),
                *(f"--model.arch_args={json.dumps(work.arch_args)}", "--trainer.max_epochs=1"),
                *(
                    f"--trainer.accelerator={device.type}",
                    "--trainer.devices=1",
                    f"--model.exact_evaluation={exact}",
                ),
                f"--trainer.log_every_n_steps={min(10, work.steps)}",  # the default, or once in so few steps
            ]
        )
        cli.trainer.callbacks.append(  # type: ignore[attr-defined]  # set by a connector
            LambdaCallback(
                on_train_batch_end=lambda *_: clock.tick(),
                on_validation_batch_end=lambda *_: clock.tick(),
            )
        )
        if training:
            cli.trainer.limit_val_batches = 0
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        else:
            cli.trainer.validate(cli.model, datamodule=cli.datamodule, verbose=False)
    return clock.rate(work.batch_size), cli.model
