"""Lightning's pages hold with the loaders and callbacks of the library in a plain script."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
import torch
from lightkeeper.exact import (
    AtomicCheckpointIO,
    ExactDataLoader,
    ExactTraining,
    LastCheckpoint,
    UserError,
    newest_checkpoint,
)
from lightkeeper.exact._loader import seed_other_loaders
from lightkeeper.exact._randomness import Purpose
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    EMAWeightAveraging,
    LambdaCallback,
    ModelCheckpoint,
)
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from tests.toy import cases, load, toy_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*no `val_")


class Numbers(LightningModule):
    """Keeps what it trains on, and predicts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(batch)
        return self.weight.square().sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.1)


def script(**options: Any) -> Trainer:
    """The trainer of a script that keeps its run in ``run``."""
    own = {"callbacks": [LastCheckpoint()], "plugins": AtomicCheckpointIO("run")}
    return toy_trainer(**{"default_root_dir": "run", **own, **options})


def loader(trainer: Trainer, size: int, shuffle: bool = True) -> ExactDataLoader:
    return ExactDataLoader(cast(Any, range(size)), trainer, batch_size=4, shuffle=shuffle)


class Hooked(LightningDataModule):
    def predict_dataloader(self) -> ExactDataLoader:
        assert self.trainer is not None
        return loader(self.trainer, 10, shuffle=False)


class Writer(BasePredictionWriter):
    written: Sequence[Any] = ()

    def write_on_epoch_end(self, *arguments: Any) -> None:
        self.written = arguments[-1]


@pytest.mark.parametrize("is_hooked", [False, True])
def test_predictions_are_of_each_sample_in_order_and_a_writer_knows_which(is_hooked):
    trainer = script(callbacks=[writer := Writer("epoch")])
    source: Any = Hooked() if is_hooked else loader(trainer, 10, shuffle=False)
    batches = cast(Any, trainer.predict(Numbers(), source))
    assert torch.cat(batches).tolist() == [*range(10)]
    assert writer.written == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]


@pytest.mark.parametrize("share", [2, 0.5])
def test_what_it_overfits_is_the_same_in_each_epoch(workplace, share):
    trainer = script(overfit_batches=share)
    trainer.fit(model := Numbers(), loader(trainer, 16))
    first, second = torch.stack(model.seen).view(2, -1).tolist()
    assert first == second


def train_beside(*, steps: int) -> Numbers:
    trainer = script(max_steps=steps)
    loaders = {"long": loader(trainer, 20), "short": loader(trainer, 8)}
    trainer.fit(model := Numbers(), loaders, ckpt_path=newest_checkpoint("run"))
    return model


def test_a_shorter_loader_begins_again_until_the_longer_one_ends(
    workplace, tmp_path_factory, monkeypatch
):
    whole = train_beside(steps=-1).seen
    longs, shorts = (torch.stack([batch[name] for batch in whole]) for name in ("long", "short"))
    assert [sorted(epoch.flatten().tolist()) for epoch in longs.split(5)] == [[*range(20)]] * 2
    rounds = [shorts[start : start + 2] for start in (0, 2, 5, 7)]
    assert [sorted(part.flatten().tolist()) for part in rounds] == [[*range(8)]] * 4
    monkeypatch.chdir(tmp_path_factory.mktemp("again"))
    resumed = [batch for steps in (3, 9, -1) for batch in train_beside(steps=steps).seen]
    assert str(resumed) == str(whole)


@cases("drop_last", False, True)
def test_a_set_in_order_is_whole_wherever_it_is_iterated(workplace, drop_last):
    seen: list[int] = []
    look = LambdaCallback(on_train_epoch_end=lambda *_: seen.append(sum(map(len, data))))
    trainer = script(limit_train_batches=4, callbacks=[look])
    data = ExactDataLoader(cast(Any, torch.arange(10.0)), trainer, 4, drop_last=drop_last)
    long = ExactDataLoader(cast(Any, torch.arange(24.0)), trainer, 4)
    trainer.fit(model := Numbers(), {"long": long, "short": data})
    assert seen == [8 if drop_last else 10] * 2
    shorts = [[0, 1, 2, 3], [4, 5, 6, 7], *([] if drop_last else [[8, 9]])]
    found = [batch["short"].tolist() for batch in model.seen]
    assert found == 2 * (shorts + shorts)[:4]


class Fetching(Numbers):
    def training_step(self, dataloader_iter: Any) -> None:  # type: ignore[override]  # Lightning's
        next(dataloader_iter)


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_a_step_that_fetches_its_batches_itself_is_refused(workplace):
    trainer = script()
    with pytest.raises(UserError, match="training_step takes dataloader_iter"):
        trainer.fit(Fetching(), loader(trainer, 8))


