"""Loggers and plugins of the user's are added to a run's own, write into its folder, and resume where it does."""

import csv
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from jsonargparse import Namespace
from lightning.pytorch.loggers import Logger, WandbLogger

from project.engine.errors import UserError
from project.engine.run.loggers import RunCSVLogger
from project.engine.run.placing import placed
from project.engine.run.tensorboard import RunLogger
from tests.small import load, require_same_end, small, stop_at
from tests.stress import outcome
from tests.test_fit import events

RUN = Path("runs/run")
LAST = RUN / "checkpoints" / "last.ckpt"
LOGGED = RUN / "csv_logs" / "metrics.csv"


def rows(path):
    """The rows of a CSV file, without what is never the same."""
    with open(path, newline="") as file:
        return [
            {name: value for name, value in row.items() if "per_second" not in name} for row in csv.DictReader(file)
        ]


def files(folder):
    """The names of files, without TensorBoard's and plots."""
    found = {path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".png"}
    return {name for name in found if "tfevents" not in name}


class Listener(logging.Handler):
    def __init__(self):
        super().__init__()
        self.heard = []

    def emit(self, record):
        self.heard.append(record.getMessage())


def test_a_csv_file_asynchronous_checkpoints_and_a_profile_are_added_and_a_stopped_run_goes_on(
    workplace, tmp_path, monkeypatch
):
    added = ["--trainer.logger=CSVLogger", "--trainer.plugins=AsyncCheckpointIO", "--trainer.profiler=simple"]
    listener = Listener()
    logging.getLogger("lightning.pytorch.profilers").addHandler(listener)
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    small(*added)
    logging.getLogger("lightning.pytorch.profilers").removeHandler(listener)
    assert any("FIT Profiler Report" in text for text in listener.heard)
    assert files(Path()) == {"config.yaml", "metrics.json", "metrics.csv", "best.ckpt", "last.ckpt"}
    whole, expected = rows(LOGGED), outcome(RUN)
    scalars = events(RUN)
    for tag in ("train/loss", "val/accuracy", "test/f1"):
        logged = [(int(row["step"]), pytest.approx(float(row[tag]), rel=1e-6)) for row in whole if row[tag]]
        assert [(event.step, event.value) for event in scalars.Scalars(tag)] == logged
    loggers = yaml.safe_load((RUN / "config.yaml").read_text())["trainer"]["logger"]
    assert loggers["class_path"].endswith(".CSVLogger")
    assert loggers["init_args"]["save_dir"] == "."  # so that the config leads to another run's folder in another run

    (tmp_path / "broken").mkdir()
    monkeypatch.chdir(tmp_path / "broken")
    stop_at(6, *added)
    kept = LOGGED.read_text()
    assert kept.count("\n") > 6
    LOGGED.write_text(kept + kept.splitlines()[-1] + "\n1,2")  # as a kill after the checkpoint leaves it
    small(*added)
    require_same_end(RUN, expected)
    assert rows(LOGGED) == whole


def spec(kind, **arguments):
    return Namespace(class_path=f"lightning.pytorch.loggers.{kind}", init_args=Namespace(**arguments))


class OwnLogger(Logger):
    """Stands for a class of the user's."""


