"""The promises of ``python -m project.predict``: the rows of a plain loop, and of ``evaluate``."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
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
    evaluate,
    flowers,
    label,
    make_folder,
    quiet_trainer,
    read_json,
    rows,
)


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
    return v2.Compose([v2.PILToTensor(), resize, crop])(image)


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


def test_evaluate_writes_the_same_predictions_of_each_image(
    checkpoint, workplace, monkeypatch, limit_files
):
    monkeypatch.setattr(ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1))
    make_folder(Path("images"), dict.fromkeys(flowers(1, 1, 1).class_names, 9))
    options = ["--data=images", "--data.val_fraction=0.4", "--data.batch_size=6", *SMALL_FILES]
    options += ["--split=val", "--output=metrics.json", "--output_predictions=each.csv"]
    evaluate(str(checkpoint), *options)
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
    Path("each.csv").chmod(0o600)
    evaluate(str(checkpoint), *options)
    assert Path("each.csv").stat().st_mode & 0o777 == 0o600
    limit_files(500)  # as on a full disk
    with pytest.raises(OSError, match="File too large"):
        evaluate(str(checkpoint), *options)
    assert rows("each.csv") == written
