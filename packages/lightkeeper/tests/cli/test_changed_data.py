"""A run resumes with its own data, wherever that lies, and says what has changed."""

import os
import re
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.exact._last_checkpoint import StoppedError
from lightkeeper.images import ImageDataModule, read_checkpoint
from lightkeeper.images._checkpoint import ABOUT
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from tests.image_files import write_folder
from tests.toy import BEST, LAST, RUN, AtStep, evaluate, fit, load, one_line, read_json, stop_at

FILES = ["--data=tests.stubs.Files", "--data.root=images", "--data.batch_size=4"]


def test_a_resumed_run_says_that_as_many_images_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        write_folder(Path("images", split), {"red": 8, "blue": 8})
    images = Path("images/train/red")
    stop_at(1, *FILES)
    (images / "image 0.jpg").rename(images / "zero.jpg")  # and so is the order
    stop_at(2, *FILES)
    change = "the data has changed since .*, in names, labels or lengths of files of train; what"
    assert re.search(change, capsys.readouterr().err)
    os.utime(images / "image 1.jpg", (0, 0))
    stop_at(3, *FILES)
    (images / "image 1.jpg").rename(images / "one.jpg")
    last = load(LAST)
    del last[ABOUT]["digests"]  # as in checkpoints of before
    for name in ("results", "arguments", "steps", "validated"):
        del last["loops"]["fit_loop"]["epoch_loop.state_dict"][name]
    torch.save(last, LAST)
    Path("runs/run/config.yaml").unlink()
    stop_at(4, *FILES)
    notes = re.findall("changed|from here on .*", capsys.readouterr().err)
    assert notes == ["from here on options may be others, as config.yaml is lost"]


def test_images_that_were_split_anew_where_they_lie_are_no_test(workplace, capsys):
    for split, count in (("train", 12), ("val", 6), ("test", 8)):
        write_folder(Path("images", split), {"red": count, "blue": count})
    stop_at(1, *FILES)
    test, train, aside = (Path("images", name) for name in ("test", "train", "aside"))
    moves = ((train, aside), (test, train), (aside, test))
    for source, target in moves:
        source.rename(target)
    with pytest.raises(UserError, match="test has the images that this run was trained on"):
        fit(*FILES)
    for source, target in reversed(moves):
        target.rename(source)
    (test / "red" / "image 0.jpg").rename(test / "red" / "zero.jpg")
    fit(*FILES)
    (change,) = read_json(RUN / "metrics.json")["changes_of_data"]
    assert re.match("after step 1, in names, labels or lengths of files of test", change)
    assert load(LAST)[ABOUT]["changes_of_data"] == [change]
    capsys.readouterr()
    evaluate(str(BEST))
    said = capsys.readouterr().err
    assert f"may have been trained on some of these: {change}" in said
    assert "images that it was trained on may be in other" not in said
    (test / "red" / "zero.jpg").rename(test / "red" / "image 0.jpg")
    evaluate(str(BEST))
    assert "the data has changed since the checkpoint was trained" in capsys.readouterr().err
    for source, target in moves:
        source.rename(target)
    with pytest.raises(UserError, match="some of these images are those it was trained on"):
        evaluate(str(BEST))


def test_a_run_resumes_whose_config_is_lost_while_it_trains(workplace, capsys):
    config = Path("runs/run/config.yaml")
    lose = LambdaCallback(on_train_start=lambda *_: config.unlink())
    with pytest.raises(StoppedError):
        fit(callbacks=[lose, AtStep(6, signal.SIGTERM)])
    assert not config.exists()  # nor was another written in its place
    fit()
    assert "options may be others, as config.yaml is lost" in capsys.readouterr().err
    fit(f"--config={config}", "--name=again")


def test_a_run_resumes_with_the_same_images_in_another_place_alone(workplace, capsys):
    write_folder(Path("images"), {"red": 30, "blue": 30})
    stop_at(1, *FILES)
    shutil.copytree("images", "copy")
    Path("images").rename("moved")
    Path("copy/red/image 5.jpg").rename("copy/red/five.jpg")
    other = "--data.root is copy, not images, and with it the data, .*, which cannot change when"
    with pytest.raises(UserError, match=other):
        fit(*FILES, "--data.root=copy")
    capsys.readouterr()
    stop_at(2, *FILES, "--data.root=moved")
    assert "from here on --data.root is moved, not images" in capsys.readouterr().err


def test_a_run_says_that_it_reads_from_a_cache_now_which_has_other_pixels(workplace, capsys):
    write_folder(Path("images"), {"red": 30, "blue": 30})
    stop_at(1, *FILES)
    stop_at(2, *FILES, "--data.cache=one")
    assert "from here on --data.cache is one, not None" in capsys.readouterr().err
    stop_at(3, *FILES, "--data.cache=two")
    assert "from here on" not in capsys.readouterr().err


def test_a_checkpoint_that_was_replaced_while_it_was_measured_keeps_nothing_of_that(workplace):
    fit()
    cli = evaluate(f"{BEST}")
    cli.keep_in_checkpoint(temperature=2.0)
    other = load(BEST)
    other[ABOUT]["step"] -= 1
    torch.save(other, BEST)
    with pytest.raises(UserError, match="was replaced while it was measured"):
        cli.keep_in_checkpoint(temperature=3.0)
    assert load(BEST)[ABOUT]["temperature"] == 2.0


def test_a_run_in_a_linked_folder_resumes_by_the_name_of_the_link(workplace, capsys):
    Path("elsewhere/other").mkdir(parents=True)
    Path("runs").mkdir()
    Path("runs/run").symlink_to(Path("elsewhere/other").absolute())
    stop_at(1)
    assert "with the same options and --name run" in capsys.readouterr().err


