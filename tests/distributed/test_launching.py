"""One command, started in each way that docs/launching.md shows, does the same work and speaks once."""

import functools
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.distributed.processes import LOOPBACK, Finished, environment, free_port, run, run_together, torchrun
from tests.distributed.tiny import TINY, read

PLOTS = ["curves.png", "confusion_matrix.png", "classes.png"]
FIT = [sys.executable, "-m", "project.fit", *TINY]


class Launched(NamedTuple):
    """A run that was started in one of the ways."""

    place: Path
    processes: list[Finished]

    @property
    def out(self) -> str:
        return "".join(process.out for process in self.processes)

    @property
    def err(self) -> str:
        return "".join(process.err for process in self.processes)

    @property
    def run(self) -> Path:
        (run,) = (self.place / "runs").iterdir()
        return run


def by_lightning(place: Path) -> list[Finished]:
    """Without a launcher: Lightning starts the further processes."""
    return [run([*FIT, "--trainer.devices=2"], place)]


def by_torchrun(place: Path) -> list[Finished]:
    """torchrun on one machine."""
    return [run(torchrun(2, "project.fit", *TINY, "--trainer.devices=2"), place)]


def by_slurm(place: Path) -> list[Finished]:
    """The variables that srun gives two tasks on one node, and two processes."""
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "flowers",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [environment(**job, SLURM_PROCID=str(task), SLURM_LOCALID=str(task)) for task in range(2)]
    return run_together([([*FIT, "--trainer.devices=2"], task) for task in tasks], place)


def by_two_machines(place: Path) -> list[Finished]:
    """torchrun on two machines: network namespaces, each with a host name and an interface of its own."""
    with two_machines(place) as machines:
        options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=machine-a:29500"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "project.fit", *TINY]
        command += ["--trainer.num_nodes=2", "--trainer.devices=1"]
        commands = [
            ([*machine, *command], environment(GLOO_SOCKET_IFNAME=interface)) for interface, machine in machines.items()
        ]
        return run_together(commands, place)


@contextmanager
def two_machines(place: Path) -> Iterator[dict[str, list[str]]]:
    """Joins two network namespaces; yields by interface what runs a command in each."""
    names = [f"project-{os.getpid()}-{letter}" for letter in "ab"]
    interfaces = [f"pr{os.getpid() % 1_000_000}{letter}" for letter in "ab"]
    addresses = ["10.231.47.1", "10.231.47.2"]
    hosts = place / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.231.47.1 machine-a\n10.231.47.2 machine-b\n")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", interfaces[0], "type", "veth", "peer", interfaces[1], "netns", names[1])
        for name, interface, address in zip(names, interfaces, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            for device in (interface, LOOPBACK):
                ip("-n", name, "link", "set", device, "up")
        script = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
        shell = ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", str(hosts)]
        yield {
            interface: ["ip", "netns", "exec", name, *shell, host]
            for interface, name, host in zip(interfaces, names, ("machine-a", "machine-b"), strict=True)
        }
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=10)


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=10)


@functools.cache
def why_no_namespaces() -> str | None:
    """Why two machines cannot be made here."""
    if not (shutil.which("ip") and shutil.which("unshare")):
        return "needs iproute2's `ip` and util-linux's `unshare`"
    name = f"project-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "tryout", "type", "veth")
        subprocess.run(
            ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "true"],
            check=True,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (subprocess.SubprocessError, OSError) as error:
        reason = getattr(error, "stderr", None) or error
        return f"network namespaces cannot be made here ({reason}); it takes root"
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=10)
    return None


WAYS = {
    "lightning": by_lightning,
    "torchrun": by_torchrun,
    "slurm": by_slurm,
    "two machines": by_two_machines,
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Any:
    """Starts the run in a way, once."""

    @functools.cache
    def launch(way: str) -> Launched:
        place: Path = tmp_path_factory.mktemp(way.replace(" ", "-"))
        processes = WAYS[way](place)
        assert all(process.code == 0 for process in processes), "\n".join(map(str, processes))
        return Launched(place, processes)

    return launch


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("torchrun", "slurm", "two machines")]


@pytest.fixture(params=["lightning", *SLOW])
def way(request, launched) -> Launched:
    if request.param == "two machines" and (reason := why_no_namespaces()):
        pytest.skip(reason)
    return launched(request.param)


def test_every_way_counts_every_image_once(way):
    found = read(way.run / "metrics.json")
    for split, size in {"val": 25, "test": 27}.items():
        assert found[split]["total"] == size
        assert sum(map(sum, found[split]["confusion_matrix"])) == size


@pytest.mark.parametrize("way", SLOW, indirect=True)
def test_every_way_leads_to_the_same_metrics(way, launched):
    found, expected = (read(one.run / "metrics.json") for one in (way, launched("lightning")))
    for split in ("val", "test"):
        assert found[split].pop("loss") == pytest.approx(expected[split].pop("loss"), rel=1e-5)
        assert found[split] == expected[split]