def test_a_run_may_be_trained_in_a_thread(workplace):
    model = Numbers()
    trainer = script()
    thread = Thread(target=trainer.fit, args=(model, loader(trainer, 16)))
    thread.start()
    thread.join()
    assert len(model.seen) == 8
    assert newest_checkpoint("run")


@cases("hook", "train", "validation", "predict")
def test_a_signal_ends_all_that_a_trainer_does_and_another_run_can_follow(workplace, hook):
    def interrupt(trainer: Trainer, _: object, batch: object, batch_idx: int, *__: object) -> None:
        if batch_idx == 1 and not sent:
            sent.append(batch_idx)
            os.kill(os.getpid(), signal.SIGINT)

    sent: list[int] = []
    at: Any = {f"on_{hook}_batch_start": interrupt}
    trainer = script(callbacks=[LambdaCallback(**at), LastCheckpoint()])
    model, batches = Numbers(), loader(trainer, 16)
    use: Any = {"train": trainer.fit, "validation": trainer.validate, "predict": trainer.predict}
    evaluated = batches if hook == "train" else loader(trainer, 16, shuffle=False)
    with pytest.raises(SystemExit, match="75"):
        use[hook](model, evaluated)
    trainer.fit(model.train(), batches, ckpt_path=newest_checkpoint("run"))
    assert len(model.seen) == 8


def test_another_callback_that_writes_the_same_files_is_refused(workplace):
    last = LastCheckpoint()
    for others in ({"save_last": True}, {"filename": "previous"}):
        same = ModelCheckpoint("run/checkpoints", save_top_k=0, **others)
        trainer = script(callbacks=[last, same], enable_checkpointing=True)
        with pytest.raises(UserError, match=r"would write (last|previous)\.ckpt"):
            trainer.fit(Numbers(), loader(trainer, 16))
    elsewhere = ModelCheckpoint("run/own", save_last=True)
    trainer = script(callbacks=[last, elsewhere], enable_checkpointing=True)
    trainer.fit(Numbers(), loader(trainer, 16))


def test_a_test_on_the_trainer_that_has_fitted_loads_the_average(workplace):
    class Tested(Numbers):
        def test_step(self, batch: object, batch_idx: int) -> None:
            self.seen.append(float(self.weight))

    kept = ModelCheckpoint("run/own", save_last=True)
    callbacks = [LastCheckpoint(), ExactTraining(), kept, EMAWeightAveraging(decay=0.9)]
    trainer = script(callbacks=callbacks, enable_checkpointing=True)
    batches = loader(trainer, 16), loader(trainer, 16, shuffle=False)
    trainer.fit(model := Tested(), *batches)
    saved = load(Path("run/own/last.ckpt"))
    trainer.test(model, batches[1], ckpt_path="run/own/last.ckpt", verbose=False)
    average, newest = (float(saved[key]["weight"]) for key in ("state_dict", "current_model_state"))
    assert model.seen[-1] == average != newest


def test_a_loader_that_begins_each_epoch_anew_is_noted(workplace, capsys):
    data: Any = range(16)
    for plain, advice in (
        (DataLoader(data), "its DataLoader begins the epoch anew: take ExactDataLoader"),
        (DataLoader(data, batch_sampler=[[0, 1], [5]]), "the epoch anew, as it has no state_dict"),
    ):
        trainer = script()
        trainer.fit(Numbers(), [plain, loader(trainer, 16)])
        (line,) = [x for x in capsys.readouterr().err.splitlines() if "begins the epoch" in x]
        assert line.endswith(advice)
    with pytest.raises(UserError, match="takes no sampler"):
        ExactDataLoader(cast(Any, range(9)), trainer, 3, sampler=range(9))


def test_an_address_is_refused_before_a_folder_of_its_name_is_made(workplace):
    trainer = script(default_root_dir="memory://bucket")
    with pytest.raises(UserError, match="path: must be a file of this machine, got memory:/bucket"):
        trainer.fit(Numbers(), loader(trainer, 16))
    with pytest.raises(UserError, match="storage_options: must be left out"):
        AtomicCheckpointIO("run").save_checkpoint({}, "run/a.ckpt", {"retries": 1})
    assert not [*workplace.iterdir()]


def test_processes_draw_alike_in_loaders_of_ones_own_by_which_samplers_deal(workplace, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    drawn = []
    for rank in (0, 1):
        trainer = script(max_epochs=1)
        trainer.fit(Numbers(), DataLoader(cast(Any, range(16))))
        monkeypatch.setattr(type(trainer), "global_rank", rank)
        for purpose in (Purpose.FETCH, Purpose.STEP):
            seed_other_loaders(trainer, purpose)
            drawn.append(torch.rand(()).item())
    assert drawn[:2] == drawn[2:]
    assert len({*drawn}) == 2
