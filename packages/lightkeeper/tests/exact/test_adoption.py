"""A script that begins to use the library: its hyperparameters, its masks, its earlier checkpoints."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    ResumingCSVLogger,
    ResumingTensorBoardLogger,
    StopOnNonFinite,
    UserError,
    newest_checkpoint,
)
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attribute 'network' is an instance of `nn.Module`",
    "ignore:.*exists and is not empty",
)
SAMPLES = TensorDataset(torch.arange(24.0).view(12, 2) / 24)


class Regression(LightningModule):
    mask: Tensor

    def __init__(self, network: nn.Linear, rate: float = 0.1, spoils: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = network
        self.rate = rate
        self.spoils = spoils
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.network(batch[0]).square().mean()

    def on_train_batch_end(self, *_: object) -> None:
        if self.global_step == self.spoils:
            self.network.weight.data.fill_(float("nan"))

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=self.rate, momentum=0.9)


QUIET: dict[str, Any] = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_model_summary"), False
)


def train(
    folder: Path,
    steps: int,
    path: Path | None = None,
    *callbacks: Callback,
    spoils: int = -1,
    batch_size: int = 4,
) -> Regression:
    trainer = Trainer(
        max_steps=steps,
        default_root_dir=folder,
        callbacks=[
            *(LastCheckpoint(every_n_steps=1), StopOnNonFinite(), ExactTraining(), *callbacks),
        ],
        plugins=AtomicCheckpointIO(folder),
        accelerator="cpu",
        **QUIET,
    )
    torch.manual_seed(0)
    model = Regression(nn.Linear(2, 1), spoils=spoils)
    loader = ExactDataLoader(SAMPLES, trainer, batch_size=batch_size, shuffle=True)
    trainer.fit(model, loader, ckpt_path=path)
    return model


def test_hyperparameters_that_a_file_cannot_hold_are_left_out_with_one_note(tmp_path, capsys):
    model = train(tmp_path, 4)
    note = "checkpoints leave out the hyperparameters network, which are no plain values"
    assert capsys.readouterr().err.count(note) == 1
    path = newest_checkpoint(tmp_path)
    assert path is not None
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"rate": 0.1, "spoils": -1}
    opened = Regression.load_from_checkpoint(path, network=nn.Linear(2, 1), weights_only=True)
    assert torch.equal(opened.network.weight, model.network.weight)
    assert opened.mask.tolist() == [0, float("-inf")]


def test_a_weight_that_is_not_finite_between_two_checks_is_not_saved(tmp_path):
    with pytest.raises(UserError, match=r"network\.weight has values that are not finite"):
        train(tmp_path, 4, spoils=2)
    path = newest_checkpoint(tmp_path)
    assert path is not None
    assert torch.load(path, weights_only=True)["state_dict"]["network.weight"].isfinite().all()


def test_a_run_goes_on_from_a_checkpoint_of_before_the_library(tmp_path):
    trainer = Trainer(
        max_steps=2,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        accelerator="cpu",
        **QUIET,
    )
    torch.manual_seed(0)
    model = Regression(nn.Linear(2, 1))
    trainer.fit(model, DataLoader(SAMPLES, batch_size=4))  # within an epoch
    path = tmp_path / "before.ckpt"
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=False)
    del checkpoint["hyper_parameters"]  # of a network, which no safe file holds
    torch.save(checkpoint, path)
    assert train(tmp_path / "run", 6, path).global_step == 6


@pytest.mark.parametrize("batch_size", [4, 6])
def test_a_run_that_goes_on_in_another_order_says_so(tmp_path, capsys, batch_size):
    train(tmp_path, 2)
    train(tmp_path, 4, newest_checkpoint(tmp_path), batch_size=batch_size)
    said = capsys.readouterr().err.count(
        "batch_size is 6, not 4: the rest of this epoch may repeat"
    )
    assert said == (batch_size == 6)


def test_a_scheduled_accumulation_resumes_within_an_epoch_wherever_it_stands(tmp_path):
    def scheduler() -> GradientAccumulationScheduler:
        return GradientAccumulationScheduler({1: 2})

    whole = train(tmp_path / "whole", 7, None, scheduler())
    train(tmp_path / "run", 4, None, scheduler())  # ends within the second epoch
    resumed = train(tmp_path / "run", 7, newest_checkpoint(tmp_path / "run"), scheduler())
    assert resumed.current_epoch == whole.current_epoch
    weights = whole.network.state_dict()
    assert all(torch.equal(weights[n], w) for n, w in resumed.network.state_dict().items())


def test_what_was_logged_before_the_first_checkpoint_is_removed_before_there_is_a_writer(tmp_path):
    before = ResumingTensorBoardLogger(tmp_path, "", "")
    before.log_metrics({"loss": 1.0}, 0)
    before.experiment.close()  # whose thread would write after the file is removed
    assert [*tmp_path.glob("events*")]
    again = ResumingTensorBoardLogger(tmp_path, "", "")
    again.load_state_dict({})
    assert not [*tmp_path.glob("events*")]
    again.log_metrics({"loss": 2.0}, 0)
    again.save()
    assert len([*tmp_path.glob("events*")]) == 1


def test_rows_of_before_are_kept_where_a_state_is_loaded_before_there_is_a_writer(tmp_path):
    before = ResumingCSVLogger(tmp_path, "", "")
    before.log_metrics({"loss": 1.0}, 0)
    state = before.state_dict()
    before.log_metrics({"loss": 2.0}, 1)  # after the checkpoint
    before.save()
    again = ResumingCSVLogger(tmp_path, "", "")
    again.load_state_dict(state)
    again.log_metrics({"loss": 3.0}, 1)
    again.save()
    assert (tmp_path / "metrics.csv").read_text().split() == ["loss,step", "1.0,0", "3.0,1"]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_logger_lets_a_warning_of_ones_own_be_shown_once(tmp_path):
    logger = ResumingCSVLogger(tmp_path, "", "")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
            warnings.warn("mine", stacklevel=1)
    assert [str(part.message) for part in shown] == ["mine"]


def test_rows_of_before_outlive_a_process_that_ends_before_it_has_restored_them(tmp_path, capsys):
    before = ResumingCSVLogger(tmp_path, "", "")
    before.log_metrics({"loss": 1.0}, 0)
    state = before.state_dict()
    for _ in range(2):  # weights of another shape, or a kill
        _ = ResumingCSVLogger(tmp_path, "", "").experiment
    ResumingCSVLogger(tmp_path, "", "").load_state_dict(state)
    assert (tmp_path / "metrics.csv").read_text().split() == ["loss,step", "1.0,0"]
    ResumingCSVLogger(tmp_path, "", "").load_state_dict({})  # begins anew
    anew = ResumingCSVLogger(tmp_path, "", "")
    anew.load_state_dict({})
    anew.log_metrics({"loss": 4.0}, 0)
    anew.save()
    assert (tmp_path / "metrics.csv").read_text().split() == ["loss,step", "4.0,0"]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]
    assert "is lost" not in capsys.readouterr().err


class Drawn(Regression):
    """Shows its options and its graph in TensorBoard."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 1))
        self.example_input_array = torch.zeros(1, 2)

    def on_train_end(self) -> None:
        logger: Any = self.logger
        logger.log_hyperparams({"chosen": 1})

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_run_has_its_options_and_its_graph_once(tmp_path, lost):
    for epochs in (1, 2):
        for file in tmp_path.glob("events*") if lost else ():
            file.unlink()
        logger = ResumingTensorBoardLogger(tmp_path, name="", version="", log_graph=True)
        trainer = Trainer(
            **QUIET | {"logger": logger},
            max_epochs=epochs,
            default_root_dir=str(tmp_path),
            callbacks=[LastCheckpoint()],
            plugins=AtomicCheckpointIO(tmp_path),
            accelerator="cpu",
        )
        loader = ExactDataLoader(SAMPLES, trainer, batch_size=4, shuffle=True)
        trainer.fit(Drawn(), loader, ckpt_path=newest_checkpoint(tmp_path))
        logger.experiment.close()
    files = [EventAccumulator(str(path)).Reload() for path in tmp_path.glob("events*")]
    assert len(files) == 2 - lost
    assert sum(file.Tags()["graph"] for file in files) == 1
    shown = sum(
        len(file.Scalars("hp_metric")) for file in files if "hp_metric" in file.Tags()["scalars"]
    )
    assert shown == 2  # as it begins, and what the module logs as it ends


def test_curves_that_a_tuner_restores_once_more_are_cut_again_and_not_called_lost(tmp_path, capsys):
    def logger() -> ResumingTensorBoardLogger:
        return ResumingTensorBoardLogger(tmp_path, name="", version="")

    first = logger()
    first.log_metrics({"loss": 1.0}, step=0)
    places = first.state_dict()
    again = logger()
    for _ in range(2):
        again.load_state_dict(places)
        again.log_metrics({"loss": 0.5}, step=1)
    again.save()
    assert capsys.readouterr().err == ""
    curves = EventAccumulator(str(tmp_path)).Reload()
    # TensorBoard reads files of one second by their names, in which 10 is before 9
    assert sorted(event.step for event in curves.Scalars("loss")) == [0, 1]