def test_every_way_fills_one_folder_even_without_a_name(way):
    files = Counter(path.name for path in way.run.rglob("*") if path.is_file() and "tfevents" not in path.name)
    assert files == dict.fromkeys(["config.yaml", "metrics.json", "metrics.csv", "best.ckpt", "last.ckpt", *PLOTS], 1)
    writers = {path.name.split(".")[-2] for path in way.run.glob("events.out.tfevents.*")}
    assert len(writers) == 1  # the number of a process


def test_every_way_speaks_once(way):
    assert way.err.count("training resnet9_slim") == 1
    assert "on 2 x cpu" in way.err
    for line in ("best checkpoint", "macro F1", "tensorboard --logdir"):
        assert way.out.count(line) == 1
    machines = len(way.processes) if "machine" in way.place.name else 1
    assert way.out.count("downloading") == 3 * machines  # before there is a folder, before training and before the test
    assert [line for line in way.err.splitlines() if "Warning" in line or "warn" in line] == []


@pytest.mark.slow
def test_measuring_on_three_processes_finds_the_counts_of_training_on_two(launched):
    trained = launched("lightning")
    flags = [f"{trained.run / 'checkpoints' / 'best.ckpt'}", "--output=metrics.json", TINY[0]]
    command = torchrun(3, "project.evaluate", *flags, "--trainer.accelerator=cpu", "--trainer.devices=3")
    finished = run(command, trained.place)
    assert finished.code == 0, str(finished)
    expected, found = read(trained.run / "metrics.json")["test"], read(trained.place / "metrics.json")
    for name in ("correct", "total", "top5_correct", "confusion_matrix"):
        assert found[name] == expected[name], name
    assert finished.out.count("written to") == 1


def errors(finished: Finished) -> list[str]:
    return [line for line in finished.err.splitlines() if line.startswith("error: ")]


@pytest.mark.slow
def test_threads_are_those_that_were_asked_for_in_several_processes_too(tmp_path):
    unset = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    command = [*FIT, "--trainer.devices=2", "--trainer.max_steps=1", "--threads=3"]
    (finished,) = run_together([(command, unset)], tmp_path)
    assert finished.code == 0, str(finished)
    assert finished.err.count("3 threads; loader workers: none") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--data.batch_size=15"], "--data.batch_size must be a multiple of"),
        (["--trainer.sync_batchnorm=true"], "--trainer.sync_batchnorm: torch synchronises BatchNorm on GPUs only"),
    ],
    ids=["after the processes start", "before"],
)
def test_an_error_is_one_line_printed_once(flags, complaint, tmp_path):
    finished = run([*FIT, "--trainer.devices=2", *flags], tmp_path)
    assert finished.code == 2, str(finished)
    assert [line.startswith(f"error: {complaint}") for line in errors(finished)] == [True]
    assert finished.err.count("\n") == 1, finished.err


@pytest.mark.slow
def test_where_the_first_process_fails_alone_none_is_left(tmp_path):
    hang = "--trainer.callbacks+=tests.distributed.callbacks.FirstFails"
    finished = run([*FIT, "--trainer.devices=2", hang], tmp_path)
    assert finished.code == 2, str(finished)
    assert errors(finished) == ["error: only the first one fails"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "busy").read_text()), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--data.batch_size=15"], "--data.batch_size must be"),
        pytest.param(["--trainer.devices=1"], "2 processes were started, but", marks=pytest.mark.slow),
        pytest.param(["--trainer.sync_batchnorm=true"], "--trainer.sync_batchnorm", marks=pytest.mark.slow),
        pytest.param(["--trainer.devises=3"], "there is no option '--trainer.devises'", marks=pytest.mark.slow),
    ],
)
def test_an_error_is_printed_once_under_torchrun(flags, complaint, tmp_path):
    finished = run(torchrun(2, "project.fit", *TINY, "--trainer.devices=2", *flags), tmp_path)
    assert finished.code != 0
    assert [line.startswith(f"error: {complaint}") for line in errors(finished)] == [True], str(finished)
    assert "[rank" not in finished.err


@pytest.mark.slow
def test_what_the_first_process_alone_finds_wrong_is_all_that_is_said(tmp_path):
    (tmp_path / "images" / "red").mkdir(parents=True)
    (tmp_path / "images" / "blue").mkdir()
    for color in ("red", "blue"):
        for number in range(8):
            (tmp_path / "images" / color / f"{number}.jpg").write_bytes(b"not an image")
    flags = ["--data=FolderDataModule", "--data.root=images", "--data.batch_size=4", "--trainer.devices=2"]
    finished = run([*FIT[:3], *flags, "--trainer.accelerator=cpu"], tmp_path)
    assert finished.code == 2, str(finished)
    assert ["16 of 16 files cannot be read" in line for line in errors(finished)] == [True], str(finished)
    assert "Traceback" not in finished.err
