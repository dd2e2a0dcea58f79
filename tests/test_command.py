"""Mistakes are one line, bugs keep their tracebacks; output lasts where nobody reads it; importing does nothing."""

import re
import signal
import subprocess
import sys
import traceback
from functools import partial

import pytest
from lightkeeper.cli._entry import describe_error as explain
from lightkeeper.exact import UserError
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from project import check_data, report
from project.data import FolderDataModule, SyntheticFlowersDataModule
from project.evaluate import EvaluateCLI
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import (
    FLOWERS,
    ONE_CPU,
    SLIM,
    cases,
    environment,
    fit,
    make_folder,
    one_line,
    small,
)
from tests.test_command_line import OWN_MODEL

PACKAGE = FitCLI.__module__.partition(".")[0]


def fail(self, *args, **kwargs) -> None:
    try:
        import shiny  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        raise ValueError("a bug of mine")  # noqa: B904  # what a user may write


def test_an_error_names_an_argument_and_the_command_its_option(workplace, capsys):
    """As Python calls it where Python is written; also where only the start of a run notices it."""
    make_folder(workplace / "images", {"red": 2})
    with pytest.raises(UserError, match=r"^root: there is no folder 'nowhere'"):
        FolderDataModule("nowhere").files()
    for data, line in (
        (
            "--data=FolderDataModule --data.root=nowhere",
            "--data.root: there is no folder 'nowhere'",
        ),
        ("--data=images --data.group=[", "--data.group: '[' is no regular expression"),
        ("--data.val_fraction=0.6 --data.test_fraction=0.6 --data=images", "--data.val_fraction: "),
    ):
        assert line in one_line(partial(small, data=data.split()), capsys)


@cases(
    "option base",
    ("trainer.callbacks+", Callback),
    ("trainer.logger", CSVLogger),
    ("trainer.strategy", SingleDeviceStrategy),
    ("trainer.profiler", SimpleProfiler),
    ("data", SyntheticFlowersDataModule),
    ("model", ImageClassifier),
    ("model.loss", nn.Module),
)
def test_a_bug_in_a_constructor_keeps_its_traceback(option, base, monkeypatch):
    buggy = type(
        "Buggy", (base,), {"__init__": fail, "__del__": lambda self: None, "__module__": __name__}
    )
    monkeypatch.setitem(globals(), buggy.__name__, buggy)
    network = [] if option == "model" else SLIM
    with pytest.raises(ValueError, match="a bug of mine") as caught:
        FitCLI([FLOWERS, *network, f"--{option}={__name__}.Buggy"])
    assert explain(caught.value) is None
    assert f'File "{__file__}", line' in "".join(traceback.format_exception(caught.value))


class OwnFinder(LearningRateFinder):
    """A finder of the user's is one, too."""


EARLY = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/acc"
OPTIMIZER = "--model.optimizer"


@cases(
    "options reason",
    (EARLY, "val/accuracy"),
    (EARLY.replace("EarlyStopping", "ModelCheckpoint"), "val/accuracy"),
    ("--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/acc", "val/accuracy"),
    (f"{EARLY} --trainer.callbacks.mode=b", "`mode`"),
    ("--trainer.limit_test_batches=0.01", "limit_test_batches"),
    ("--trainer.limit_train_batches=0.01", "limit_train_batches"),
    (
        "--trainer.callbacks+=StochasticWeightAveraging --trainer.callbacks.swa_lrs=0.1",
        "a run with StochasticWeightAveraging could not resume; average the weights with",
    ),
    ("--trainer.callbacks+=BatchSizeFinder", "use Lightning's Tuner"),
    (f"--trainer.callbacks+={__name__}.OwnFinder", "with OwnFinder could not resume"),
    ("--trainer.callbacks+=BackboneFinetuning", "BackboneFinetuning could not resume; train the"),
    (
        "--trainer.callbacks+=ModelPruning --trainer.callbacks.pruning_fn=l1_unstructured",
        "ModelPruning could not resume; prune the weights of the finished run",
    ),
    ("--trainer.enable_checkpointing=false", "add --callbacks.best_checkpoint false --callbacks"),
    (f"{OPTIMIZER}=SGD {OPTIMIZER}.lr=-1", f"{OPTIMIZER}: SGD(lr=-1.0): Invalid learning rate: -1"),
    (f"{OPTIMIZER}=SGD {OPTIMIZER}.lr=.nan", f"{OPTIMIZER}.lr must be a finite number, got nan"),
    (f"{OPTIMIZER}=SGD {OPTIMIZER}.lr=.inf", f"{OPTIMIZER}.lr must be a finite number, got inf"),
    (f"{OPTIMIZER}=timm.optim.Adafactor", f"{OPTIMIZER}.lr must be a finite number, got None"),
    (f"{OPTIMIZER}=SGD {OPTIMIZER}.nesterov=true", "Nesterov momentum requires a momentum"),
    (
        f"{OPTIMIZER}=AdamW {OPTIMIZER}.betas=[1,2]",
        "AdamW(betas=(1.0, 2.0)): Invalid beta parameter",
    ),
    (
        f"{OPTIMIZER}=Adam {OPTIMIZER}.fused=true {OPTIMIZER}.foreach=true",
        "`fused` and `foreach` cannot be `True` together",
    ),
)
def test_what_a_trainer_an_optimizer_or_a_run_refuses_is_one_line(
    options, reason, workplace, capsys
):
    assert reason in one_line(lambda: small(*options.split()), capsys)


