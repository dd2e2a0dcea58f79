import json
import os
import signal
import statistics
from types import SimpleNamespace

import pytest
import torch
from matplotlib.patches import Rectangle
from PIL import Image

import benchmarks.__main__ as command
from benchmarks import plain, through_lightning
from benchmarks.jpeg_files import write_images
from benchmarks.machine import machine, machine_line
from benchmarks.plan import Files, Plan, Work, plan_for
from benchmarks.plot import benchmark_figure
from benchmarks.startup import COMMANDS, startup_variants
from benchmarks.timing import Section, StepClock, in_turns
from benchmarks.training import images_for, training_variants
from project.engine.errors import UserError
from project.fit import FitCLI
from tests.conftest import QUIET, SLIM, TINY_DATA, as_in_a_terminal, empty_figures

CPU = torch.device("cpu")
WORK = Work("something tiny", "resnet9_slim", {}, image_size=8, batch_size=4, steps=2)
COMMAND = ["-c", "import os; assert os.path.isdir('{folder}')"]
PLAN = Plan(
    Files(count=8, width=40, height=30, batch_size=2, image_size=16),
    training={"tiny": WORK},
    evaluation=WORK,
    commands={"nothing": ["-c", "pass"], "something": COMMAND},
)
NAMES = {
    "loading": ["torchvision's transforms on PIL", "ours, from files", "ours, from the cache"],
    "training_tiny": ["plain loop, as in tutorials", "plain loop, our settings", "ours, through Lightning"],
    "evaluation": ["plain loop, as in tutorials", "ours, through Lightning"],
    "start": ["nothing", "something"],
}


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = SimpleNamespace(time=0.0)
    monkeypatch.setattr("benchmarks.timing.time", SimpleNamespace(perf_counter=lambda: now.time))
    return now


def weights(model):
    return {name: value.detach() for name, value in model.network.state_dict().items()}


def test_variants_take_turns():
    order = []

    def variant(name):
        def measure(round_):
            order.append((name, round_))
            return float(len(order))

        return measure

    values = in_turns({name: variant(name) for name in "ABC"}, rounds=2)
    assert order == [("A", 0), ("B", 0), ("C", 0), ("A", 1), ("B", 1), ("C", 1)]
    assert values == {"A": [1.0, 4.0], "B": [2.0, 5.0], "C": [3.0, 6.0]}


def test_the_first_steps_are_not_counted(clock):
    steps = StepClock(warm_up=2, steps=3, device=CPU)
    for took in (100.0, 10.0, 2.0, 3.0, 1.0):
        clock.time += took
        steps.tick()
    clock.time += 50.0
    assert steps.rate(images=4) == pytest.approx(3 * 4 / 6)


def test_a_rate_needs_all_steps(clock):
    steps = StepClock(warm_up=1, steps=2, device=CPU)
    steps.tick()
    steps.tick()
    with pytest.raises(RuntimeError, match=r"only 2 of 1 \+ 2 steps"):
        steps.rate(images=1)


def test_ratios_are_those_of_each_round(clock):
    """The machine becomes slower, for all alike, and the ratios stay."""

    def variant(speed):
        def measure(round_):
            steps = StepClock(warm_up=1, steps=1, device=CPU)
            steps.tick()
            clock.time += (round_ + 1) / speed
            steps.tick()
            return steps.rate(images=1)

        return measure

    values = in_turns({"A": variant(1.0), "B": variant(2.0), "C": variant(3.0)}, rounds=3)
    section = Section("name", "title", "unit", values, pair=("C", "B"))
    assert values["A"] == pytest.approx([1, 1 / 2, 1 / 3])
    assert section.ratios("B") == pytest.approx([2, 2, 2])
    assert section.as_dict()["pair"]["ratios"] == pytest.approx([1.5, 1.5, 1.5])


