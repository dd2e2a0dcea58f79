"""Predictions of each image of a split, as notebooks and the report show them, and runs compared."""

import pytest
import torch
from scipy import stats

from project.analysis.compare import differing_settings, mcnemar, seed_groups
from project.analysis.evaluation import evaluate_split
from project.analysis.prediction import predict
from project.data import FolderDataModule
from project.model import ImageClassifier
from tests.conftest import make_folder, opened


class Upside(FolderDataModule):
    """Turns images on their heads before they are sent to the device, and mirrors them there."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch._replace(images=batch.images.flip(2))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        return batch._replace(images=batch.images.flip(3))


def test_images_go_through_the_data_modules_own_hooks(tmp_path, tiny_run):
    make_folder(tmp_path, dict.fromkeys("abcdefgh", 8))
    (model, _), data = opened(tiny_run), Upside(str(tmp_path), image_size=32, resize=32, num_workers=0, batch_size=8)
    for split in ("val", "test"):
        found = evaluate_split(model, data, split)
        images = torch.stack([found.images.image(index) for index in range(len(found.images))])
        with torch.no_grad():
            torch.testing.assert_close(found.logits, model(images.flip(2, 3)), rtol=0, atol=1e-4)
        assert found.metrics.correct == int((found.predicted == found.labels).sum())


def test_each_image_has_its_own_prediction_and_a_broken_one_none(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr(ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1))
    make_folder(tmp_path / "images", dict.fromkeys("abcdefgh", 4))
    model, _ = opened(tiny_run)
    like = {"image_size": 32, "resize": 32, "mean": model.preprocessing["mean"], "std": model.preprocessing["std"]}
    data = FolderDataModule(str(tmp_path / "images"), **like, num_workers=0, on_bad_image="skip")
    assert {name: data.preprocessing.get(name) for name in model.preprocessing} == model.preprocessing
    data.setup("test")
    names = [data.splits["test"].name(index) for index in range(8)]
    files = [tmp_path / "images" / name for name in names]
    files[3].write_bytes(b"broken since it was looked at")
    found = evaluate_split(model, data)
    assert [found.images.name(index) for index in range(8)] == names
    assert found.logits.isnan().any(1).tolist() == [index == 3 for index in range(8)]
    assert int(found.labels[3]) == -1
    assert found.metrics.total == 7
    readable = [index for index in range(8) if index != 3]
    for index, prediction in zip(readable, predict(model, [files[index] for index in readable]), strict=True):
        assert model.class_names[found.predicted[index]] == prediction.label
        assert float(found.confidence[index]) == pytest.approx(prediction.probability, abs=1e-6)


def test_validation_takes_the_views_of_the_test_where_that_is_asked_for(tiny_run):
    model, data = opened(tiny_run)
    model.test_time_augmentation = "flip"
    plain, views = (evaluate_split(model, data, "val", as_in_use=as_in_use) for as_in_use in (False, True))
    images = torch.stack([views.images.image(index) for index in range(len(views.images))])
    with torch.inference_mode():
        straight, mirrored = model(images), model(images.flip(3))
    torch.testing.assert_close(plain.logits, straight, rtol=0, atol=1e-4)
    torch.testing.assert_close(views.logits, (straight + mirrored) / 2, rtol=0, atol=1e-4)
    assert views.metrics.correct == int(((straight + mirrored).argmax(1) == views.labels).sum())


def test_the_most_confident_come_first(tiny_run):
    found = evaluate_split(*opened(tiny_run))
    rows = list(zip(found.logits.softmax(1).tolist(), found.labels.tolist(), strict=True))
    wrong = [index for index, (row, label) in enumerate(rows) if row.index(max(row)) != label]
    assert found.suspects(5) == sorted(wrong, key=lambda index: (rows[index][0][rows[index][1]], index))[:5]
    for correct in (True, False):
        wanted = [index for index, (row, label) in enumerate(rows) if (row.index(max(row)) == label) == correct]
        expected = sorted(wanted, key=lambda index: (-max(rows[index][0]), index))
        assert found.confident(correct, 5) == expected[:5]


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (1, 0), (5, 5), (3, 17), (40, 12), (600, 520)])
def test_the_p_value_is_that_of_the_exact_binomial_test(only_first, only_second):
    first = torch.tensor([True] * only_first + [False] * only_second + [True] * 7 + [False] * 4)
    second = torch.tensor([False] * only_first + [True] * only_second + [True] * 7 + [False] * 4)
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (only_first, only_second)
    differing = only_first + only_second
    expected = stats.binomtest(only_first, differing).pvalue if differing else 1.0  # type: ignore[attr-defined]  # has no types
    assert found.p_value == pytest.approx(expected, rel=1e-9)


def test_what_differs_is_named_as_on_the_command_line_and_runs_that_differ_in_seed_alone_are_a_group():
    sgd = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
    adam = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}}
    first = {"seed_everything": 0, "model": {"arch": "resnet18", "optimizer": sgd}, "trainer": {"callbacks": None}}
    second = {"seed_everything": 1, "model": {"arch": "resnet18", "optimizer": adam}, "trainer": {"callbacks": None}}
    assert differing_settings({"a": first, "b": second}) == {
        "seed_everything": {"a": 0, "b": 1},
        "model.optimizer": {"a": "SGD", "b": "AdamW"},
        "model.optimizer.momentum": {"a": 0.9, "b": None},
    }
    assert differing_settings({"a": first, "b": first}) == {}
    again = first | {"seed_everything": 2, "name": "again", "trainer": {"callbacks": None, "default_root_dir": "there"}}
    assert seed_groups({"a": first, "b": second, "again": again}) == [["a", "again"], ["b"]]