@pytest.mark.slow
def test_importing_the_package_has_no_side_effect():
    program = """if True:
        import gc, pkgutil, signal, sys, warnings
        import yaml, torch, torchmetrics, torchvision, jsonargparse, lightning.pytorch.cli
        from lightning.pytorch import loggers
        import matplotlib.pyplot, PIL.Image, sklearn.metrics, torch.onnx
        def state():
            yaml_state = [
                {key: str(value) for key, value in vars(cls).items() if key.startswith("yaml_")}
                for cls in (yaml.SafeLoader, yaml.SafeDumper)
            ]
            cudnn = torch.backends.cudnn
            return (
                sys.stdout, gc.isenabled(), yaml_state, PIL.Image.MAX_IMAGE_PIXELS,
                [signal.getsignal(number) for number in signal.valid_signals()],
                [filter for filter in warnings.filters if "PIL" in str(filter)],
                cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads(),
                torch.get_float32_matmul_precision(), torch.is_grad_enabled(),
            )
        before = state()
        import project
        for module in pkgutil.walk_packages(project.__path__, "project."):
            __import__(module.name)
        assert state() == before, (state(), before)
    """
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=240, check=True)


@cases(
    "module",
    f"{PACKAGE}.predict",
    f"{PACKAGE}.export",
    f"{PACKAGE}.report",
    f"{PACKAGE}.compare",
)
def test_help_imports_neither_torch_nor_lightning(module):
    program = f"""if True:
        import runpy, sys
        sys.argv = ["x", "--help"]
        try:
            runpy.run_module("{module}", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code
        assert not {{"torch", "lightning"}} & {{*sys.modules}}
    """
    subprocess.run([sys.executable, "-c", program], env=environment(), timeout=60, check=True)


