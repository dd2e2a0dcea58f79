"""Kills real trainings at random moments, resumes them, and compares how they end with one that nobody disturbed.

``python -m tests.stress --kills 100`` does it at length. Each training is a fork of a process that has imported
everything, so that an attempt costs no start-up; what is killed is a process like any other.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from project.engine.cli.entry import one_line_errors, quiet_libraries
from project.fit import FitCLI
from tests.conftest import QUIET, empty_figures
from tests.distributed.processes import environment, fork, launched, wait
from tests.engine.toy import SmallNetwork, differences, outcome

SMALL = [
    *("--data.train_size=96", "--data.val_size=40", "--data.test_size=24", "--data.image_size=32"),
    *(
        "--data.batch_size=8",
        "--data.crop_padding=4",
        "--data.cutout=8",
        "--model.optimizer.lr=0.02",
    ),
    *("--trainer.accelerator=cpu", "--trainer.max_epochs=3", "--trainer.log_every_n_steps=5"),
    "--callbacks.last_checkpoint.every_n_steps=2",
    *QUIET,
]

RANDOM_TRANSFORM = "--data.train_transforms+=torchvision.transforms.v2.RandAugment"
IN_FIVES = "--trainer.accumulate_grad_batches=5"
TWO = "--trainer.devices=2"
SCENARIOS = {  # kinds of training
    "one process": [],
    "loader workers, several validations an epoch": [
        *(
            "--data.num_workers=2",
            RANDOM_TRANSFORM,
            "--trainer.val_check_interval=5",
            "--trainer.precision=32-true",
        ),
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


def _train(args: list[str]) -> None:
    """The life of one forked process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(
        "project.model.classifier.build_network",
        lambda arch, num_classes, args: SmallNetwork(num_classes),
    )
    sys.argv = ["fit"]
    quiet_libraries()
    warnings.filterwarnings("ignore")
    with empty_figures(), one_line_errors():
        FitCLI(args).fit()


def start(folder: Path, scenario: list[str]) -> list[ForkProcess]:
    """Starts or continues the training in ``folder``."""
    args = [
        *SMALL,
        *scenario,
        f"--trainer.default_root_dir={folder.parent}",
        f"--name={folder.name}",
    ]
    world = launched(2 if TWO in scenario else 1)
    return [
        fork(lambda: _train(args), variables, folder.with_suffix(".log")) for variables in world
    ]


def disturb(
    name: str, folder: Path, kills: int, dice: random.Random, once_saved: bool
) -> tuple[int, int, list[str]]:
    """Disturbs trainings of one kind until ``kills`` signals have been sent, and compares their ends with the first's.

    With ``once_saved``, a signal waits for a checkpoint. The numbers of kills and of continuations, and the differences.
    """
    began = time.monotonic()
    codes = wait(start(folder / "whole", SCENARIOS[name]))
    length = time.monotonic() - began
    if any(codes):
        raise RuntimeError(f"{name}: {codes}\n{(folder / 'whole.log').read_text()}")
    expected = outcome(folder / "whole")
    sent, continued, found, number = 0, 0, [], 0
    while sent < kills:
        run = folder / f"run{number}"
        while not (run / "metrics.json").exists():
            processes, disturbed = start(run, SCENARIOS[name]), False
            if sent < kills:
                victim = dice.choice(processes)
                while (
                    once_saved
                    and victim.is_alive()
                    and not (run / "checkpoints" / "last.ckpt").exists()
                ):
                    time.sleep(0.01)
                time.sleep(dice.uniform(0, (0.2 if once_saved else 0.9) * length))
                if disturbed := victim.is_alive():
                    os.kill(
                        int(victim.pid or 0), dice.choice([*[signal.SIGKILL] * 3, signal.SIGTERM])
                    )
            codes = wait(processes)
            sent += disturbed
            if not disturbed and any(codes):
                raise RuntimeError(f"{name}: {codes}\n{run.with_suffix('.log').read_text()}")
        continued += run.with_suffix(".log").read_text().count(f"continuing {run} ")
        found += differences(expected, outcome(run))
        number += 1
    return sent, continued, found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=102, help="how many signals to send in all")
    parser.add_argument("--seed", type=int, default=0, help="decides when they are sent")
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, help="may be repeated; all by default"
    )
    parser.add_argument(
        "--once_saved", action="store_true", help="send each soon after there is a checkpoint"
    )
    options = parser.parse_args()
    names = options.scenario or list(SCENARIOS)
    for name in {*os.environ} - {*environment()}:  # of a launcher
        del os.environ[name]
    os.environ.update(environment())
    total: Counter[str] = Counter()
    for name in names:
        began, dice, each = (
            time.monotonic(),
            random.Random(f"{options.seed} {name}"),
            -(-options.kills // len(names)),
        )
        with tempfile.TemporaryDirectory() as folder:
            kills, continued, found = disturb(name, Path(folder), each, dice, options.once_saved)
        print(
            f"{name:50} {kills:4} kills {len(found):4} differences {time.monotonic() - began:6.0f} s",
            flush=True,
        )
        print("".join(f"    {text[:200]}\n" for text in found[:10]), end="")
        total.update(kills=kills, continuations=continued, differences=len(found))
    print(
        f"{total['kills']} kills, {total['continuations']} continuations, {total['differences']} differences"
    )
    sys.exit(total["differences"] > 0)


if __name__ == "__main__":
    main()
