"""Nothing that a tampered file in a run's folder says is run, written or removed when the run is resumed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from project.engine.errors import UserError
from project.engine.run.checkpoint import AtomicCheckpointIO
from project.engine.run.folder import RunFolder
from tests.engine.run.test_checkpoint import Malicious
from tests.small import load, one_line, small, stop_at

NAN = float("nan")
LAST = Path("runs/run/checkpoints/last.ckpt")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """The folder of a run that was stopped in its second epoch."""
    place: Path = tmp_path_factory.mktemp("stopped")
    stop_at(6, f"--trainer.default_root_dir={place / 'runs'}")
    return place / "runs"


@pytest.fixture
def tamper(stopped, workplace) -> Any:
    """Changes the checkpoint that a copy of the stopped run resumes from."""
    shutil.copytree(stopped, workplace / "runs")

    def write(change: Any, path: Path = LAST) -> None:
        content = load(path)
        change(content)
        torch.save(content, path)

    return write


def test_a_run_that_goes_on_removes_nothing_outside_its_folder(tamper, workplace):
    victims = [workplace / "victim", workplace / "victim.ckpt", workplace / "runs" / "other" / "best.ckpt"]
    for victim in victims:
        victim.mkdir(parents=True)
        (victim / "file").touch()
    (workplace / "model.ckpt").touch()
    victims.append(workplace / "model.ckpt")

    def change(content: Any) -> None:
        (name,) = [name for name in content["callbacks"] if "BestCheckpoint" in name]
        state, folder = content["callbacks"][name], str(LAST.parent.resolve())
        worse = torch.tensor(-1.0)
        places = [str(victims[0]), f"{folder}/../../../victim", f"{folder}/../../../model.ckpt", *map(str, victims)]
        state |= {"dirpath": folder, "kth_value": worse, "best_model_score": worse, "current_score": worse}
        state |= {"kth_best_model_path": places[1], "best_model_path": places[2], "last_model_path": str(victims[0])}
        state["best_k_models"] = dict.fromkeys(places, worse)
        own = "ModelCheckpoint{'monitor': 'val/loss', 'mode': 'min', 'every_n_train_steps': 0, 'every_n_epochs': 1,"
        path = f"{folder}/../../../model.ckpt"
        content["callbacks"][f"{own} 'train_time_interval': None}}"] = {
            **{key: state[key] for key in ("dirpath", "last_model_path")},
            **dict.fromkeys(("best_model_score", "current_score", "kth_value"), torch.tensor(9.0)),
            **dict.fromkeys(("best_model_path", "kth_best_model_path"), path),
            "best_k_models": {path: torch.tensor(9.0)},
        }

    tamper(change)
    small(callbacks=[ModelCheckpoint(LAST.parent.resolve(), "own", monitor="val/loss")])
    assert (workplace / "runs" / "run" / "metrics.json").exists()
    assert all(victim.exists() for victim in victims)
    assert all((victim / "file").exists() for victim in victims[:3])


def test_files_written_elsewhere_can_be_replaced(tmp_path):
    io = AtomicCheckpointIO(tmp_path / "run")
    io.save_checkpoint({}, tmp_path / "elsewhere" / "old.ckpt")
    for name in ("elsewhere/theirs.ckpt", "run/own.ckpt", "run/config.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "run" / "link.ckpt").symlink_to(tmp_path / "elsewhere" / "theirs.ckpt")
    for name in ("elsewhere/old", "elsewhere/theirs", "run/own", "run/link"):
        io.remove_checkpoint(tmp_path / f"{name}.ckpt")
    for name in ("run/config.yaml", "run"):
        io.remove_checkpoint(tmp_path / name)
    assert {path.name for path in tmp_path.rglob("*.*")} == {"theirs.ckpt", "config.yaml", "link.ckpt"}


CHANGES = {  # to last.ckpt or best.ckpt, and what the line says
    "optimizer": (
        lambda c: c["optimizer_states"][0]["state"][0].update(momentum_buffer=torch.zeros(1)),
        "momentum_buffer",
    ),
    "shape": (lambda c: c["state_dict"].update({"network.fc.bias": torch.zeros(2)}), "fc.bias has the shape (2,)"),
    "nan": (lambda c: c["state_dict"]["network.fc.bias"].fill_(NAN), "fc.bias has values that are not finite"),
    "pickle": (lambda c: c.update(extra=Malicious(Path("executed"))), "is damaged or cannot be read safely"),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [*(("last", case) for case in list(CHANGES)[:3]), *(("best", case) for case in list(CHANGES)[1:])],
)
def test_a_run_does_not_go_on_from_what_does_not_fit(tamper, workplace, capsys, monkeypatch, name, case):
    change, complaint = CHANGES[case]
    tamper(change, LAST.with_name(f"{name}.ckpt"))
    with monkeypatch.context() as patch:  # the best one stays the best
        patch.setattr("project.engine.training.best_checkpoint.BestCheckpoint.check_monitor_top_k", lambda *_: False)
        said = one_line(small, capsys)
    assert f"{name}.ckpt'" in said
    assert complaint in said
    assert not (workplace / "executed").exists()


@pytest.mark.parametrize(
    "name", ["config.yaml", ".metrics.partial.json", ".lock", "checkpoints/last.ckpt", "checkpoints"]
)
def test_a_link_that_leads_out_of_a_run_is_not_followed(tmp_path, name):
    run, victim = RunFolder(tmp_path / "runs", "run"), tmp_path / "victim"
    if name == "checkpoints":
        victim.mkdir()
    else:
        victim.write_text("theirs")
    (run.path / name).parent.mkdir(parents=True)
    (run.path / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name}' is a link that leads out of the run's folder"):
        run.create()
    assert victim.is_dir() or victim.read_text() == "theirs"