def test_a_run_on_a_table_resumes_with_the_same_table_in_another_place_alone(workplace, capsys):
    write_folder(Path("images"), {"red": 30, "blue": 30})
    Path("tables/deep").mkdir(parents=True)
    lines = [f"{file},{file.parent.name}" for file in sorted(Path("images").rglob("*.jpg"))]
    Path("labels.csv").write_text("\n".join(["path,label", *lines]))
    rows = Path("labels.csv").read_text()
    outside = rows.replace("images/", f"{Path('images').absolute()}/")
    Path("tables/labels.csv").write_text(outside)
    Path("tables/deep/labels.csv").write_text(outside)
    table = ["--data=tests.stubs.Table", "--data.file"]
    stop_at(1, table[0], f"{table[1]}=tables/labels.csv")
    stop_at(2, table[0], f"{table[1]}=tables/deep/labels.csv")
    with pytest.raises(UserError, match=r"--data.file is labels.csv, not .* cannot change when"):
        fit(table[0], f"{table[1]}=labels.csv")  # whose images are in other splits


def test_a_resumed_run_says_which_images_and_options_of_its_data_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        write_folder(Path("images", split), {"red": 8, "blue": 8})
    stop_at(1, *FILES)
    stop_at(2, *FILES)
    printed = capsys.readouterr().err
    assert not re.search("the data has changed|from here on", printed)
    Path("images/train/red/image 3.jpg").unlink()
    others = ("--data.split_seed=1", "--data.image_size=48", "--trainer.limit_train_batches=2")
    for other in others:
        with pytest.raises(UserError, match=f"{other[:15]}.* cannot change"):
            fit(*FILES, other)
    fit(*FILES, "--data.on_bad_image=skip", "--data.class_balance=1", "--trainer.max_epochs=3")
    printed = capsys.readouterr().err
    assert "the data has changed since this run was stopped, from {'train': 16" in printed
    (line,) = re.findall("^continuing runs/run in epoch.*; from here on (.*)", printed, re.M)
    assert "--data.on_bad_image is skip, not error" in line
    assert "class_balance is 1.0, not 0.0" in line
    assert "--trainer.max_epochs is 3, not 2" in line


def test_a_run_keeps_its_height_and_width_which_its_checkpoint_says(workplace, capsys):
    write_folder(Path("images"), {"red": 20, "blue": 20})
    sizes = ["--data.image_size=[16,24]", "--data.train_size=[8,12]", "--data.repeats=2"]
    stop_at(1, *FILES, *sizes)
    for other in ("[24,16]", "16", "[16,25]"):
        with pytest.raises(UserError, match=r"--data\.image_size is .* cannot change"):
            fit(*FILES, *sizes[1:], f"--data.image_size={other}")
    fit(*FILES, *sizes)
    assert "from here on" not in capsys.readouterr().err
    steps = read_checkpoint(BEST)["about"]["preprocessing"]
    assert (steps["crop"], steps["resize"]) == ([16, 24], [18, 27])
    data = ImageDataModule.load_from_checkpoint(BEST)
    assert data.preprocessing == steps
    assert "[24, 16]" in one_line(lambda: evaluate(f"{BEST}", "--data.image_size=[24,16]"), capsys)
    for wrong in ("[16]", "[16,24,3]", "[0,16]", "5000", "[16,4097]"):
        line = one_line(
            lambda wrong=wrong: fit(*FILES, "--name=other", f"--data.image_size={wrong}"), capsys
        )
        assert "--data.image_size" in line


def test_weights_that_have_seen_what_is_measured_now_are_noted(workplace, capsys, monkeypatch):
    write_folder(Path("images"), {"red": 30, "blue": 30})
    model = "--model=tests.images.test_resume.WeightedClassifier"
    fit(*FILES, model, "--data.split_seed=1", "--data.group=null", "--trainer.max_epochs=1")
    weights = Path(shutil.copy(BEST, "weights.ckpt"))
    start = (*FILES, model, f"--model.weights={weights}", "--trainer.default_root_dir=second")
    seen = (
        "'weights.ckpt' may have been trained on images that are in val and test now; cut these as in"
        " training, with --data.split_seed 1"
    )
    capsys.readouterr()
    stop_at(1, *start)
    fit(*start)
    assert capsys.readouterr().err.count(f"{seen}, or take other weights") == 1
    assert read_json("second/run/metrics.json")["changes_of_data"] == [seen]
    fit(*start, "--data.split_seed=1", "--name=third")
    assert "trained on" not in capsys.readouterr().err
    assert "changes_of_data" not in read_json("second/third/metrics.json")
    address = "https://example.com/weights.ckpt"
    monkeypatch.setenv("TORCH_HOME", str(Path("hub").absolute()))
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda _, to, *__: weights.rename(to))
    fit(*start, f"--model.weights={address}", "--name=fourth")
    assert f"'{address}' may have been trained on" in capsys.readouterr().err


def test_metrics_that_could_not_be_written_are_not_measured(workplace, monkeypatch, capsys):
    fit()
    before = BEST.with_suffix(".test.metrics.json")
    may = os.access  # as root, everything
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: path != BEST.parent and may(path, mode))
        patch.setattr(Trainer, "test", Mock(side_effect=AssertionError))
        said = one_line(lambda: evaluate(f"{BEST}"), capsys)
    assert f"--output: '{before}' may not be written; name another file" in said
    evaluate(f"{BEST}", "--output=elsewhere.json")
    assert read_json("elsewhere.json")["accuracy"] >= 0
