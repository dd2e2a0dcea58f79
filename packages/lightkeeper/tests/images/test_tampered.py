"""Nothing that a tampered file says chooses what is imported, run, downloaded, written or deleted."""

import os
import pickle
import shutil
import signal
import sys
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.exact import AtomicCheckpointIO, UserError
from lightkeeper.images import ImageDataModule
from lightkeeper.images._checkpoint import read_checkpoint
from lightkeeper.images._settings import limited_by
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.image_files import write_folder
from tests.toy import BEST, LAST, ToyClassifier, cases, evaluate, fit, load, one_line, stop_at

NAN = float("nan")
MODULE = "imported_by_a_checkpoint"


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """What a module that can be imported leaves behind when it is."""
    (tmp_path / f"{MODULE}.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\nclass Thing: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "mark"


def tampered(path: Path, target: Path, change) -> Path:
    """Writes a checkpoint of a real run with changes."""
    content = load(path)
    change(content)
    torch.save(content, target)
    return target


@pytest.fixture(scope="module")
def best(tmp_path_factory) -> Path:
    """The best checkpoint of a finished run."""
    root: Path = tmp_path_factory.mktemp("finished")
    fit(f"--trainer.default_root_dir={root}", "--trainer.max_steps=1")
    return root / BEST.relative_to("runs")


@pytest.fixture
def checkpoint(best, tmp_path):
    return partial(tampered, best, tmp_path / "tampered.ckpt")


THING = {"class_path": f"{MODULE}.Thing"}
INSTANTIATOR = {
    "_instantiator": "lightning.pytorch.cli.instantiate_module",
    "_class_path": "tests.toy.ToyClassifier",
}


@cases(
    "hyper_parameters kind options",
    (INSTANTIATOR | {"optimizer": THING, "lr_scheduler": THING}, {}, {}),
    ({"_instantiator": f"{MODULE}.Thing"}, THING, {}),
    ({}, {}, {"size": THING, "load": f"{MODULE}.Thing"}),
)
def test_a_checkpoint_imports_nothing(checkpoint, mark, hyper_parameters, kind, options):
    def change(content):
        content["hyper_parameters"] |= hyper_parameters
        content["about"]["data"] |= kind
        content["about"]["data"]["init_args"] |= options

    path = checkpoint(change)
    for use in (
        lambda: evaluate(f"{path}", "--data.size=32"),
        lambda: ToyClassifier.load_from_checkpoint(path),
        lambda: ImageDataModule.load_from_checkpoint(path),
    ):
        with suppress(UserError, SystemExit, TypeError):
            use()
    assert not mark.exists()
    assert MODULE not in sys.modules
    __import__(MODULE)  # would have left it
    del sys.modules[MODULE]
    assert mark.exists()


def test_a_checkpoint_that_is_compressed_is_refused_before_it_fills_the_memory(best, tmp_path):
    bomb = tmp_path / "bomb.ckpt"
    with (
        zipfile.ZipFile(best) as stored,
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as compressed,
    ):
        for name in stored.namelist():
            compressed.writestr(name, stored.read(name))
    with pytest.raises(UserError, match=r"bomb\.ckpt.* compressed"):
        read_checkpoint(bomb)


class Malicious:
    """Creates a folder when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings(
    "ignore:Detected pickle protocol"
)  # torch, of what was not written by torch.save
@pytest.mark.parametrize("write", ["zip", "legacy", "pickle"])
def test_a_pickled_payload_is_refused_wherever_a_checkpoint_is_read(best, tmp_path, write):
    path, mark = tmp_path / "payload.ckpt", tmp_path / "executed"
    content = load(best) | {"extra": Malicious(mark)}
    if write == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=write == "zip")
    for use in (
        lambda: evaluate(f"{path}"),
        lambda: ToyClassifier.load_from_checkpoint(path),
        lambda: AtomicCheckpointIO(tmp_path).load_checkpoint(path),
    ):
        with pytest.raises(UserError, match=r"payload\.ckpt' .* cannot be read safely[^\n]*$"):
            use()
    assert not mark.exists()
    careless = pickle.load if write == "pickle" else partial(torch.load, weights_only=False)
    with open(path, "rb") as file:
        careless(file)  # would have left it
    assert mark.exists()


@cases(
    "change",
    *({"mean": value} for value in (3, "abc", [0.5], {"class_path": "os.system"}, [NAN] * 3)),
    *({"crop": side, "resize": side} for side in ("32", -4, 4097)),
    *({"crop": sides, "resize": 4096} for sides in ([32], [32, 0], [32] * 3, [32, "32"], {32, 33})),
    {"crop": [32, 32], "resize": [40, 31]},
    *({"std": [0, 0, 0]}, {"std": None}, {"resize": 3}, {"fit": "stretch"}),
)
def test_preprocessing_that_cannot_be_is_an_error_of_one_line(checkpoint, change):
    for part, use, answer in (
        ("hyper_parameters", ToyClassifier.load_from_checkpoint, "preprocessing|how images are"),
        ("about", read_checkpoint, "does not name its classes and preprocessing"),
    ):

        def alter(content, part=part) -> None:
            content[part]["preprocessing"] = content[part]["preprocessing"] | change

        path = checkpoint(alter)
        with pytest.raises(UserError, match=answer):
            use(path)


def test_no_control_character_of_a_checkpoint_reaches_the_terminal(checkpoint, capsys):
    control = "a\x1b[2J\r\n\u202eb"

    def change(content) -> None:
        names = [f"{control}{name}" for name in content["about"]["class_names"]]
        content["about"]["class_names"] = content["hyper_parameters"]["class_names"] = names
        content["about"]["arch"] = control

    path = checkpoint(change)
    assert r"a\x1b[2J\r\n\u202ebdark" in one_line(lambda: evaluate(f"{path}"), capsys)


def test_evaluate_does_not_follow_a_link_beside_the_checkpoint(checkpoint, tmp_path):
    (tmp_path / "victim").write_text("theirs")
    output = tmp_path / "tampered.test.metrics.json"
    output.symlink_to(tmp_path / "victim")
    evaluate(f"{checkpoint(lambda content: None)}")
    assert (tmp_path / "victim").read_text() == "theirs"
    assert not output.is_symlink()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    root: Path = tmp_path_factory.mktemp("stopped") / "runs"
    stop_at(6, f"--trainer.default_root_dir={root}")
    return root


@pytest.fixture
def resumed(stopped, workplace) -> Path:
    """The folder with a copy of the stopped run, which goes on from its checkpoint."""
    shutil.copytree(stopped, workplace / "runs")
    LAST.with_name("previous.ckpt").unlink()  # which would be taken in place of a damaged one
    return workplace


@pytest.mark.parametrize("place", ["victim", "model.ckpt", "runs/other/best.ckpt"])
def test_a_run_that_goes_on_removes_nothing_outside_its_folder(resumed, place):
    folder, victim = resumed / LAST.parent, resumed / place
    victim.parent.mkdir(exist_ok=True)
    victim.touch() if victim.suffix else victim.mkdir()
    path, own = f"{folder}/../../../{place}", ModelCheckpoint(folder, "own", monitor="val/loss")

    def change(content) -> None:
        (best,) = [name for name in content["callbacks"] if "BestCheckpoint" in name]
        for name, worse in ((best, torch.tensor(-1.0)), (own.state_key, torch.tensor(9.0))):
            scores = dict.fromkeys(("best_model_score", "current_score", "kth_value"), worse)
            paths = dict.fromkeys(
                ("best_model_path", "kth_best_model_path", "last_model_path"), path
            )
            kept = {"dirpath": str(folder), "best_k_models": {path: worse}}
            content["callbacks"][name] = content["callbacks"][best] | scores | paths | kept

    for file in (LAST, LAST.with_name("best.ckpt")):
        tampered(file, file, change)
    fit(callbacks=[own])
    assert (resumed / "runs" / "run" / "metrics.json").exists()
    assert victim.exists()


@cases(
    "complaint change",
    (
        "momentum_buffer",
        lambda content: content["optimizer_states"][0]["state"][0].update(
            momentum_buffer=torch.zeros(1)
        ),
    ),
    (
        "optimizer_states.0.param_groups.0 has other parameters",
        lambda content: content["optimizer_states"][0]["param_groups"][0]["params"].reverse(),
    ),
    ("lr_schedulers must be", lambda content: content["lr_schedulers"].append({})),
    ("gradients must be a list", lambda content: content.update(gradients=5)),
    ("buffers.0.mean must be a tensor", lambda content: content.update(buffers=[{"mean": 0}])),
    (
        "best_model_score is missing",
        lambda content: next(
            state for name, state in content["callbacks"].items() if "BestCheckpoint" in name
        ).clear(),
    ),
    (
        "size mismatch for network.fc.bias",
        lambda content: content["state_dict"].update({"network.fc.bias": torch.zeros(2)}),
    ),
    (
        "fc.bias is no tensor of finite numbers",
        lambda content: content["state_dict"]["network.fc.bias"].fill_(NAN),
    ),
    (
        "cannot be read safely: it contains posix.mkdir",
        lambda content: content.update(extra=Malicious(Path("executed"))),
    ),
)
def test_a_run_does_not_go_on_from_what_does_not_fit(resumed, capsys, complaint, change):
    tampered(LAST, LAST, change)
    said = one_line(fit, capsys)
    assert "last.ckpt'" in said
    assert complaint in said
    assert not (resumed / "executed").exists()


def test_a_run_of_more_processes_goes_on(resumed):
    def of_two_processes(content: Any) -> None:
        content["loops"]["fit_loop"]["epoch_loop.state_dict"]["results"] = [{}, {}]
        content["metric_states"] = [content["metric_states"][0], {}]

    tampered(LAST, LAST, of_two_processes)
    fit()
    assert (resumed / "runs" / "run" / "metrics.json").exists()


def test_a_large_fraction_among_a_networks_arguments_is_no_size():
    options = {"class_names": ["a", "b"], "arch_args": {"theta": 1e6}}
    with limited_by({"weight": torch.zeros(2, 3)}, options):
        pass


def test_a_regular_expression_of_a_checkpoint_does_not_search_for_ever(
    tmp_path, workplace, monkeypatch
):
    root = write_folder(tmp_path / "photos", {"x" * 60: 8, "y" * 60: 8})
    fit("--data=tests.stubs.Files", f"--data.root={root}", "--trainer.max_steps=1")
    monkeypatch.setattr("lightkeeper.images._layout._SEARCH_SECONDS", 0.1)
    before = signal.getsignal(signal.SIGVTALRM)
    for option in ("group", "label_from"):
        path = tampered(
            BEST,
            Path("slow.ckpt"),
            lambda content, option=option: content["about"]["data"]["init_args"].update(
                {option: "(x+x+)+z"}  # about 2^60 ways to fail
            ),
        )
        for use in (
            lambda path=path: evaluate(f"{path}"),
            lambda path=path: ImageDataModule.load_from_checkpoint(path).setup("test"),
        ):
            with pytest.raises(
                UserError, match=rf"^(--data\.)?{option}: '\(x\+.* takes too long to search in"
            ):
                use()
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
