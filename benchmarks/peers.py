"""``python -m benchmarks.peers FOLDER``: CPU time of an image in training, beside what other libraries' users run.

Each trains a ResNet-18 from random weights on the same JPEG files, in batches of 32, in float32, on one thread: random
resized crop, mirror image, SGD with momentum. A run over more images less one over fewer leaves out the start. The
order rotates from round to round. Peers that are not installed, or fail, are left out: ``pip install fastai mosaicml timm
"transformers[torch]"``, best in an environment of their own. Where the CPU is faster in bfloat16, ours is measured in it
as well. ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2`` before the command has a newer CPU do as one with AVX2.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightkeeper.images._hardware import best_precision
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms
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


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Trains for an epoch."""
    for images, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def by_hand(folder: str, size: int) -> None:
    """Trains by a loop, as tutorials do."""
    model = network(folder).train()
    loop(model, torch.optim.SGD(model.parameters(), RATE, MOMENTUM), loader(folder, size))


def torchvision(folder: str, size: int) -> None:
    """Trains as torchvision's reference script: its preset, and metrics of each batch."""
    preset = transforms.Compose(  # type: ignore[no-untyped-call]
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),  # type: ignore[no-untyped-call]
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float32),
            transforms.Normalize(  # type: ignore[no-untyped-call]
                [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
            ),
        ]
    )
    data = datasets.ImageFolder(f"{folder}/train", preset)
    model = network(folder).train()
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=1e-4)
    for images, labels in DataLoader(data, BATCH, shuffle=True, drop_last=True):
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        correct = logits.topk(5).indices == labels[:, None]
        print(
            loss.item(), correct[:, 0].float().mean().item(), correct.any(1).float().mean().item()
        )


def timm(folder: str, size: int) -> None:
    """Trains as timm's script: its loader, network and optimizer; its colour jitter is off."""
    from timm import create_model
    from timm.data import create_dataset, create_loader  # type: ignore[attr-defined]
    from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]

    data = create_loader(
        create_dataset("", folder, split="train", is_training=True),
        input_size=(3, size, size),
        batch_size=BATCH,
        is_training=True,
        color_jitter=0,
        num_workers=0,
        persistent_workers=False,
        device=torch.device("cpu"),
    )
    model = create_model("resnet18", num_classes=len(os.listdir(f"{folder}/train"))).train()
    loop(model, create_optimizer_v2(model, "sgd", RATE, momentum=MOMENTUM), data)


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


def ours(folder: str, size: int, precision: str = "32-true") -> None:
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
        "--trainer.precision": precision,
        "--trainer.accelerator": "cpu",
        "--trainer.default_root_dir": f"{folder}-runs",
    }
    sys.argv[1:] = [f"{name}={value}" for name, value in options.items()]
    fit.FitCLI.main()


PEERS: dict[str, Callable[[str, int], None]] = {
    "ours": ours,
    "ours in bfloat16": partial(ours, precision="bf16-mixed"),
    "a loop by hand": by_hand,
    "torchvision": torchvision,
    "timm": timm,
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


def more_seconds(peer: str, few: Path, many: Path, size: int) -> float | None:
    """Returns the CPU time that more images take; None, with a line, if a peer fails.

    It may be installed and yet not be imported, beside a newer torch.
    """
    try:
        return cpu_seconds(peer, many, size) - cpu_seconds(peer, few, size)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode().strip().rpartition("\n")[2]
        if peer.startswith("ours"):
            raise RuntimeError(reason) from error
        print(f"{peer} fails, and is left out: {reason}", flush=True)
        return None


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
        if peer not in ("timm", "fastai", "composer", "transformers") or find_spec(peer)
    ]
    capability = torch.backends.cpu.get_cpu_capability()
    if best_precision("cpu") == "32-true" or capability == "AVX2":
        peers.remove("ours in bfloat16")
    print(f"torch uses {capability}")
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
                seconds = more_seconds(peer, few, many, options.size)
                if seconds is None:
                    peers.remove(peer)
                    del times[peer]
                    continue
                times[peer].append(1000 * seconds / (trained[1] - trained[0]))
                load = os.getloadavg()[0]
                print(
                    f"round {turn + 1}: {peer} {times[peer][-1]:.1f} ms (load {load:.1f})",
                    flush=True,
                )
    first = statistics.median(times["ours"])
    for peer, values in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        middle = statistics.median(values)
        print(
            f"{peer:26} {middle:6.1f} ms ({min(values):.1f} to {max(values):.1f}), {middle / first:.2f} of ours"
        )


if __name__ == "__main__":
    main()
