"""Kills real trainings at random moments, resumes them, and compares how they end with one that nobody disturbed.

``python -m tests.stress --kills 100`` does it at length, on toys; ``--command project.fit.FitCLI`` does it to a command
of yours, with the options behind ``--``. Each training is a fork of a process that has imported everything, so that
an attempt costs no start-up; what is killed is a process like any other.
"""

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
from lightkeeper.cli._entry import one_line_errors

from tests.processes import environment, fork, launched, wait
from tests.toy import differences, outcome

COMMAND = "tests.toy.ToyFit"
TOY = ["--data.size=96", "--data.val=40", "--data.test=24"]
SMALL = [
    *("--data.batch_size=8", "--trainer.max_epochs=3", "--trainer.log_every_n_steps=5"),
    *("--model.optimizer.lr=0.02", "--callbacks.last_checkpoint.every_n_steps=2"),
    *("--trainer.accelerator=cpu", "--trainer.num_sanity_val_steps=0"),
]

RANDOM_TRANSFORM = "--data.train_transforms+=torchvision.transforms.v2.RandAugment"
IN_FIVES = "--trainer.accumulate_grad_batches=5"
TWO = "--trainer.devices=2"
SCENARIOS = {  # kinds of training
    "one process": ["--trainer.precision=bf16-mixed"],
    "loader workers, several validations an epoch": [
        *("--data.num_workers=2", RANDOM_TRANSFORM, "--trainer.val_check_interval=5"),
    ],
    "accumulation, a moving average of the weights": [
        IN_FIVES,
        "--trainer.callbacks+=EMAWeightAveraging",
    ],
    "a schedule that watches validation, until a step": [
        *(
            "--model.lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau",
            "--model.lr_scheduler.monitor=val/loss",
        ),
        *(
            "--model.lr_scheduler.patience=0",
            "--model.optimizer=AdamW",
            "--model.optimizer.lr=0.001",
        ),
        *("--trainer.max_epochs=null", "--trainer.max_steps=30"),
    ],
    "two processes": [TWO, "--data.num_workers=1", RANDOM_TRANSFORM],
    "two processes, accumulation": [TWO, IN_FIVES],
}


def _train(command: Any, args: list[str]) -> None:
    """The life of one forked process."""
    sys.argv = ["fit"]
    torch.set_num_threads(1)  # threads that outnumber the cores wait for each other
    with one_line_errors():
        command(args).fit()


def start(command: Any, run: Path, flags: list[str]) -> list[ForkProcess]:
    """Starts or continues the training in a folder."""
    place = [f"--trainer.default_root_dir={run.parent}", f"--name={run.name}"]
    log = run.with_suffix(".log")
    variables = launched(2 if TWO in flags else 1)
    return [fork(lambda: _train(command, [*flags, *place]), each, log) for each in variables]


def disturb(
    command: Any, flags: list[str], folder: Path, kills: int, dice: random.Random, once_saved: bool
) -> Counter[str]:
    """Disturbs trainings until ``kills`` signals have been sent, and compares their ends with the first's.

    With ``once_saved``, a signal waits for a checkpoint.
    """
    began = time.monotonic()
    require_success(wait(start(command, folder / "whole", flags)), folder / "whole.log")
    length = time.monotonic() - began
    total = Counter(kills=0, continuations=0, differences=0)
    while total["kills"] < kills:
        run = folder / f"run{total['runs']}"
        last = run / "checkpoints" / "last.ckpt"
        while not (run / "metrics.json").exists():
            processes = start(command, run, flags)
            victim = dice.choice(processes)
            while once_saved and victim.is_alive() and not last.exists():
                time.sleep(0.01)
            time.sleep(dice.uniform(0, (0.2 if once_saved else 0.9) * length))
            if total["kills"] < kills and victim.is_alive():
                os.kill(victim.pid or 0, dice.choice([*[signal.SIGKILL] * 3, signal.SIGTERM]))
                total["kills"] += 1
                wait(processes)
            else:
                require_success(wait(processes), run.with_suffix(".log"))
        total["continuations"] += run.with_suffix(".log").read_text().count(f"continuing {run} ")
        total["runs"] += 1  # also one that ended before its signal
        different = differences(outcome(folder / "whole"), outcome(run))
        total["differences"] += len(different)
        print("".join(f"    {text[:200]}\n" for text in different[:10]), end="")
    return total


def require_success(codes: list[int | None], log: Path) -> None:
    if any(codes):
        raise RuntimeError(f"{codes}\n{log.read_text()}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.stress", description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--kills", type=int, default=102, help="how many signals to send in all")
    option("--seed", type=int, default=0, help="decides when they are sent")
    option("--scenario", choices=SCENARIOS, help="one kind of training; all by default")
    option("--once_saved", action="store_true", help="send each soon after there is a checkpoint")
    option("--command", default=COMMAND, help="the class of the command")
    option("flags", nargs="*", help="options of every training, by default for toys")
    options = parser.parse_args()
    module, _, name = options.command.rpartition(".")
    command = getattr(import_module(module), name)
    always = [*SMALL, *(options.flags or TOY)]
    os.environ.update(environment())
    names = [options.scenario] if options.scenario else list(SCENARIOS)
    kills = math.ceil(options.kills / len(names))
    total: Counter[str] = Counter()
    for name in names:
        dice = random.Random(f"{options.seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            flags = [*always, *SCENARIOS[name]]
            counts = disturb(command, flags, Path(folder), kills, dice, options.once_saved)
        print(f"{name:50} {counts['kills']:4} kills {counts['differences']:4} differences")
        total.update(counts)
    print(", ".join(f"{count} {what}" for what, count in total.items()), flush=True)
    sys.exit(total["differences"] > 0)


if __name__ == "__main__":
    main()