MISTAKES = f"""
--trainer.max_epocs=2 -> --trainer.max_epocs=2; did you mean --trainer.max_epochs?
--modl.arch=resnet18 -> --modl.arch=resnet18; did you mean --model.arch?
--data.batch_sise=2 -> Option 'batch_sise' is not accepted; did you mean --data.batch_size
--model.optimiser=SGD -> 'optimiser' is not accepted; did you mean --model.optimizer?
--model.lr_schedular=StepLR -> 'lr_schedular' is not accepted; did you mean --model.lr_scheduler?
--model.optimizer.lrr=2 -> 'lrr' is not accepted; did you mean --model.optimizer.lr
--model={OWN_MODEL} --model.gama=2 -> 'gama' is not accepted; did you mean --model.
--model.optimizer=SGD --model.momentum=2 -> 'momentum' is not accepted; did you mean --model.optimizer.momentum?
--model.arch=nets.TinyNet --model.arch.width=8 -> 'width'
--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=x -> Option 'monitr' is not accepted
--model.optimizer.learning_rate=1 -> 'learning_rate' is not accepted; did you mean --model.optimizer.lr?
--model.optimizer=AdamW --model.optimizer.wd=1 -> 'wd' is not accepted; did you mean --model.optimizer.weight_decay?
--learning_rate=1 -> --learning_rate=1; did you mean --model.optimizer.lr?
--model.batch_size=1 -> 'batch_size' is not accepted; did you mean --data.batch_size?
--callbacks.last_checkpoint.evry_n_minutes=1 -> 'evry_n_minutes' is not accepted; see --help
--trainer.callbacks+=EarlyStoping -> error: --trainer.callbacks: there is no Callback 'EarlyStoping'; did you mean EarlyStopping?
--trainer.callbacks=[Timer, EarlyStoping] -> there is no Callback 'EarlyStoping'; did you mean EarlyStopping?
--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStoping -> did you mean EarlyStopping?
--config={{trainer: {{callbacks: [{{class_path: Tmer}}]}}}} -> there is no Callback 'Tmer'; did you mean Timer?
--config={{trainer.callbacks+: Watchdog}} -> there is no Callback 'Watchdog'; your own is my_module.MyClass
--seed=3 -> --seed=3; did you mean --seed_everything?
--lr=1 -> --lr=1; did you mean --model.optimizer.lr?
--batch-size=1 -> --batch-size=1; did you mean --data.batch_size?
--xyzzy=1 -> --xyzzy=1; see --help
--trainer.max_ep=3 -> unrecognized arguments: --trainer.max_ep=3
extra -> unrecognized arguments: extra
--data.root=x -> Option 'root' is not accepted
--model.optimizer.momentum=1 --model.optimizer=AdamW -> Option 'momentum' is not accepted
--data=FoldrDataModule -> no folder, file or ImageDataModule 'FoldrDataModule'; did you mean FolderDataModule
--data=. --data.root=x -> --data and --data.root name different images; give one of them
--data=torch.nn.Linear -> --data: 'torch.nn.Linear' is no class that derives from ImageDataModule
--data=./nowhere -> --data: there is no folder, file or ImageDataModule './nowhere'
--model.optimizer={{ -> --model.optimizer: while parsing a flow node did not find expected node content
--model.loss=my_own -> there is no Module 'my_own'; your own is my_module.MyClass
--model.optimizer=torch.optim.Adamw -> there is no Optimizer 'torch.optim.Adamw'; did you mean AdamW?
--data=FolderDataModule -> the following arguments are required: root
--data.batch_size=many -> --data.batch_size: Not of type PositiveInt
--data.batch_size=null -> --data.batch_size: Not of type PositiveInt
--model.lr_scheduler=null -> expects a function or a callable class
--model.loss=CrossEntropy --model.loss.label_smoothing=1.5 -> --model.loss.label_smoothing: Not of type ClosedUnitInterval: 1.5
--trainer.limit_val_batches=many -> --trainer.limit_val_batches: Does not
--config={{model: {{class_names: [a]}}}} -> --model.class_names cannot be given: it follows from data
--data.seed=3 -> --data.seed cannot be given: it follows from seed_everything
--config={{trainer: {{max_epocs: 3}}}} -> 'max_epocs'; did you mean --trainer.max_epochs?
--config=nowhere.yaml -> --config: 'nowhere.yaml' cannot be read: [Errno 2] No such file
--trainer.min_steps=99 -> --trainer.min_steps: must be given with --trainer.max_epochs, which is
--trainer.limit_test_batches=0 -> --trainer.limit_test_batches: must be above 0
--trainer.gradient_clip_val=-1 -> --trainer.gradient_clip_val: must be 0 or above, got -1
--trainer.check_val_every_n_epoch=-1 -> --trainer.check_val_every_n_epoch: must be above 0, got -1
--trainer.default_root_dir=s3://bucket/runs -> --trainer.default_root_dir: must be a folder of this machine
--trainer.default_root_dir=/dev/null -> Not a directory: '/dev/null/
--seed_everything=-1 -> --seed_everything: Not of type Seed
--seed_everything=true -> --seed_everything: Not of type Seed
--seed_everything=4294967296 -> --seed_everything: Not of type Seed
--name= -> --name has no value; is a variable of the command not set?
--name --data.flip=false -> argument --name: expected one argument
--data= -> --data has no value
--import= -> --import has no value
--import=my/file.py -> --import: must be a module
--data.train_transforms=my.X -> --data.train_transforms is a list: --data.train_transforms+=my.X adds
--trainer.callbacks=Timer -> --trainer.callbacks is a list: --trainer.callbacks+=Timer adds to it
--data.batch_transforms+=torchvision.transforms.v2.MixUp --data.batch_transforms.alpha=-1 -> --data.batch_transforms: MixUp(alpha=-1.0): Exp
--data.train_transforms+=torchvision.transforms.v2.RandomErasing --data.train_transforms.p=2 -> --data.train_transforms: RandomErasing(p=2.0
--trainer.strategy=lightning.pytorch.strategies.ModelParallelStrategy -> does not keep all weights on each device; use ddp
--trainer.strategy=ddp_spawn -> forked or spawned processes cannot hand their metrics back; use ddp
--trainer.accelerator=gpuu -> gpuu
--trainer.strategy=foo -> --trainer: You selected an invalid strategy name
--trainer.devices=-3 -> --trainer:
--trainer.barebones=true -> --trainer:
--data.image_size=-5 -> Not of type PositiveInt
--data.batch_size=4000 -> --data.batch_size: must be at most
--data=broken --data.image_size=16 --data.batch_size=2 -> cannot be read as images
--trainer.logger=WandbLogger -> Requirement 'wandb
--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.filename=best -> would write best.ckpt
--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.filename=best --trainer.callbacks.dirpath=runs/x/checkpoints --name=x -> best.ckpt
--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.save_last=true -> would write last.ckpt
--trainer.callbacks+=OnExceptionCheckpoint --trainer.callbacks.dirpath=x -> could not resume; it would resume within
--trainer.callbacks+=SpikeDetection -> could not resume; it cannot load what it has saved
--callbacks.last_checkpoint.every_minutes=0 -> --callbacks.last_checkpoint.every_minutes: must be above 0, got 0.0
--data.std=[1] -> --data.std: must be 3 numbers
--model.freeze=backbone -> --model.freeze needs --model.weights
--model.weights={"n" * 300} -> File name too long: 'nnn
""".strip().splitlines()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type_before_anything_is_made(
    mistake, workplace, monkeypatch, capsys
):
    args, answer = mistake.split(" -> ")
    monkeypatch.setattr(
        "project.data.flowers_drawn.draw_flowers", None
    )  # a TypeError where an image is drawn
    if "broken" in args:
        broken = make_folder(workplace / "broken", {"blue": 6, "red": 6}) / "red" / "3.jpg"
        broken.write_bytes(broken.read_bytes()[:-100])
    before = sorted(workplace.iterdir())
    assert answer in one_line(
        lambda: fit(FLOWERS, *SLIM, *ONE_CPU, "--data.batch_size=64", *re.split(" (?=--)", args)),
        capsys,
    )
    assert sorted(workplace.iterdir()) == before