class RecordingLogger(OwnLogger):
    """Records what it is given."""

    name, version = "own", ""
    settings: ClassVar[list[dict[str, Any]]] = []
    rows: ClassVar[list[dict[str, Any]]] = []

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.settings.append(params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({"step": step, **{name: value for name, value in metrics.items() if "per_sec" not in name}})


def test_a_logger_of_the_users_gets_settings_once_and_each_metric_once(workplace, monkeypatch):
    flags = [f"--trainer.logger={__name__}.RecordingLogger", "--model.loss.label_smoothing=0.2"]
    settings, whole = RecordingLogger.settings, RecordingLogger.rows
    small(*flags, "--trainer.default_root_dir=whole")
    assert len(settings) == 1
    known = {"arch": "resnet18", "loss.label_smoothing": 0.2, "optimizer.lr": 0.1, "batch_size": 16, "max_epochs": 2}
    assert {name: settings[0][name] for name in known} == known
    assert all(isinstance(value, bool | int | float | str) for value in settings[0].values())
    scalars = events(Path("whole/run"))
    for tag in ("train/loss", "val/accuracy", "test/f1"):
        logged = [(row["step"], pytest.approx(row[tag], rel=1e-6)) for row in whole if tag in row]
        assert [(event.step, event.value) for event in scalars.Scalars(tag)] == logged
    expected = list(whole)
    whole.clear()
    stop_at(6, *flags)
    small(*flags)
    assert len(settings) == 2
    assert whole == expected


def history(database: Path) -> tuple[dict[str, str], dict[str, list[tuple[int, float]]]]:
    """The settings of the only run in MLflow's database, and the steps and values of each metric."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{database}")
    experiments = [found for found in client.search_experiments() if found.name == "lightning_logs"]
    (run,) = client.search_runs([found.experiment_id for found in experiments])
    names = [name for name in run.data.metrics if "per_sec" not in name]
    metrics = {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] for name in names}
    return run.data.params, metrics


@pytest.mark.skipif(
    not (find_spec("mlflow") and find_spec("sqlalchemy")), reason="mlflow is not installed, or without SQLAlchemy"
)
@pytest.mark.filterwarnings("ignore")  # its own
def test_mlflow_continues_one_run_in_the_runs_folder_without_losing_or_doubling_metrics(workplace):
    small("--trainer.logger=MLFlowLogger", "--trainer.default_root_dir=whole")
    settings, whole = history(Path("whole/run/mlruns/mlflow.db"))
    assert (settings["arch"], settings["optimizer.lr"]) == ("resnet18", "0.1")
    assert [step for step, _ in whole["train/loss"]] == list(range(8))
    assert "test/accuracy" in whole

    flags = ["--trainer.logger=MLFlowLogger", "--trainer.logger.tracking_uri=sqlite:///own.db"]
    stop_at(6, *flags)
    kept = LAST.read_bytes()
    stop_at(8, *flags)
    LAST.write_bytes(kept)  # as where a kill comes after more was logged
    small(*flags)
    assert history(RUN / "own.db") == (settings, whole)
    assert {path.name for path in workplace.iterdir()} == {"runs", "whole"}


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_continues_one_run_offline(workplace):
    import wandb

    flags = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"]
    stop_at(6, *flags)
    assert wandb.run.config["optimizer.lr"] == 0.1
    wandb.finish()
    cli = small(*flags)
    (logger,) = (found for found in cli.trainer.loggers if isinstance(found, WandbLogger))
    assert logger.experiment.summary["test/accuracy"] == pytest.approx(cli.model.results["test"].accuracy)
    wandb.finish()
    names = [path.name for path in (RUN / "wandb").glob("offline-run-*")]
    assert len(names) in (1, 2)  # two may start in one second
    assert {name.rpartition("-")[2] for name in names} == {*load(LAST)["service_runs"]["WandbLogger"]}
    assert {path.name for path in workplace.iterdir()} == {"runs"}


def test_services_continue_the_run_that_a_checkpoint_names_unless_the_user_names_one(tmp_path):
    places = {"save_dir": "./mlruns", "tracking_uri": None, "artifact_location": None}
    wandb, mlflow = spec("WandbLogger", version=None, id=None), spec("MLFlowLogger", run_id=None, **places)
    known = {"WandbLogger": ["ab12-x"], "MLFlowLogger": ["0" * 32]}
    placed_wandb, placed_mlflow = placed([wandb, mlflow], tmp_path, known)
    assert placed_wandb.init_args.version == "ab12-x"
    assert placed_mlflow.init_args.run_id == "0" * 32
    assert placed_mlflow.init_args.tracking_uri == f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    assert placed(spec("WandbLogger", version=None, id="mine"), tmp_path, known).init_args.version is None
    for odd in ("../../x", "", "a/b", 3, None, "x" * 65):
        assert placed(wandb, tmp_path, {"WandbLogger": [odd]}).init_args.version is None
        assert placed(wandb, tmp_path, {"WandbLogger": odd}).init_args.version is None


def test_two_loggers_of_one_class_continue_a_run_each(tmp_path):
    first, named, last = (spec("WandbLogger", version=None, id=given) for given in (None, "mine", None))
    known = {"WandbLogger": ["a", "mine", "c"]}
    assert [logger.init_args.version for logger in placed([first, named, last], tmp_path, known)] == ["a", None, "c"]


def test_two_loggers_do_not_write_the_same_file(tmp_path):
    def csv_logger(name: str) -> Namespace:
        return spec("CSVLogger", save_dir=".", name=name, version=None)

    placed([csv_logger("lightning_logs"), csv_logger("mine")], tmp_path)
    with pytest.raises(UserError, match="two loggers would write the same file"):
        placed([csv_logger("lightning_logs"), csv_logger("lightning_logs")], tmp_path)


def test_places_are_within_the_runs_folder_unless_they_are_absolute(tmp_path):
    run = tmp_path / "run"
    csv_logger = spec("CSVLogger", save_dir=".", name="lightning_logs", version=None)
    wandb, elsewhere = spec("WandbLogger", save_dir="."), spec("CometLogger", save_dir="/comet")
    own = Namespace(class_path=f"{__name__}.OwnLogger", init_args=Namespace(project="x"))
    placed_csv, placed_wandb, same, placed_own = placed([csv_logger, wandb, elsewhere, own], run)
    assert placed_csv.init_args == Namespace(save_dir=str(run), name="csv_logs", version="")
    assert placed_wandb.init_args.save_dir == str(run)
    assert same.init_args.save_dir == "/comet"
    assert placed_own == own
    assert csv_logger.init_args.save_dir == "."  # what the config says is left to other runs
    assert [placed(value, run) for value in (None, True, False)] == [None, True, False]


def test_tensorboards_files_lie_in_the_runs_folder_however_that_is_spelt(tmp_path):
    run = tmp_path / "run"

    def tensorboard(save_dir: str) -> Namespace:
        return spec("TensorBoardLogger", save_dir=save_dir, name="lightning_logs", version=None, sub_dir=None)

    for place in (".", "", str(run), "x/..", "../run"):
        logger = RunLogger(**vars(placed(tensorboard(place), run).init_args))
        assert Path(logger.log_dir).resolve() == run
    for place in ("tb", "..", str(tmp_path), "~", "$HOME"):
        with pytest.raises(
            UserError, match=r"^--trainer\.logger: TensorBoard's files lie in the run's folder; leave save_"
        ):
            placed(tensorboard(place), run)


def test_rows_are_kept_rewound_and_widened(tmp_path):
    logger = RunCSVLogger(tmp_path, "", "")
    for step in range(3):
        logger.log_metrics({"a": step}, step)
    assert (logger.rows(), logger.key(tmp_path)) == (3, "metrics.csv")
    resumed = RunCSVLogger(tmp_path, "", "")
    resumed.rewind(2)
    resumed.log_metrics({"b": 7}, 2)
    resumed.finalize("success")
    assert rows(tmp_path / "metrics.csv") == [
        {"a": "0", "b": "", "step": "0"},
        {"a": "1", "b": "", "step": "1"},
        {"a": "", "b": "7", "step": "2"},
    ]
