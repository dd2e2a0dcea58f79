"""A mistake is answered in one line that names what is meant, the cheap before the expensive, and leaves no run folder."""

from types import SimpleNamespace
from typing import cast

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy

from project import check_data, report
from project.engine.cli.command import require_supported
from project.engine.errors import UserError, listed
from project.evaluate import EvaluateCLI
from tests.conftest import cases, fit, make_folder
from tests.engine.cli.test_command_line import OWN_MODEL, parse, split
from tests.small import one_line, small

MISTAKES = f"""
--trainer.max_epocs=2 -> --trainer.max_epocs=2; did you mean --trainer.max_epochs?
--modl.arch=resnet18 -> --modl.arch=resnet18; did you mean --model.arch?
--data.batch_sise=2 -> Option 'batch_sise' is not accepted; did you mean --data.batch_size
--model.optimizer.lrr=2 -> 'lrr' is not accepted; did you mean --model.optimizer.lr
--model={OWN_MODEL} --model.gama=2 -> 'gama' is not accepted; did you mean --model.gamma?
--model.momentum=2 -> 'momentum' is not accepted; did you mean --model.optimizer.momentum?
--model.arch=nets.TinyNet --model.arch.width=8 -> 'width'
--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=x -> Option 'monitr' is not accepted
--lr=1 -> --lr=1; did you mean --model.optimizer.lr?
--batch-size=1 -> --batch-size=1; did you mean --data.batch_size?
--xyzzy=1 -> --xyzzy=1; see --help
--trainer.max_ep=3 -> unrecognized arguments: --trainer.max_ep=3
extra -> unrecognized arguments: extra
--data.root=x -> Option 'root' is not accepted
--model.optimizer.momentum=1 --model.optimizer=AdamW -> Option 'momentum' is not accepted
--data=FlowrsDataModule -> no folder, file or ImageDataModule 'FlowrsDataModule'; did you mean Flowers
--data=torch.nn.Linear -> --data: there is no folder, file or ImageDataModule 'torch.nn.Linear'
--data=./nowhere -> --data: there is no folder, file or ImageDataModule './nowhere'
--model.optimizer={{ -> --model.optimizer, line 1: expected the node content
--model.loss=my_own -> there is no Module 'my_own'; your own is my_module.MyClass
--model.optimizer=torch.optim.Adamw -> there is no Optimizer 'torch.optim.Adamw'; did you mean AdamW?
--data=FolderDataModule -> the following arguments are required: root
--data.batch_size=many -> "batch_size": Not of type PositiveInt
--model.loss.label_smoothing=1.5 -> "label_smoothing": Not of type ClosedUnitInterval: 1.5
--trainer.limit_val_batches=many -> "trainer.limit_val_batches": Does not
--config={{model: {{class_names: [a]}}}} -> --model.class_names cannot be given: it follows from data
--data.seed=3 -> --data.seed cannot be given: it follows from seed_everything
--config={{trainer: {{max_epocs: 3}}}} -> 'max_epocs'; did you mean --trainer.max_epochs?
--config=nowhere.yaml -> --config: 'nowhere.yaml' cannot be read: [Errno 2] No such file
--trainer.limit_val_batches=0 -> --trainer.limit_val_batches must be above 0
--trainer.default_root_dir=s3://bucket/runs -> --trainer.default_root_dir must be a folder of this machine
--trainer.barebones=true -> Logging can impact raw speed
--seed_everything=-1 -> "seed": Not of type NonNegativeInt
--trainer.strategy=ddp_spawn -> forked or spawned processes cannot hand their metrics back; use ddp
--trainer.accelerator=gpuu -> gpuu
--data.batch_size=4000 -> --data.batch_size must be at most
--data=broken --data.image_size=16 --data.batch_size=2 -> cannot be read as images
--trainer.logger=WandbLogger -> Requirement 'wandb
--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.filename=best -> would write best.ckpt
--callbacks.last_checkpoint.every_minutes=0 -> "every_minutes": Not of type PositiveFloat
--data.std=[0,1,1] -> --data.std
--model.freeze=backbone -> --model.freeze needs --model.weights
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
    usual = ["--trainer.devices=1", "--trainer.accelerator=cpu", "--data.batch_size=64"]
    assert answer in one_line(lambda: fit(*usual, *split(args)), capsys)
    assert sorted(workplace.iterdir()) == before


@cases(
    "text answer",
    (bytes(range(256)), "'c.yaml' cannot be read: 'utf-8' codec can't decode"),
    (b"trainer: {max_epochs: [3", "c.yaml, line 1: expected ',' or ']'"),
    (
        b"trainer: !!python/object/apply:os.system [exit]",
        "c.yaml, line 1: could not determine a constructor",
    ),
    (b"trainer:\n  max_epochs: 3\n  max_epochs: 4", "'max_epochs' is given twice"),
    (b"a: &a [x]\nb: [*a, *a]", "c.yaml, line 2: aliases are not supported"),
    (b"[" * 5000, "c.yaml cannot be read: maximum recursion depth"),
    (b"hello", "expected 'option: value', got 'hello'"),
)
def test_a_config_that_cannot_be_read_is_one_line(text, answer, workplace, capsys):
    (workplace / "c.yaml").write_bytes(text)
    assert answer in one_line(lambda: parse("--config=c.yaml"), capsys)


@cases(
    "command args answer",
    (EvaluateCLI, [], '"checkpoint": Expected a'),
    (
        report.parser().parse_args,
        ["x", "--data.root=x"],
        "unrecognized arguments: --data.root=x; did you mean --root?",
    ),
    (check_data.parser().parse_args, [], "the following arguments are required: data"),
)
def test_other_commands_answer_alike(command, args, answer, capsys):
    assert answer in one_line(lambda: command(args), capsys)


def test_a_strategy_that_shards_the_weights_is_refused():
    with pytest.raises(
        UserError, match="FSDPStrategy does not keep all weights on each device; use ddp"
    ):
        require_supported(cast(Trainer, SimpleNamespace(strategy=FSDPStrategy())))


@cases(
    "names options text",
    ("", [3], "none"),
    ("a", [3], "a"),
    ("abc", [3], "a, b and c"),
    ("abcd", [3], "a, b, c and 1 more"),
    ("abc", [], "a, b and c"),
    (range(2000), [2], "0, 1 and 1,998 more"),
    (["a\x1b[2J", "b\n"], [3], "a\\x1b[2J and b\\n"),
    ("abc", [None, "or"], "a, b or c"),
    ("abc", [2, "or"], "a, b or 1 more"),
)
def test_a_list_of_names_is_joined_and_shortened(names, options, text):
    assert listed(names, *options) == text


def test_what_watches_a_metric_that_is_there_in_its_own_mode_runs_and_its_config_runs_again(
    workplace,
):
    """``Timer`` has a default that is no plain data; EarlyStopping's mode is what the user says of the best checkpoint."""
    early = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val/accuracy"
    timer = "--trainer.callbacks+=Timer --trainer.callbacks.duration=00:12:00:00"
    plateau = "--model.lr_scheduler=ReduceLROnPlateau --model.lr_scheduler.monitor=val/loss"
    steps = "--model.lr_scheduler_interval=step --trainer.val_check_interval=1"
    small(
        *("--monitor=val/accuracy", "--mode=min"),
        *f"{early} {timer} {plateau} {steps}".split(),
    )
    config = workplace / "runs" / "run" / "config.yaml"
    fit(f"--config={config}", "--name=again", "--trainer.fast_dev_run=true")
