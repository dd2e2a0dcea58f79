"""The promises of ``python -m project.predict``: the rows of a plain loop, none lost, none doubled."""

import os
import shutil
import signal
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from PIL import Image
from torchvision.transforms import v2

from project.model import ImageClassifier
from tests.conftest import (
    SMALL_FILES,
    as_in_a_terminal,
    cases,
    classifier,
    draw_image,
    environment,
    evaluate,
    flowers,
    label,
    make_folder,
    one_line,
    quiet_trainer,
    read_json,
    rows,
)
from tests.processes import started, wait_until

COMMAND = [sys.executable, "-m", "project.predict"]
PARALLEL = ["--trainer.accelerator=cpu", "--trainer.devices=2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A small network that takes images for several classes, with confidences in between."""
    path: Path = tmp_path_factory.mktemp("checkpoint") / "some.ckpt"
    with as_in_a_terminal():
        one, model = quiet_trainer(), classifier()
        model.preprocessing["resize"] = 36
        model.hparams["preprocessing"] = model.preprocessing
        one.test(model, datamodule=flowers(32, 12, 4), verbose=False)
        one.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Nine images of several sizes, with two files among them that are none."""
    root: Path = tmp_path_factory.mktemp("photos")
    (root / "more").mkdir()
    for number in range(9):
        name = f"{number}.png" if number % 2 else f"more/{number}.png"
        draw_image(number / 9, seed=number, size=(40 + 7 * number, 50)).save(root / name)
    (root / "2 notes.jpg").write_text("no image")
    (root / "more" / "empty.jpg").touch()
    return root


def prepared(image: Image.Image, about: Preprocessing) -> torch.Tensor:
    """What torchvision's transforms make of the pixels, uint8 (3, crop, crop)."""
    resize, crop = v2.Resize(about["resize"], antialias=True), v2.CenterCrop(about["crop"])
    pixels: torch.Tensor = v2.Compose([v2.PILToTensor(), resize, crop])(image)
    return pixels


def by_torchvision(
    model: ImageClassifier, paths: list[Path], flips: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Files as input, by torchvision's transforms, and the logits that the network makes of them in float64."""
    about = model.preprocessing
    images = torch.stack([prepared(Image.open(path), about) for path in paths])
    normalize = v2.Compose(
        [v2.ToDtype(torch.float64, scale=True), v2.Normalize(about["mean"], about["std"])]
    )
    network = deepcopy(model.network).double().eval()
    views = [images, images.flip(3)] if flips else [images]
    with torch.inference_mode():
        return images, torch.stack([network(normalize(view)) for view in views]).mean(0)


@cases("options", [], ["--flips", "--batch_size=1"], ["--batch_size=3", "--abstain=0.14"])
def test_rows_and_embeddings_are_what_a_plain_loop_computes(checkpoint, photos, workplace, options):
    files = ["--output=rows.csv", "--embeddings=rows.npy"]
    assert label(checkpoint, photos, *files, "--top_k=3", "--probabilities", *options) == 1
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    names = [
        *("1.png", "2 notes.jpg", "3.png", "5.png", "7.png"),
        *(f"more/{name}" for name in ("0.png", "2.png", "4.png", "6.png", "8.png", "empty.jpg")),
    ]
    written = rows("rows.csv")
    assert [row.pop("path") for row in written] == [str(photos / name) for name in names]
    least = 0.14 if "--abstain=0.14" in options else 0
    unsure = 0
    for name, row, seen in zip(names, written, torch.from_numpy(np.load("rows.npy")), strict=True):
        if name.endswith(".jpg"):
            assert row.pop("error").startswith("not an image: ")
            assert not any(row.values())
            assert seen.isnan().all()
            continue
        shares = by_torchvision(model, [photos / name], "--flips" in options)[1][0].softmax(0)
        columns = [float(row[f"probability_{name}"]) for name in model.class_names]
        assert columns == pytest.approx(shares.tolist(), abs=1e-4)
        for place, confidence, index in zip(("", "_2", "_3"), *shares.topk(3), strict=True):
            is_unsure = place == "" and confidence < least
            unsure += is_unsure
            assert row[f"label{place}"] == ("" if is_unsure else model.class_names[index])
            assert float(row[f"confidence{place}"]) == pytest.approx(confidence.item(), abs=1e-4)
        logits = by_torchvision(model, [photos / name])[1][0]  # of the first view
        of_head = model.network_head(seen) / 8  # of a ResNet-9
        torch.testing.assert_close(of_head.double(), logits, rtol=0, atol=1e-3)
    assert (0 < unsure < 9) == bool(least)


def test_resuming_labels_the_files_that_have_no_row(checkpoint, photos, workplace, capfd):
    strange = shutil.copy(photos / "1.png", os.fsdecode(b'line\nbreak, "caf\xe9".png'))
    options = [checkpoint, strange, photos, "--batch_size=2", "--top_k=2"]
    label(*options, "--output=whole.csv")
    assert rows("whole.csv")[0]["path"] == 'line\nbreak, "caf\\xe9".png'
    whole, out = Path("whole.csv").read_bytes(), Path("out.csv")
    label(*options)
    printed = capfd.readouterr()
    assert printed.out.encode() == whole
    assert "labelled 10 images; 2 cannot be read" in printed.err
    options.append(f"--output={out}")
    lines = whole.decode().splitlines(keepends=True)
    out.write_text("".join(lines[:7]) + lines[7][:9])  # five rows are whole
    with pytest.raises(UserError, match="--overwrite replaces it"):
        label(*options)
    with pytest.raises(UserError, match="has other rows or columns"):
        label(*options, "--resume", "--top_k=3")
    with pytest.raises(UserError, match="would have another row now"):
        label(*options, "--resume", "--abstain=1")
    *others, newest = [float(row["confidence"] or 1) for row in rows("whole.csv")[:5]]
    assert min(others) < newest
    with pytest.raises(UserError, match="would have another row now"):
        label(*options, "--resume", f"--abstain={(min(others) + newest) / 2}")
    assert out.read_text() == "".join(lines[:7])
    step = ImageClassifier.predict_step
    with (
        patch("lightkeeper.cli._predict._COMPARED", 1),
        patch.object(ImageClassifier, "predict_step", autospec=True, side_effect=step) as predicted,
    ):
        label(*options, "--resume")
    # of the five rows, the least sure and the newest are compared with what they would be now
    assert sum(len(call.args[1].images) for call in predicted.call_args_list) == 12 - 5 + 2
    assert out.read_bytes() == whole
    capfd.readouterr()
    assert label(*options, "--resume") == 1  # nothing is left, but two files have errors
    assert "labelled 10 images; 2 cannot be read" in capfd.readouterr().err
    assert out.read_bytes() == whole


def test_no_name_controls_the_terminal_and_a_file_has_it_as_it_is(
    checkpoint, photos, workplace, capfd
):
    content = torch.load(checkpoint, weights_only=True)
    names = [f"\x1b[2J\t\u202e{name}" for name in content["about"]["class_names"]]
    content["about"]["class_names"] = content["hyper_parameters"]["class_names"] = names
    torch.save(content, "names.ckpt")
    strange = shutil.copy(photos / "1.png", "a\x1b[31mb.png")
    options = ["names.ckpt", strange, "--probabilities"]
    label(*options)
    printed = capfd.readouterr().out
    assert all(character.isprintable() for line in printed.splitlines() for character in line)
    assert r"\x1b[2J\t\u202e" in printed
    label(*options, "--output=out.csv")
    (row,) = rows("out.csv")
    assert row["path"] == strange
    assert row["label"] in names
    assert {f"probability_{name}" for name in names} <= row.keys()


def test_evaluate_writes_the_same_predictions_of_each_image(checkpoint, workplace, monkeypatch):
    monkeypatch.setattr(ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1))
    make_folder(Path("images"), dict.fromkeys(flowers(1, 1, 1).class_names, 9))
    options = ["--data=images", "--data.val_fraction=0.4", "--data.batch_size=6", *SMALL_FILES]
    files = ["--output=metrics.json", "--output_predictions=each.csv"]
    evaluate(str(checkpoint), *options, "--split=val", *files)
    written = rows("each.csv")
    metrics = read_json("metrics.json")
    paths = [row["path"] for row in written]
    assert paths == sorted(set(paths))
    assert len(paths) == metrics["total"]
    label(checkpoint, *paths, "--output=predict.csv")
    for row, labelled in zip(written, rows("predict.csv"), strict=True):
        # some CPUs multiply matrices of other heights by other instructions
        assert float(row["confidence"]) == pytest.approx(float(labelled.pop("confidence")))
        assert {name: row[name] for name in ("path", "label", "error")} == {
            name: labelled[name] for name in ("path", "label", "error")
        }
        assert row["true_label"] == Path(row["path"]).parent.name
        assert (row["correct"] == "true") == (row["label"] == row["true_label"])
    assert sum(row["correct"] == "true" for row in written) == metrics["correct"]
    assert len({row["label"] for row in written}) > 1


def run(command: list[str], **options: Any) -> Any:
    """Runs a command, and returns how it ended."""
    pipes: Any = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run(command, env=environment(), **pipes, **options)


def require_same(path: str, expected: str) -> None:
    """Compares rows; some CPUs multiply matrices of other heights by other instructions."""
    for row, other in zip(rows(path), rows(expected), strict=True):
        confidence = float(other.pop("confidence") or 0)
        assert float(row.pop("confidence") or 0) == pytest.approx(confidence)
        assert row == other


@pytest.mark.slow
def test_two_processes_write_what_one_does_and_resume_after_a_kill(checkpoint, photos, workplace):
    label(checkpoint, photos, "--output=one.csv", "--embeddings=one.npy")
    command = [*COMMAND, str(checkpoint), *PARALLEL, "--batch_size=2"]
    files = ["--output=two.csv", "--embeddings=two.npy"]
    assert "2 cannot be read" in run([*command, str(photos), *files]).stderr
    require_same("two.csv", "one.csv")
    np.testing.assert_allclose(np.load("two.npy"), np.load("one.npy"), rtol=1e-5, atol=1e-6)
    out = Path("rows.csv")
    command += [f"--output={out}", "--batch_size=1"]
    with started([*command, str(photos)], workplace) as killed:
        wait_until(lambda: out.exists() and out.read_text().count("\n") >= 3, workplace)
        killed.kill()
    listed = "".join(f"{row['path']}\n" for row in rows("one.csv"))
    resumed = run([*command, "-", "--resume"], input=listed)
    assert (resumed.returncode, resumed.stderr.count("\n")) == (1, 1)
    require_same("rows.csv", "one.csv")
    # all processes of a launcher end where nothing is left
    options = [str(checkpoint), str(photos), f"--output={out}", PARALLEL[0], "--resume"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = run([*torchrun, "--nproc-per-node=2", "-m", "project.predict", *options])
    assert "exitcode  : 1" in ended.stderr
    require_same("rows.csv", "one.csv")


def test_what_another_process_writes_is_left_alone(checkpoint, photos, workplace, capsys):
    Path("rows.csv").write_text("of before")
    hold = "import fcntl; file = open('rows.csv', 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
    command = [sys.executable, "-c", f"{hold}print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        again = partial(label, checkpoint, photos, "--output=rows.csv", "--overwrite")
        assert "another process is writing 'rows.csv'" in one_line(again, capsys)
        assert Path("rows.csv").read_text() == "of before"
        other.communicate(b"\n")
    again()
    assert len(rows("rows.csv")) == 11


def test_embeddings_are_whole_or_not_there(checkpoint, photos, workplace, capsys, limit_files):
    Path("rows.npy").write_text("of before")
    limit_files(2_000)
    files = ["--output=rows.csv", "--embeddings=rows.npy", "--overwrite"]
    assert "File too large" in one_line(lambda: label(checkpoint, photos, *files), capsys)
    assert [path.read_text() for path in Path().glob("*rows*.npy")] == ["of before"]
    assert len(rows("rows.csv")) == 11


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows(checkpoint, photos, workplace):
    out = Path("rows.csv")
    paths = [shutil.copy(photos / "1.png", f"{number}.png") for number in range(400)]
    options = [f"--output={out}", "--batch_size=1", "--trainer.accelerator=cpu", "--num_workers=1"]
    with started([*COMMAND, str(checkpoint), *paths, *options], workplace) as process:
        wait_until(lambda: out.exists() and out.read_text().count("\n") >= 4, workplace)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert Path("log").read_text().splitlines()[-1:] == ["stopped"]
    label(checkpoint, *paths, f"--output={out}", "--resume")
    assert [row["path"] for row in rows(out)] == paths


@cases(
    "options message",
    (["--output=no/folder.csv"], "parent directory does not exist"),
    (["--resume"], "--resume needs --output"),
    (["--resume", "--output=a.csv", "--embeddings=a.npy"], "it cannot continue --embeddings"),
    (["--output=a.csv", "--embeddings=a.csv"], "--output: must be a file that no other"),
    (["--flips"], "there are no images in"),
)
def test_a_mistake_is_one_line(checkpoint, workplace, options, message, capsys):
    assert message in one_line(lambda: label(checkpoint, workplace, *options), capsys)
    assert not list(workplace.iterdir())
