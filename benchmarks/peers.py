"""``python -m benchmarks.peers FOLDER``: CPU time of an image in training, beside what other libraries' users run.

Each trains a ResNet-18 from random weights on the same JPEG files, in batches of 32, in float32, on one thread: random
resized crop, mirror image, SGD with momentum. A run over more images less one over fewer leaves out the start. The
order rotates from round to round. Peers whose package is not installed are left out: ``pip install fastai mosaicml
"transformers[torch]"``, best in an environment of their own.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import datasets, models
from torchvision.transforms import v2

BATCH, RATE, MOMENTUM = 32, 0.01, 0.9
FEW, MANY = 64, 320
"""Images of the two runs, whose difference is measured."""


def loader(folder: str, size: int) -> DataLoader[Any]:
    """Loads images as torchvision's tutorials do."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    images = datasets.ImageFolder(f"{folder}/train", transform)
    return DataLoader(images, BATCH, shuffle=True, drop_last=True)


def network(folder: str) -> nn.Module:
    """Builds a ResNet-18 for the folder's classes."""
    built: nn.Module = models.resnet18(num_classes=len(os.listdir(f"{folder}/train")))
    return built


def by_hand(folder: str, size: int) -> None:
    """Trains by a loop, as tutorials do."""
    model = network(folder).train()
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    for images, labels in loader(folder, size):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def lightning(folder: str, size: int) -> None:
    """Trains a plain LightningModule that logs loss and accuracy."""
    from lightning.pytorch import LightningModule, Trainer
    from torchmetrics.classification import MulticlassAccuracy

    class Plain(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(folder)
            self.accuracy = MulticlassAccuracy(len(os.listdir(f"{folder}/train")), average="micro")

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            images, labels = batch
            logits = self.network(images)
            loss = nn.functional.cross_entropy(logits, labels)
            self.log("loss", loss)
            self.accuracy(logits, labels)
            self.log("accuracy", self.accuracy)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), RATE, MOMENTUM)

    trainer = Trainer(max_epochs=1, enable_checkpointing=False, logger=False, accelerator="cpu")
    trainer.fit(Plain(), loader(folder, size))


def fastai(folder: str, size: int) -> None:
    """Trains by fastai's Learner on its own loaders."""
    from fastai.vision import all as fast

    data = fast.ImageDataLoaders.from_folder(
        folder,
        valid="val",
        item_tfms=fast.RandomResizedCrop(size, min_scale=0.08),
        batch_tfms=[fast.Flip(), fast.Normalize.from_stats(*fast.imagenet_stats)],
        bs=BATCH,
        num_workers=0,
    )
    opt = fast.partial(fast.SGD, mom=MOMENTUM)
    fast.Learner(data, network(folder), opt_func=opt, metrics=fast.accuracy).fit(1, RATE)


def composer(folder: str, size: int) -> None:
    """Trains by Composer's Trainer on torchvision's loader."""
    from composer import Trainer
    from composer.models import ComposerClassifier

    model = ComposerClassifier(network(folder), num_classes=len(os.listdir(f"{folder}/train")))
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    data = loader(folder, size)
    Trainer(
        model=model, train_dataloader=data, optimizers=optimizer, max_duration="1ep", device="cpu"
    ).fit()


def transformers(folder: str, size: int) -> None:
    """Trains by the Trainer of Hugging Face, with its own ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

    config = ResNetConfig(
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=len(os.listdir(f"{folder}/train")),
    )
    model = ResNetForImageClassification(config)

    def collate(samples: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
        images, labels = zip(*samples, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    arguments = TrainingArguments(
        output_dir=f"{folder}-out",
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        dataloader_drop_last=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    data = loader(folder, size).dataset
    Trainer(model, arguments, collate, data, optimizers=(optimizer, schedule)).train()


def ours(folder: str, size: int) -> None:
    """Trains by ``project.fit``, with its checkpoints, curves, validation and test."""
    from project import fit

    options = {
        "--data": folder,
        "--data.image_size": size,
        "--data.batch_size": BATCH,
        "--data.num_workers": 0,
        "--model.arch": "resnet18",
        "--model.optimizer": "SGD",
        "--model.optimizer.lr": RATE,
        "--model.optimizer.momentum": MOMENTUM,
        "--trainer.max_epochs": 1,
        "--trainer.precision": "32-true",
        "--trainer.accelerator": "cpu",
        "--trainer.default_root_dir": f"{folder}-runs",
    }
    sys.argv[1:] = [f"{name}={value}" for name, value in options.items()]
    fit.FitCLI.main()


PEERS: dict[str, Callable[[str, int], None]] = {
    "ours": ours,
    "a loop by hand": by_hand,
    "a plain LightningModule": lightning,
    "fastai": fastai,
    "composer": composer,
    "transformers": transformers,
}


def subset(source: Path, target: Path, count: int) -> None:
    """Links a number of training images, in turns of the classes, and a few for validation and test."""
    classes = sorted(folder for folder in source.iterdir() if folder.is_dir())
    for folder in classes:
        files = sorted(folder.iterdir())
        for split, chosen in {
            "train": files[2 : 2 + -(-count // len(classes))],
            "val": files[:1],
            "test": files[1:2],
        }.items():
            place = target / split / folder.name
            place.mkdir(parents=True)
            for file in chosen:
                (place / file.name).symlink_to(file.resolve())


def cpu_seconds(peer: str, folder: Path, size: int) -> float:
    """Returns the CPU time of a peer's run, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "benchmarks.peers", str(folder), "--size", str(size)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run([*command, "--run", peer], env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures all peers in turns, and prints the median and the range of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder of JPEG files for each class")
    parser.add_argument("--size", type=int, default=160, help="pixels of the network's input")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        torch.set_num_threads(1)
        PEERS[options.run](str(options.folder), options.size)
        return
    peers = [
        peer
        for peer in PEERS
        if peer not in ("fastai", "composer", "transformers") or find_spec(peer)
    ]
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    with TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        subset(options.folder, few, FEW)
        subset(options.folder, many, MANY)
        trained = [
            len(list((place / "train").rglob("*.*"))) // BATCH * BATCH for place in (few, many)
        ]
        for turn in range(options.rounds):
            for peer in [*peers[turn % len(peers) :], *peers[: turn % len(peers)]]:
                seconds = cpu_seconds(peer, many, options.size) - cpu_seconds(
                    peer, few, options.size
                )
                times[peer].append(1000 * seconds / (trained[1] - trained[0]))
                print(f"round {turn + 1}: {peer} {times[peer][-1]:.1f} ms", flush=True)
    first = statistics.median(times["ours"])
    for peer, values in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(values)
        print(
            f"{peer:26} {middle:6.1f} ms ({min(values):.1f} to {max(values):.1f}), {middle / first:.2f} of ours"
        )


if __name__ == "__main__":
    main()
