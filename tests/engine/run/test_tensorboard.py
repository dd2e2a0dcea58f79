"""Curves continue from where a checkpoint was made."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from project.engine.run.tensorboard import RunLogger, rewind


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def log(folder, *steps: int) -> RunLogger:
    """Logs to an event file of its own."""
    logger = RunLogger(folder.parent, folder.name, version="")
    for step in steps:
        logger.log_metrics({"loss": 0.5 * step}, step)
    return logger


def curve(folder, tag="loss") -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder), purge_orphaned_data=False)
    accumulator.Reload()
    return sorted((event.step, event.value) for event in accumulator.Scalars(tag))


def test_lengths_count_what_was_logged_so_far(folder):
    logger = log(folder, 0, 1)
    lengths = logger.lengths()
    assert lengths == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert logger.lengths() == lengths
    logger.log_metrics({"loss": 1.0}, 2)
    ((name, longer),) = logger.lengths().items()
    assert longer > lengths[name]


def test_what_was_logged_after_a_checkpoint_vanishes(folder):
    log(folder, 0, 1).finalize("success")
    logger = log(folder, 2, 3)
    lengths = logger.lengths()
    logger.log_metrics({"loss": 9.0}, 4)
    logger.finalize("success")
    log(folder, 4, 5).finalize("success")
    assert len(list(folder.iterdir())) == 3
    rewind(folder, lengths)
    assert set(lengths) == {path.name for path in folder.iterdir()}
    assert curve(folder) == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]
    log(folder, 4).finalize("success")
    assert curve(folder) == [(step, 0.5 * step) for step in range(5)]


def test_a_file_that_ends_within_a_record_is_repaired(folder):
    logger = log(folder, 0, 1)
    ((name, length),) = lengths = logger.lengths().items()
    logger.log_metrics({"loss": 9.0}, 2)
    logger.finalize("success")
    path = folder / name
    path.write_bytes(path.read_bytes()[:-5])
    assert path.stat().st_size > length
    rewind(folder, dict(lengths))
    assert path.stat().st_size == length
    assert curve(folder) == [(0, 0.0), (1, 0.5)]


def test_a_run_without_a_checkpoint_begins_its_curves_anew(folder):
    log(folder, 0, 1).finalize("success")
    (folder / "config.yaml").touch()
    rewind(folder, {})
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


def test_a_file_that_lost_its_end_stays_as_it_is(folder):
    logger = log(folder, 0, 1)
    lengths = logger.lengths()
    logger.finalize("success")
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    rewind(folder, lengths)
    assert path.read_bytes() == before
