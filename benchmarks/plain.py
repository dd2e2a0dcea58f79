"""Loops without Lightning: as tutorials write them, and with the settings of ``project.fit``."""

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.plan import Work
from benchmarks.random_images import RandomImagesDataModule, as_tutorials_do
from benchmarks.timing import StepClock
from project.engine.hardware import best_precision
from project.model import ImageClassifier
from project.model.networks import build_network
from project.model.optimizers import fuse_on_cpu, parameter_groups
from project.model.schedules import CosineWithWarmup

SEED = 0


def train_as_tutorials_do(work: Work, data: RandomImagesDataModule, device: torch.device) -> StepClock:
    """Trains in float32, and asks for the loss in each step."""
    network = _network_of_tutorials(work, data, device)
    optimizer = SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    criterion = nn.CrossEntropyLoss()
    batches = [as_tutorials_do(batch) for batch in data.training_batches()]
    clock, running_loss = StepClock(work.warm_up, work.steps, device), 0.0
    network.train()
    for images, labels in batches:
        optimizer.zero_grad()
        loss: Tensor = criterion(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        running_loss += loss.item()
        clock.tick()
    return clock


def _network_of_tutorials(work: Work, data: RandomImagesDataModule, device: torch.device) -> nn.Module:
    torch.backends.cudnn.allow_tf32 = True  # as torch has it by default and our commands do not
    return build_network(work.arch, len(data.class_names), work.arch_args).to(device)


def train_as_we_do(work: Work, data: RandomImagesDataModule, device: torch.device) -> tuple[StepClock, ImageClassifier]:
    """Takes the steps that ``project.fit`` takes, in a loop that does nothing else.

    Returns:
        The clock, and the trained model.
    """
    torch.manual_seed(SEED)
    model = ImageClassifier(data.class_names, data.preprocessing, work.arch, work.arch_args).to(device)
    optimizer = model.optimizer(parameter_groups(model.network))
    fuse_on_cpu(optimizer)
    total = work.warm_up + work.steps
    schedule = CosineWithWarmup(optimizer)
    schedule.set_length(total, total // 2)
    in_bfloat16 = best_precision("auto") == "bf16-mixed"
    batches, clock = data.training_batches(), StepClock(work.warm_up, work.steps, device)
    model.train()
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            loss = model.loss(model(batch.images), batch.labels).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        clock.tick()
    return clock, model


def evaluate_as_tutorials_do(work: Work, data: RandomImagesDataModule, device: torch.device) -> StepClock:
    """Evaluates in float32, and asks for the metrics in each step."""
    network = _network_of_tutorials(work, data, device)
    criterion = nn.CrossEntropyLoss()
    batches = [as_tutorials_do(batch) for batch in data.training_batches()]
    clock, running_loss, correct = StepClock(work.warm_up, work.steps, device), 0.0, 0
    network.eval()
    with torch.no_grad():
        for images, labels in batches:
            outputs = network(images)
            running_loss += criterion(outputs, labels).item() * len(labels)
            correct += (outputs.argmax(1) == labels).sum().item()
            clock.tick()
    return clock