@cases(
    "command args answer",
    (EvaluateCLI, [], "--checkpoint: Expected a"),
    (
        report.parser().parse_args,
        ["x", "--data.root=x"],
        "unrecognized arguments: --data.root=x; did you mean --root?",
    ),
    (check_data.parser().parse_args, [], "the following arguments are required: source"),
    (check_data.parser().parse_args, ["a.csv", "--output=a.csv"], "--output: must be a file that"),
    (EvaluateCLI, ["a.ckpt", "--output", "./a.ckpt"], "--output: must be a file that no other"),
    (check_data.parser().parse_args, [""], "an argument has no value; is a variable of the"),
    (check_data.parser().parse_args, ["x", "--output", ""], "--output has no value"),
    (report.parser().parse_args, ["x", "--import="], "--import has no value"),
    (EvaluateCLI, [""], "an argument has no value"),
)
def test_other_commands_answer_alike(command, args, answer, capsys):
    assert answer in one_line(lambda: command(args), capsys)


def test_what_watches_a_metric_that_is_there_in_its_own_mode_runs_and_its_config_runs_again(
    workplace,
):
    """``Timer`` has a default that is no plain data; EarlyStopping's mode is what the user says of the best checkpoint."""
    flags = (
        f"--monitor=val/accuracy --mode=min {EARLY}uracy"
        " --trainer.callbacks+=Timer --trainer.callbacks.duration=00:12:00:00"
        " --model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss"
        " --model.lr_scheduler_interval=step --trainer.val_check_interval=1"
    )
    small(*flags.split())
    fit("--config=runs/run/config.yaml", "--name=again", "--trainer.fast_dev_run=true")


@cases("module", "project.fit", "project.evaluate")
def test_ctrl_c_while_it_imports_leaves_no_traceback(module):
    interrupt = f"""
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind "&"
class Interrupt:
    def find_spec(self, name, *_):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("{module}", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")