def test_a_section_says_median_minimum_and_maximum():
    section = Section("name", "title", "unit", {"A": [1.0, 2.0, 4.0], "B": [8.0, 2.0, 4.0]})
    found = section.as_dict()
    assert found["variants"][1] == {
        "name": "B",
        "values": [8.0, 2.0, 4.0],
        "median": 4.0,
        "min": 2.0,
        "max": 8.0,
        "compared": {"ratios": [8.0, 1.0, 1.0], "median": 1.0, "min": 1.0, "max": 8.0},
    }
    assert " ".join(command.section_table(found).splitlines()[2].split()) == "B 4.0 2.0 to 8.0 1.00 1.00 to 8.00"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The folder with the files of a tiny benchmark."""
    folder = tmp_path_factory.mktemp("benchmark")
    threads = torch.get_num_threads()
    options = command.parse([f"--output={folder}/found.json", f"--plot={folder}/found.png", "--rounds=2"])
    with as_in_a_terminal():
        command.benchmark(options, PLAN)
    assert torch.get_num_threads() == threads
    return folder


def test_the_json_file_has_every_variant(measured):
    found = json.loads((measured / "found.json").read_text())
    assert {section["name"]: [v["name"] for v in section["variants"]] for section in found["sections"]} == NAMES
    assert (found["rounds"], found["machine"]) == (2, machine())
    assert found["seconds"] > 0


def test_the_figures_of_the_json_file_agree(measured):
    for section in json.loads((measured / "found.json").read_text())["sections"]:
        rounds = {variant["name"]: variant["values"] for variant in section["variants"]}
        bases = section["variants"][0]["values"]
        for variant in section["variants"]:
            require_ratios(variant["compared"], variant["values"], bases)
            assert len(variant["values"]) == 2
            assert 0 < variant["min"] <= variant["median"] <= variant["max"]
        assert ("pair" in section) == section["name"].startswith("training")
        if "pair" in section:
            pair = section["pair"]
            assert (pair["variant"], pair["base"]) == ("ours, through Lightning", "plain loop, our settings")
            require_ratios(pair, rounds[pair["variant"]], rounds[pair["base"]])


def require_ratios(spread, values, bases):
    expected = [value / base for value, base in zip(values, bases, strict=True)]
    assert spread["ratios"] == pytest.approx(expected)
    assert spread["median"] == pytest.approx(statistics.median(expected))
    assert (spread["min"], spread["max"]) == pytest.approx((min(expected), max(expected)))


def test_the_image_shows_every_section(measured):
    with Image.open(measured / "found.png") as image:
        assert image.format == "PNG"
    sections = json.loads((measured / "found.json").read_text())["sections"]
    figure = benchmark_figure(sections, machine_line(machine()))
    shown = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert shown == list(NAMES.values())
    for axes, section in zip(figure.axes, sections, strict=True):
        widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert widths == [variant["median"] for variant in section["variants"]]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_plain_loop_and_lightning_do_the_same_work(precision, monkeypatch):
    for module in ("benchmarks.plain", "project.fit"):
        monkeypatch.setattr(f"{module}.best_precision", lambda _: precision)
    data = images_for(WORK, CPU)
    with as_in_a_terminal():
        ours = through_lightning.train(WORK, CPU)[1]
    looped = plain.train_as_we_do(WORK, data, CPU)[1]
    torch.manual_seed(plain.SEED)
    fresh = type(looped)(data.class_names, data.preprocessing, WORK.arch, WORK.arch_args)
    torch.testing.assert_close(weights(ours), weights(looped))
    assert not torch.allclose(weights(looped)["fc.weight"], weights(fresh)["fc.weight"], atol=1e-4)


def test_ctrl_c_within_training_ends_the_benchmark(monkeypatch):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StepClock, "tick", interrupt)
    with as_in_a_terminal(), pytest.raises(KeyboardInterrupt):
        training_variants(WORK, CPU)["ours, through Lightning"](0)


def test_ctrl_c_ends_with_one_line(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_sections", interrupt)
    monkeypatch.setattr("sys.argv", ["benchmark"])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert (stop.value.code, capsys.readouterr().err) == (130, "\nstopped\n")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--output=nowhere/found.json"],
            "--output: 'nowhere/found.json' cannot be written (No such file or directory)",
        ),
        (["--plot=."], "--plot: '.' cannot be written (Is a directory)"),
        (["--rounds=0"], "--rounds must be at least 1, got 0"),
        (["--rounds=many"], "--rounds: expected"),
        (["--outptu=found.json"], "there is no option '--outptu'; did you mean --output"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_measured(args, text, workplace, monkeypatch, capsys):
    monkeypatch.setattr(command, "_sections", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr("sys.argv", ["benchmark", *args])
    with pytest.raises(SystemExit) as stop:
        command.main()
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith(f"error: {text}")


def test_earlier_figures_stay_until_there_are_new_ones(workplace, monkeypatch):
    monkeypatch.setattr(command, "_sections", lambda *_: 1 / 0)
    (workplace / "found.json").write_text("earlier")
    with pytest.raises(ZeroDivisionError):
        command.benchmark(command.parse(["--output=found.json"]), PLAN)
    assert (workplace / "found.json").read_text() == "earlier"


def test_a_command_that_fails_is_named():
    (measure,) = startup_variants({"failing": ["-c", "import sys; sys.exit('no luck')"]}).values()
    with pytest.raises(UserError, match=r"ended with code 1 and said: no luck$"):
        measure(0)


def test_the_process_ends_after_the_first_step(tmp_path, monkeypatch):
    ended: list[int] = []
    (arguments,) = [arguments for name, arguments in COMMANDS.items() if "first step" in name]
    options = [argument.format(folder=tmp_path) for argument in arguments[2:]]
    monkeypatch.setattr("benchmarks.startup.os._exit", ended.append)
    with as_in_a_terminal(), empty_figures():
        cli = FitCLI([*options, *TINY_DATA, *QUIET, *SLIM, "--trainer.max_steps=1"])
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    assert (ended, cli.trainer.global_step) == ([0], 1)


def test_images_are_as_large_as_photographs(tmp_path):
    write_images(tmp_path, count=2, width=Files().width, height=Files().height)
    files = sorted(tmp_path.glob("train/*/*.jpg"))
    assert [file.parent.name for file in files] == ["a", "b"]
    for file in files:
        assert 40_000 < file.stat().st_size < 80_000
        with Image.open(file) as image:
            assert image.size == (366, 276)


@pytest.mark.parametrize(("gigabytes", "batch_sizes"), [(8, [64, 512]), (80, [256, 1024])])
def test_a_gpu_is_given_more_to_do_as_far_as_its_memory_goes(gigabytes, batch_sizes, monkeypatch):
    memory = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: memory)
    cpu, gpu = (plan_for(torch.device(kind)) for kind in ("cpu", "cuda"))
    assert [work.batch_size for work in cpu.training.values()] == [16, 128]
    assert [work.batch_size for work in gpu.training.values()] == batch_sizes
    assert cpu.commands == gpu.commands
