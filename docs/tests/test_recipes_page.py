"""Each recipe of docs/recipes.md, run on a tiny checkpoint and compared with something independent."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from project.data import FolderDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from tests.conftest import (
    QUIET,
    ROOT,
    SMALL_FILES,
    TINY,
    TINY_TRAINER,
    draw_image,
    evaluate,
    fit,
    label,
    load,
    make_folder,
)

PAGE = (ROOT / "docs" / "recipes.md").read_text()
SECTIONS = [section.partition("\n") for section in PAGE.split("\n## ")[1:]]
RECIPES = {
    title: code
    for title, _, text in SECTIONS
    for code in re.findall(r"```python\n(.*?)```", text, re.S)
}
BEST = "runs/NAME/checkpoints/best.ckpt"


def run(title: str) -> None:
    exec(RECIPES[title], {})


@pytest.fixture
def place(tiny_run, workplace) -> Path:
    """A folder with a run, photos and their predictions."""
    shutil.copytree(tiny_run, workplace / "runs" / "NAME")
    (workplace / "photos").mkdir()
    for number in range(60):
        draw_image(number / 60, seed=number).save(workplace / "photos" / f"{number}.jpg")
    (workplace / "photos" / "broken.jpg").write_text("no image")
    label(BEST, "photos", "--output=labels.csv")
    return workplace


def other_run() -> None:
    """Another run: the same one with other weights."""
    content = load(Path(BEST))
    for value in content["state_dict"].values():
        if value.is_floating_point():
            value.mul_(1.5)
    Path("runs/second/checkpoints").mkdir(parents=True)
    torch.save(content, "runs/second/checkpoints/best.ckpt")


def test_imagenets_val_is_the_test_and_train_is_split(workplace):
    for split in ("train", "val"):
        make_folder(workplace / "data" / "imagenet" / split, dict.fromkeys("ab", 12))
    (lines,) = re.findall(r"```\n(mkdir .*?)```", PAGE, re.S)
    for line in lines.replace("/data/", f"{workplace}/data/").splitlines()[:3]:
        subprocess.run(shlex.split(line), check=True)
    data = FolderDataModule("imagenet", val_fraction=0.01, batch_size=4)
    data.setup("fit")
    files = [file for file in data.list_files()[0] if file.split == "test"]
    assert {Path(file.path).parents[1].resolve().name for file in files} == {"val"}
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [22, 2, 24]


VIT = (
    '{"num_layers": 1, "num_heads": 1, "image_size": 32, "patch_size": 16, "hidden_dim": 12, '
    '"mlp_dim": 12}'
)


@pytest.mark.parametrize(
    "flags",
    [
        ["--model.arch=torchvision.models.VisionTransformer", f"--model.arch_args={VIT}"],
        ["--model.arch=timm/test_convnext"],
    ],
)
def test_a_class_is_added_and_the_head_keeps_its_rows(flags, workplace):
    fit(*TINY, *flags, "--name=NAME")
    old = ImageClassifier.load_from_checkpoint(BEST)
    names = sorted([*old.class_names, "aster"])
    make_folder(workplace / "larger", dict.fromkeys(names, 12))
    options = [*TINY_TRAINER, *QUIET, *SMALL_FILES, *flags, f"--model.weights={BEST}"]
    new = FitCLI(["--data=larger", *options]).model.eval()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    logits, expected = new(images), old.eval()(images)
    for position, name in enumerate(names):
        if name == "aster":
            assert (logits[:, position] == 0).all()
        else:
            known = old.class_names.index(name)
            torch.testing.assert_close(logits[:, position], expected[:, known])


def test_of_two_networks_the_chosen_one_is_saved(place):
    weights = ImageClassifier.load_from_checkpoint(BEST).network.state_dict()
    both = {f"student.{name}": value for name, value in weights.items()}
    torch.save(both | {f"teacher.{name}": value + 1 for name, value in weights.items()}, "both.pth")
    run("One of two networks")
    model = ImageClassifier.load_from_checkpoint(BEST)
    options = (model.class_names, model.preprocessing, "resnet9_slim")
    student = ImageClassifier(*options, weights="student.pth").network.state_dict()
    torch.testing.assert_close(student, weights)


def test_several_checkpoints_vote_with_the_mean_of_their_probabilities(place, capsys):
    (place / "photos" / "broken.jpg").unlink()
    other_run()
    run("Several checkpoints together")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 60
    models = [
        ImageClassifier.load_from_checkpoint(path)
        for path in Path("runs").rglob("*.ckpt")
        if path.name == "best.ckpt"
    ]
    for line in lines[:5]:
        path, name, share = line.split()
        shares = [model.predict_files([path])[0].probabilities for model in models]
        assert float(share) == pytest.approx(sum(part[name] for part in shares) / 2, abs=1e-6)


def test_an_average_of_checkpoints_is_a_checkpoint(place):
    first = load(Path(BEST))
    about = first["about"]
    about["thresholds"] = dict.fromkeys(about["class_names"], 0.3)
    torch.save(first, BEST)
    other_run()
    run("Average checkpoints")
    soup = load(Path("soup.ckpt"))
    assert "thresholds" not in soup["about"]
    name = "network.fc.weight"
    torch.testing.assert_close(soup["state_dict"][name], 1.25 * first["state_dict"][name])
    evaluate("soup.ckpt", "--split=val")
    assert Path("soup.val.metrics.json").exists()


def test_sure_predictions_become_training_images(place):
    lines = ["path,label,confidence,error", "photos/broken.jpg,,,not an image"]
    shares = {number: 0.96 if number % 3 == 0 else 0.94 for number in range(60)}
    lines += [f"photos/{number}.jpg,{number % 2},{share}," for number, share in shares.items()]
    Path("labels.csv").write_text("\n".join(lines))
    for name in "01":
        Path("images/train", name).mkdir(parents=True)
    run("Pseudo-labels")
    copies = Path("images/train").rglob("pseudo-*.jpg")
    sure = {
        Path(f"photos/{number}.jpg").read_bytes(): str(number % 2) for number in range(0, 60, 3)
    }
    assert {path.read_bytes(): path.parent.name for path in copies} == sure


def test_the_confusion_matrix_of_other_photos_is_drawn(place):
    make_folder(place / "other", dict.fromkeys(load(Path(BEST))["about"]["class_names"], 3))
    evaluate(BEST, "--data=other", "--split=all")
    run("A confusion matrix of other photos")
    assert Path("confusion.png").read_bytes().startswith(b"\x89PNG")


def test_transforms_of_other_libraries_are_wrapped(workplace, monkeypatch):
    """By stand-ins that take what these libraries take, as neither is installed here."""

    def sharpen(image):
        assert (image.dtype, image.shape[2]) == ("uint8", 3)
        return {"image": image[::-1].copy()}

    def add_noise(images):
        assert images.max() <= 1
        return images.clamp(max=0.5)

    noise = SimpleNamespace(RandomGaussianNoise=lambda std: add_noise)
    albumentations = SimpleNamespace(Sharpen=lambda: sharpen)
    monkeypatch.setitem(sys.modules, "albumentations", albumentations)
    monkeypatch.setitem(sys.modules, "kornia", SimpleNamespace(augmentation=noise))
    (code,) = re.findall(r"```\n(import albumentations.*?)```", PAGE, re.S)
    made: dict[str, Any] = {}
    exec(code, made)
    image = torch.randint(0, 256, (3, 5, 4), dtype=torch.uint8)
    assert torch.equal(made["Sharper"]()(image), image.flip(1))
    batch = image[None].float()
    images, labels = made["Noise"]()(batch, "labels")
    torch.testing.assert_close(images, batch.clamp(max=127.5))
    assert labels == "labels"


def test_each_recipe_is_run_here_and_is_short():
    assert len(RECIPES) == 5
    assert all(code.count("\n") <= 13 for code in RECIPES.values())
