"""A probe's head is scikit-learn's logistic regression, its neighbours scikit-learn's classifier; validation chooses both."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from examples.recipes.probe import fit_head
from project.model import ImageClassifier
from project.model.networks import build_network
from tests.conftest import (
    QUIET,
    SMALL_FILES,
    TINY_TRAINER,
    cases,
    evaluate,
    fit,
    load,
    make_folder,
    read_json,
    rows,
)

PROBE = [
    *("--data=FolderDataModule", "--data.root=images", *SMALL_FILES, "--data.batch_size=8"),
    *("--data.flip=false", "--data.crop_scale=null", *TINY_TRAINER, *QUIET),
    *("--data.val_fraction=0.25", "--data.test_fraction=0.25", "--trainer.max_epochs=4"),
    *("--model=examples.recipes.probe.Probe", "--model.arch=timm/test_vit"),
    *("--model.freeze=backbone", "--model.weights=weights.pth", "--trainer.devices=1"),
]


@pytest.fixture
def place(workplace) -> Path:
    make_folder(workplace / "images", dict.fromkeys("abc", 40))
    for path in sorted((workplace / "images/a").iterdir())[::2]:  # wrong labels, so that no
        path.rename(workplace / "images/b" / f"a{path.name}")  # choice is right about all
    torch.manual_seed(0)
    torch.save(build_network("timm/test_vit", 5).state_dict(), "weights.pth")
    return workplace


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("strength", [1e-3, 1.0])
def test_the_head_is_scikit_learns_whatever_weights_it_begins_from(classes, strength):
    labels = np.arange(60) % classes
    rng = np.random.default_rng(0)
    features = 5 + 3 * rng.normal(size=(60, 7)) + rng.normal(size=(classes, 7))[labels]
    centred = features - features.mean(0)
    scaled = centred / np.sqrt((centred**2).mean())
    reference = LogisticRegression(C=strength, tol=1e-9, max_iter=10_000).fit(scaled, labels)
    tensors = torch.from_numpy(features).float(), torch.from_numpy(labels)
    weight, bias = fit_head(*tensors, nn.Linear(7, classes), strength)
    found = (torch.from_numpy(features) @ weight.T + bias).softmax(1)
    np.testing.assert_allclose(found, reference.predict_proba(scaled), atol=2e-3)


@pytest.mark.slow
def test_validation_chooses_among_penalties_and_neighbours_that_are_scikit_learns(place):
    cli = fit(*PROBE, "--name=run")
    curve = [float(row["val/accuracy"]) for row in rows(cli.run.path / "metrics.csv")]
    assert len(curve) == 4
    metrics, best = read_json(cli.run.metrics), load(cli.run.best)
    assert curve[metrics["epoch"] - 1] == max(curve)
    assert max(curve) == pytest.approx(metrics["val"]["accuracy"], abs=1e-6)
    assert best["about"]["model"] == "ImageClassifier"  # which opens it without --import
    evaluate(f"{cli.run.best}", "--output=all.json")
    assert read_json("all.json")["accuracy"] == metrics["test"]["accuracy"]

    model = ImageClassifier.load_from_checkpoint(cli.run.best).eval()
    features, labels = {}, {}
    for split in ("train", "val", "test"):
        batches = [*cli.datamodule.whole_split(split)]
        parts = [model.logits_and_features(batch.images)[1].detach() for batch in batches]
        features[split] = torch.cat(parts).numpy()
        labels[split] = torch.cat([batch.labels for batch in batches]).numpy()
    scores = [
        [
            KNeighborsClassifier(
                min(count, len(labels["train"])),
                weights=lambda distances, heat=heat: np.exp((1 - distances) / heat),
                metric="cosine",
            )
            .fit(features["train"], labels["train"])
            .score(features[split], labels[split])
            for split in ("val", "test")
        ]
        for count in (5, 10, 20, 50, 100, 200)
        for heat in (0.03, 0.07, 0.2, 1.0)
    ]
    chosen = max(range(len(scores)), key=lambda number: scores[number][0])  # the first of the best
    found = [metrics[split]["knn_accuracy"] for split in ("val", "test")]
    assert found == pytest.approx(scores[chosen])
    with pytest.raises(UserError, match="finished"):
        fit(*PROBE, "--name=run")


@pytest.mark.slow
def test_the_random_weights_of_a_run_without_an_epoch_are_probed(place):
    options = [flag for flag in PROBE if "weights" not in flag and "--model" not in flag]
    fit(*options, "--model.arch=timm/test_vit", "--trainer.max_epochs=0", "--name=random")
    weights = "runs/random/checkpoints/best.ckpt"
    cli = fit(*PROBE, f"--model.weights={weights}", "--trainer.max_epochs=1", "--name=run")
    first, probed = (load(Path(path))["state_dict"] for path in (weights, cli.run.best))
    changed = {name for name in first if not torch.equal(first[name], probed[name])}
    assert changed == {"network.head.weight", "network.head.bias"}
    assert read_json(cli.run.metrics)["test"]["knn_accuracy"] > 0


@cases(
    "flags complaint",
    (["--data.class_balance=1"], r"--data\.class_balance 0"),
    (["--model.freeze=null"], r"needs --model\.freeze backbone"),
)
def test_what_a_probe_would_not_do_is_refused(place, flags, complaint):
    with pytest.raises(UserError, match=complaint):
        fit(*PROBE, *flags)
