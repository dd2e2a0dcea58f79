"""Each file of examples/ by the command that it shows, shortened; what one computes is compared with something independent."""

import copy
import csv
import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import timm
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import prepare
from lightning.pytorch.callbacks import LambdaCallback
from PIL import Image
from scipy import stats
from scipy.special import logit, softmax
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    recall_score,
    roc_auc_score,
    roc_curve,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader

from examples import unsure
from examples.binary import BinaryClassifier
from examples.center_loss import CenterLossClassifier
from examples.coco_crops import CocoCrops
from examples.distillation import Student
from examples.focal_loss import FocalLoss
from examples.lora import LoRAClassifier
from examples.metric import BalancedAccuracy
from examples.multilabel_csv import LabelsCSV
from examples.recipes.binary_metrics import OperatingPoint
from examples.sam import SAMClassifier
from examples.streaming import StreamingDataModule
from examples.superclasses import SuperclassClassifier
from examples.tests.files import write_coco, write_csv, write_pets
from examples.write_shards import write_shards
from project.analysis.gradcam import grad_cam
from project.data import FolderDataModule, TorchDatasetModule
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.formats import ProbabilityNetwork, load_onnx, write_onnx
from tests.conftest import (
    QUIET,
    ROOT,
    RUN,
    TINY_DATA,
    TINY_TRAINER,
    AtStep,
    call,
    cases,
    checkpoint_of,
    draw_image,
    evaluate,
    events,
    fit,
    label,
    load,
    make_folder,
    one_line,
    quiet_trainer,
    read_json,
    report_of,
    rows,
    small,
)
from tests.model.test_classifier import PREPROCESSING
from tests.stubs import NoiseDataModule, require_served_alike

FILES = sorted(
    path for path in (ROOT / "examples").iterdir() if path.stem != "__init__" and path.is_file()
)
QUICK = ["--trainer.max_steps=2", "--model.arch=resnet9_slim"]
NO_PLOTS = [
    f"--callbacks.{name}=false"
    for name in FitCLI.default_callbacks
    if name in ("first_batch", "confusion_matrix", "confident_mistakes")
]
VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24}
RESIZED = ["--data.image_size=32", "--data.batch_size=4", "--data.num_workers=0"]
LARGE_SETS = ["--data.val_fraction=0.3", "--data.test_fraction=0.3"]  # some of each label in both
ABOUT: Any = {
    "class_names": NoiseDataModule.class_names,
    "preprocessing": NoiseDataModule.preprocessing,
}


def write_arrays() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 28, 28, 3), dtype=np.uint8)
    np.savez("FILE.npz", train_images=pixels, train_labels=np.arange(24)[:, None] % 3)


WRITERS: dict[str, Callable[[], object]] = {
    "csv": lambda: write_csv(Path()),
    "multilabel_csv": lambda: write_csv(Path()),
    "npz_dataset": write_arrays,
    "coco_crops": lambda: write_coco(Path("FILE.json")),
    "shards": lambda: write_shards("images", Path("shards"), 5),
    "superclasses": lambda: [
        make_folder(Path("FOLDER", kind), dict.fromkeys(names, 12))
        for kind, names in {"animals": ("cat", "dog"), "cars": ("audi",)}.items()
    ],
    "torchvision_data": lambda: write_pets(Path("data/oxford-iiit-pet")),
    "lora": lambda: torch.save(vit(8).state_dict(), "vit.pth"),
    "distillation": lambda: fit(
        *TINY_DATA, *TINY_TRAINER, *QUIET, *QUICK, *NO_PLOTS, "--name=NAME"
    ),
}
OPTIONS = {
    "csv": RESIZED,
    "npz_dataset": RESIZED,
    "coco_crops": RESIZED,
    "torchvision_data": RESIZED,
    "multilabel_csv": [*RESIZED, *LARGE_SETS],
    "shards": [*RESIZED, "--data.root=shards"],
    "superclasses": [*RESIZED, *LARGE_SETS],
    "streaming": [*RESIZED, *LARGE_SETS, "--data.root=images"],
    "binary": [*RESIZED, *LARGE_SETS, "--data.root=images", "--model.positive=rose"],
    "lora": [*TINY_DATA, *(f"--model.arch_args.{name}={value}" for name, value in VIT.items())],
    "data_module": [],
}


def data_for(name: str) -> list[str]:
    """Makes what an example needs in the current folder; further options."""
    make_folder(Path("images"), {"rose": 12, "tulip": 12})
    if name in WRITERS:
        WRITERS[name]()
    return OPTIONS.get(name, TINY_DATA)


TRAINING = [path for path in FILES if "python -m project.fit" in path.read_text()]


@pytest.mark.parametrize("file", TRAINING, ids=lambda file: file.stem)
def test_the_command_of_an_example_trains(file, workplace, capsys):
    (command,) = re.findall(r"^(?:# )?python -m project\.fit (.*)$", file.read_text(), re.M)
    given = [
        str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(command)
    ]
    quick = QUICK if "arch" not in file.read_text() else QUICK[:1]
    few = [f"--trainer.limit_{split}_batches=2" for split in ("val", "test")]
    fit(*given, *data_for(file.stem), *TINY_TRAINER, *QUIET, *quick, *few, *NO_PLOTS, "--name=run")
    metrics = read_json("runs/run/metrics.json")
    assert metrics["test"]["total"] > 0
    if file.stem == "callback":
        assert [
            point.step
            for point in EventAccumulator("runs/run").Reload().Scalars("train/gradient_norm")
        ] == [0, 1]
    if file.stem == "freeze_batchnorm":
        weights = load(Path("runs/run/checkpoints/last.ckpt"))["state_dict"]
        means = [weights[name] for name in weights if name.endswith("running_mean")]
        assert means
        assert not any(mean.any() for mean in means)  # zero, as before the first step
    if file.stem == "superclasses":
        require_sums_of_superclasses()
    if file.stem == "metric":
        assert "best.ckpt --import examples.metric\n" in capsys.readouterr().out
        assert "monitor: val/balanced_accuracy" in Path("runs/run/config.yaml").read_text()


def require_sums_of_superclasses() -> None:
    """Compares the metrics with scikit-learn's, of probabilities summed by hand."""
    best = "runs/run/checkpoints/best.ckpt"
    predictions = ("--output_predictions=test.csv", "--probabilities", "--output=test.json")
    evaluate(best, "--import=examples.superclasses", *predictions)
    true, predicted = [], []
    for row in rows("test.csv"):
        cats_and_dogs = sum(float(row[f"probability_animals/{name}"]) for name in ("cat", "dog"))
        is_animal = cats_and_dogs > float(row["probability_cars/audi"])
        predicted.append("animals" if is_animal else "cars")
        true.append(row["true_label"].split("/")[0])
    metrics = read_json("test.json")
    assert metrics["superclass_accuracy"] == pytest.approx(accuracy_score(true, predicted))
    assert metrics["superclass_f1"] == pytest.approx(f1_score(true, predicted, average="macro"))


def test_superclasses_are_a_column_of_a_table_too(workplace):
    Path("labels.csv").write_text("path,label,superclass\n1.jpg,grey,dull\n2.jpg,loud,shrill\n")
    names = {**ABOUT, "class_names": ["grey", "loud"]}
    model = SuperclassClassifier(superclasses="labels.csv", arch="resnet9_slim", **names)
    assert model.hparams["superclasses"] == {"grey": "dull", "loud": "shrill"}
    assert model.parents == [0, 1]
    with pytest.raises(UserError, match="names no superclass of loud"):
        SuperclassClassifier(superclasses={"grey": "dull"}, arch="resnet9_slim", **names)
    Path("labels.csv").write_text("label,superclass\ngrey,dull\nloud,shrill\ngrey,pale\n")
    with pytest.raises(UserError, match="two superclasses of 'grey': dull, pale"):
        SuperclassClassifier(superclasses="labels.csv", arch="resnet9_slim", **names)


def test_the_command_of_ones_own_lists_the_least_confident_images_first(
    tiny_run, workplace, capsys
):
    """The confidences of ``project.predict``, in another order."""
    make_folder(Path("photos"), {"rose": 3, "tulip": 3})
    best = tiny_run / "checkpoints" / "best.ckpt"
    label(best, "photos", "--output=labels.csv")
    expected = sorted((float(row["confidence"]), row["path"]) for row in rows("labels.csv"))
    capsys.readouterr()
    call(unsure, best, "photos", "--count=4")
    listed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["path"] for row in listed] == [path for _, path in expected[:4]]
    assert [row["confidence"] for row in listed] == [f"{share:.4f}" for share, _ in expected[:4]]
    call(unsure, best, "photos", "--by=energy")
    listed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    model = ImageClassifier.load_from_checkpoint(best).eval()
    images = torch.stack([prepare(row["path"], model.preprocessing) for row in listed])
    with torch.inference_mode():
        energy = model(images).exp().sum(1).log().neg().tolist()
    assert [float(row["energy"]) for row in listed] == pytest.approx(energy, abs=1e-3)
    assert energy == sorted(energy, reverse=True)
    content = load(best)
    content["about"]["temperature"] = 0.5  # by which no energy changes, nor their order
    torch.save(content, "calibrated.ckpt")
    Path("photos/rose/1.jpg").rename("photos/rose/.1.jpg")
    draw_image(0.1, 7).save("photos/rose/8.gif")
    capsys.readouterr()
    call(unsure, "calibrated.ckpt", "photos", "--by=energy")
    again = {row["path"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    known = {row["path"]: row for row in listed if "rose/1" not in row["path"]}
    assert {path: again.pop(path) for path in known} == known
    assert [*again] == ["photos/rose/8.gif"]
    make_folder(Path("photos/.trash"), {"rose": 1})
    Path("photos/rose/2.jpg").rename("photos/rose/2.jpe")
    Path("photos/tulip/0.jpg").write_text("no image")
    call(unsure, best, "photos")
    out, said = capsys.readouterr()
    kept = {f"photos/{name}" for name in ("rose/0.jpg", "rose/2.jpe", "rose/8.gif")}
    assert {row["path"] for row in csv.DictReader(out.splitlines())} == {
        *kept,
        *("photos/tulip/1.jpg", "photos/tulip/2.jpg"),
    }
    assert "left out, as they cannot be read: 1;" in said
    Path("none").mkdir()
    assert "folder: there are no images" in one_line(lambda: call(unsure, best, "none"), capsys)


def test_the_labels_of_a_csv_are_those_of_the_files_that_it_names(workplace):
    data_for("multilabel_csv")
    data = LabelsCSV(image_size=32)
    assert data.class_names == ["odd", "rose", "tulip"]
    for split in (splits := data.load()).values():
        kinds = [
            (int(file.stem) % 2, file.parent.name) for file in map(split.path, range(len(split)))
        ]
        assert split.labels.tolist() == [
            [odd, name == "rose", name == "tulip"] for odd, name in kinds
        ]
    assert sum(len(split) for split in splits.values()) == 24
    named = rows("labels.csv")
    for at, row in enumerate(named):
        row["split"] = ("train", "train", "val", "test")[at % 4]
    with Path("labels.csv").open("w") as file:
        writer = csv.DictWriter(file, named[0])
        writer.writeheader()
        writer.writerows(named)
    for name, part in LabelsCSV(image_size=32).load().items():
        assert {str(part.path(at)) for at in range(len(part))} == {
            row["path"] for row in named if row["split"] == name
        }


@cases(
    "lines found",
    ("path,tags\na.jpg,sea", "file: 'labels.csv' has no column labels, but path, tags"),
    ("path,labels\na.jpg,sea\na.jpg,boat", "has two lines of 'a.jpg': write one with all labels"),
    ("path,labels,split\na.jpg,sea,dev", "the split must be train, val or test, got 'dev'"),
    ("", "has no column path"),
)
def test_a_csv_of_labels_that_says_something_else_is_one_line(workplace, capsys, lines, found):
    Path("labels.csv").write_text(lines)
    options = ["--data=examples.multilabel_csv.LabelsCSV", *RESIZED]
    model = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]
    assert found in one_line(lambda: fit(*options, *model), capsys)


@cases("root workers", ("images", 1), ("memory://images", 0))
def test_images_of_any_file_system_are_served_as_a_folders_are_to_the_last_bit(
    workplace, root, workers
):
    for file in make_folder(Path("images"), {"rose": 12, "tulip": 20}).rglob("*.jpg"):
        fsspec.filesystem("memory").pipe(f"/{file}", file.read_bytes())
    options: dict[str, Any] = {"image_size": 8, "batch_size": 4, "seed": 3}
    require_served_alike(
        StreamingDataModule(root, num_workers=workers, **options),
        FolderDataModule("images", num_workers=0, **options),
    )


@cases(
    "place found",
    ("Training Valid", "Training, Valid"),
    ("train test", "test, train"),
    ("photos", "photos"),
)
def test_folders_of_splits_are_no_classes_to_stream(workplace, capsys, place, found):
    for name in place.split():
        make_folder(Path("images", name), {"rose": 2, "tulip": 2})
    options = ["--data=examples.streaming.StreamingDataModule", "--data.root=images", *RESIZED]
    line = one_line(lambda: fit(*options), capsys)
    assert line.endswith(f"must hold folders of classes, not of splits, got {found}")
    assert "--data.root" in line


def test_what_is_hidden_or_in_no_folder_is_no_class_to_stream(workplace):
    make_folder(Path("images"), {"rose": 2, "tulip": 2, ".ipynb_checkpoints": 2})
    make_folder(Path("images/rose"), {".thumbnails": 1})
    for name in ("rose/2.gif", "loose.jpg"):
        draw_image(0.1, 7).save(Path("images", name))
    names = StreamingDataModule("images", image_size=8).datasets["train"].names
    flowers = ("rose/0.jpg", "rose/1.jpg", "rose/2.gif", "tulip/0.jpg", "tulip/1.jpg")
    assert names == [*flowers]


def test_boxes_of_16_bits_keep_their_upper_8_bits(workplace):
    write_coco(Path("FILE.json"))
    coco = json.loads(Path("FILE.json").read_text())
    for image in coco["images"]:
        image["file_name"] = f"{image['id']}.png"
        Image.fromarray(np.full((32, 40), 40 << 8, np.uint16)).save(image["file_name"])
    Path("FILE.json").write_text(json.dumps(coco))
    data = TorchDatasetModule(partial(CocoCrops, "FILE.json"), image_size=8, batch_size=4)
    data.setup("fit")
    assert (data.splits["train"].__getitems__([0, 1]).images == 40).all()


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_focal_loss_is_its_formula(gamma):
    generator = torch.Generator().manual_seed(0)
    logits, labels = (
        torch.randn(50, 7, generator=generator),
        torch.randint(7, (50,), generator=generator),
    )
    shares = torch.rand(50, 7, generator=generator).softmax(1)
    p = softmax(logits.double().numpy(), 1)
    costs = -((1 - p) ** gamma) * np.log(p)
    np.testing.assert_allclose(
        FocalLoss(gamma)(logits, labels), costs[range(50), labels], rtol=1e-5
    )
    np.testing.assert_allclose(
        FocalLoss(gamma)(logits, shares), (shares.double().numpy() * costs).sum(1), rtol=1e-5
    )


@pytest.fixture
def batch():
    return NoiseDataModule().load()["train"].__getitems__([*range(12)])


def test_the_last_epochs_train_without_mixup(workplace):
    """Also if the run resumes within them, where no epoch starts."""
    seen: list[tuple[int, int]] = []
    look = LambdaCallback(
        on_train_batch_start=lambda trainer, model, batch, _: seen.append(
            (trainer.current_epoch, batch.labels.dim())
        )
    )
    mixed = [
        *("--data.batch_transforms+=torchvision.transforms.v2.MixUp", "--trainer.max_epochs=3"),
        *("--trainer.callbacks+=examples.late_mixup.EndMixUp",),
    ]
    with pytest.raises(SystemExit, match="75"):
        small(*mixed, callbacks=[look, AtStep(10)])
    small(*mixed, callbacks=[look])
    assert seen == [(0, 2)] * 4 + [(1, 2)] * 4 + [(2, 1)] * 4


def test_mixup_ends_before_no_last_epoch_that_is_unknown(workplace, capsys):
    by_steps = ("--trainer.max_steps=2", "--trainer.max_epochs=-1")
    ends = "--trainer.callbacks+=examples.late_mixup.EndMixUp"
    line = one_line(lambda: small(ends, *by_steps), capsys)
    assert "--trainer.max_epochs: must be given with EndMixUp" in line


def test_center_loss_is_its_formula(batch):
    model = CenterLossClassifier(center_weight=0.1, arch="resnet9_slim", **ABOUT)
    torch.nn.init.normal_(model.centers)
    logits, features = model.eval().logits_and_features(batch.images)
    gaps = (features - model.centers[batch.labels]).detach().double().numpy()
    plain = model.loss(logits, batch.labels).mean().item()
    loss = model.training_step(batch, 0)
    assert loss.item() == pytest.approx(plain + 0.1 * (gaps**2).sum(1).mean() / 2, rel=1e-5)
    mixed = batch._replace(labels=torch.full((len(batch.labels), 3), 1 / 3))
    with pytest.raises(UserError, match=r"batch_transforms: .* needs one class an image"):
        model.training_step(mixed, 0)


def test_what_a_checkpoint_has_beside_its_network_is_named_where_its_weights_are_taken(
    workplace, capsys
):
    options: Any = {"arch": "resnet9_slim", **ABOUT}
    checkpoint_of(CenterLossClassifier(**options), Path("centers.ckpt"))
    CenterLossClassifier(weights="centers.ckpt", **options)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith("3 classes; not taken, as they are not the network's: centers")


def test_sam_steps_by_the_gradient_uphill_as_a_plain_loop_does(batch):
    """In float64, with momentum; the statistics of BatchNorm are those of the first pass."""
    options: Any = {
        "arch": "resnet9_slim",
        "optimizer": lambda params: SGD(params, lr=0.1, momentum=0.9),
        "lr_scheduler": lambda optimizer: ConstantLR(optimizer, factor=1),
        **ABOUT,
    }
    model, plain = SAMClassifier(rho=0.5, **options), ImageClassifier(**options).double()
    plain.load_state_dict(model.state_dict())
    pairs: Any = [batch[:2]] * 3
    batches: DataLoader[Any] = DataLoader(pairs, batch_size=None)
    quiet_trainer(precision="64-true", max_epochs=1).fit(model, batches)
    weights = [*plain.parameters()]
    momentum = [torch.zeros_like(weight) for weight in weights]
    for _ in range(3):
        start = [weight.detach().clone() for weight in weights]
        first = torch.autograd.grad(plain.loss(plain(batch.images), batch.labels).mean(), weights)
        statistics = copy.deepcopy(plain.state_dict())
        norm = sum(gradient.square().sum() for gradient in first) ** 0.5
        for weight, gradient in zip(weights, first, strict=True):
            weight.data += 0.5 * gradient / norm
        second = torch.autograd.grad(plain.loss(plain(batch.images), batch.labels).mean(), weights)
        plain.load_state_dict(statistics)
        for i, weight in enumerate(weights):
            momentum[i] = 0.9 * momentum[i] + second[i]
            weight.data = start[i] - 0.1 * momentum[i]
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))
    with pytest.raises(UserError, match="must be 1 with SAM"):
        quiet_trainer(accumulate_grad_batches=2).fit(model, batches)


class Seldom(ImageClassifier):
    """Steps by hand, after every second batch."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        if batch_idx % 2:
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()
        return loss


def test_a_model_that_steps_by_hand_has_its_curves_from_the_first_batch_on(workplace):
    trainer = small(f"--model={__name__}.Seldom").trainer
    (rate,) = {point.value for point in events(RUN).Scalars("learning_rate")}
    assert rate == pytest.approx(trainer.optimizers[0].param_groups[0]["lr"])
    assert trainer.global_step == 4


def test_a_student_learns_from_labels_and_from_its_teacher_in_equal_parts(batch):
    student, teacher = (kind(arch="resnet9_slim", **ABOUT) for kind in (Student, ImageClassifier))
    student.__dict__["teachers"] = [teacher.eval()]
    logits, wanted = (
        model.eval()(batch.images).detach().double().numpy() for model in (student, teacher)
    )
    plain = student.loss(torch.tensor(logits), batch.labels).mean().item()
    p, q = softmax(wanted / 4, 1), softmax(logits / 4, 1)
    expected = (plain + 16 * (p * np.log(p / q)).sum(1).mean()) / 2
    assert student.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-4)
    assert not [name for name in student.state_dict() if "teacher" in name]


def test_a_teacher_of_other_classes_is_refused(tiny_run):
    best = str(tiny_run / "checkpoints" / "best.ckpt")
    with pytest.raises(UserError, match=r"--model\.teacher must know the data's classes"):
        Student(teacher=best, arch="resnet9_slim", **ABOUT).on_fit_start()


def vit(num_classes, **args):
    """A small vision transformer of timm's."""
    return timm.create_model("vit_tiny_patch16_224", num_classes=num_classes, **VIT | args)


@pytest.mark.slow
def test_lora_changes_weights_by_products_of_low_rank_in_exports_too(workplace, batch):
    args = VIT | {"img_size": batch.images.shape[-1]}
    torch.save(merged := vit(3, **args).state_dict(), "vit.pth")
    network: Any = {"arch": "timm/vit_tiny_patch16_224", "arch_args": args, "weights": "vit.pth"}
    model = LoRAClassifier(rank=2, **network, **ABOUT).eval()
    for name in [name for name in merged if name.endswith("qkv.weight")]:
        layer: Any = model.network.get_submodule(name.removesuffix(".weight"))
        (change,) = layer.parametrizations.weight
        torch.nn.init.normal_(change.up)
        merged[name] = merged[name] + change.up.detach() @ change.down.detach()
    trained = {
        name for name, parameter in model.network.named_parameters() if parameter.requires_grad
    }
    assert {name.rsplit(".")[-1] for name in trained} == {"up", "down", "weight", "bias"}
    plain = ImageClassifier(**network, **ABOUT).eval()
    plain.network.load_state_dict(merged)
    write_onnx(ProbabilityNetwork(model).eval(), model, Path("model.onnx"))
    expected = plain(batch.images).softmax(1)
    torch.testing.assert_close(load_onnx(Path("model.onnx"))(batch.images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["benign", "ok"])  # the class that is first, or second
def test_the_operating_point_is_scikit_learns_and_chosen_on_the_validation_set(
    workplace, capsys, other
):
    make_folder(Path("images"), {other: 60, "malignant": 60})
    for path in [*Path("images", other).glob("*1.jpg"), *Path("images/malignant").glob("*5.jpg")]:
        path.write_bytes(Path("images/malignant/0.jpg").read_bytes())  # no model is perfect on it
    options = [*RESIZED, *LARGE_SETS, "--model.arch=resnet9_slim", "--model.optimizer.lr=0.001"]
    model = ["--model=examples.binary.BinaryClassifier", "--monitor=val/auroc", "--data=images"]
    said = one_line(lambda: fit(*model, *options), capsys)
    assert "--model.positive must be one of two classes, which are ['" in said
    model += ["--model.positive=malignant", r"--data.group=\d+"]
    model += ["--model.test_time_augmentation=flip"]  # of which the threshold must know
    fit(*model, *options, *TINY_TRAINER, *QUIET, *NO_PLOTS, "--name=run")
    metrics = read_json("runs/run/metrics.json")
    best = "runs/run/checkpoints/best.ckpt"
    threshold = load(Path(best))["about"]["thresholds"]["malignant"]
    for split in ("val", "test"):
        evaluate(best, f"--split={split}", f"--output_predictions={split}.csv")
        known = rows(f"{split}.csv")
        labels = [row["true_label"] == "malignant" for row in known]
        label(best, *(row["path"] for row in known), "--probabilities", f"--output={split}-p.csv")
        predictions = rows(f"{split}-p.csv")
        shares = np.array([float(row["probability_malignant"]) for row in predictions])
        assert metrics[split]["auroc"] == pytest.approx(roc_auc_score(labels, shares), abs=1e-6)
        if split == "val":
            false, true, _ = roc_curve(labels, shares, drop_intermediate=False)
            assert metrics["val"]["sensitivity"] == pytest.approx(true[false <= 0.05].max())
        positive = shares >= threshold - 1e-7
        again = read_json(Path(best).with_suffix(f".{split}.metrics.json"))
        for measured in (metrics[split], again):  # by training, and by its checkpoint
            assert measured["accuracy"] == pytest.approx(accuracy_score(labels, positive))
            assert measured["f1"] == pytest.approx(f1_score(labels, positive, average="macro"))
            assert measured["sensitivity"] == pytest.approx(recall_score(labels, positive))
            specificity = recall_score(labels, positive, pos_label=False)
            assert measured["specificity"] == pytest.approx(specificity)
            expected = proportion_ci(int(positive[labels].sum()), sum(labels))
            assert measured["sensitivity_interval"] == pytest.approx(expected, abs=1e-9)
        for table in (predictions, known):
            assert [row["label"] == "malignant" for row in table] == positive.tolist()
    assert "take images as independent, which those of a group are not" in capsys.readouterr().out
    groups = len({Path(row["path"]).stem for row in known})
    page = report_of(Path("runs/run")).read_text()
    drawn = "draws for accuracy, macro F1, AUROC, sensitivity, specificity"
    assert f"{drawn}. Images of a group are alike: these draws are of {groups} groups" in page
    low, high = metrics["test"]["sensitivity_interval"]
    assert f"sensitivity, test; 95% interval {low:.4f} to {high:.4f}" not in page  # over images
    evaluate(best, "--calibrate")  # which moves the threshold with the probabilities
    label(best, *(row["path"] for row in known), "--output=again.csv")
    assert [row["label"] for row in rows("again.csv")] == [row["label"] for row in known]
    require_nearest_first(best, capsys)
    require_calibrated_report(Path("runs/run"), known, f"{threshold:.4f}")


def require_nearest_first(best: str, capsys: Any) -> None:
    """Compares the order with that of the distances from the threshold, in float64."""
    label(best, "images", "--probabilities", "--output=unsure.csv", "--overwrite")
    at = float(logit(load(Path(best))["about"]["thresholds"]["malignant"]))
    distance = {
        row["path"]: abs(float(logit(float(row["probability_malignant"]))) - at)
        for row in rows("unsure.csv")
    }
    capsys.readouterr()
    call(unsure, best, "images", "--count=120")
    listed = [row["path"] for row in csv.DictReader(capsys.readouterr().out.splitlines())]
    found = [distance[path] for path in listed]
    assert found == pytest.approx(sorted(distance.values()), abs=1e-5)


def require_calibrated_report(run: Path, known: list[Any], before: str) -> None:
    """Compares the page with the checkpoint and scikit-learn, also where the images are gone."""
    best = run / "checkpoints" / "best.ckpt"
    label(best, *(row["path"] for row in known), "--probabilities", "--output=calibrated.csv")
    shares = [float(row["probability_malignant"]) for row in rows("calibrated.csv")]
    loss = f"{log_loss([row['true_label'] == 'malignant' for row in known], shares):.4f}"
    after = f"{load(best)['about']['thresholds']['malignant']:.4f}"
    stale = f"{read_json(run / 'metrics.json')['test']['loss']:.4f}"
    assert after != before
    assert loss != stale
    page = report_of(run).read_text()
    assert f"<td>{after}</td>" in page
    assert f"<b>{loss}</b><span>loss, test" in page
    Path("images").rename("elsewhere")
    without = report_of(run).read_text()
    assert f"<td>{after}</td>" in without
    assert "loss, test" not in without
    assert not any(f">{value}<" in text for text in (page, without) for value in (before, stale))


@pytest.mark.parametrize("positive", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "target", [{"sensitivity": 0.95}, {"specificity": 0.9}, {"costs": (10, 1)}], ids=str
)
def test_a_threshold_is_the_best_of_all_for_its_target(target, positive):
    """Compared with a loop over the probabilities of all images, and none."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, generator=generator) < 0.3).long()
    shares = (torch.randn(200, generator=generator) + 1.5 * labels).sigmoid()
    probabilities = torch.stack([1 - shares, shares] if positive else [shares, 1 - shares], 1)
    metric = OperatingPoint(**target, positive=positive)
    metric.update(probabilities, labels if positive else 1 - labels)
    rates = metric.compute()
    found = {}
    for threshold in [*shares.tolist(), 1.0]:
        predicted = shares >= threshold
        hits, correct = recall_score(labels, predicted), recall_score(1 - labels, ~predicted)
        misses, alarms = int((labels > predicted).sum()), int((predicted > labels).sum())
        if "sensitivity" in target:
            found[threshold] = correct if hits >= 0.95 else -1
        elif "specificity" in target:
            found[threshold] = hits if correct >= 0.9 else -1
        else:
            found[threshold] = -10 * misses - alarms
    best = [threshold for threshold, value in found.items() if value == max(found.values())]
    assert rates["thresholds"][positive] == pytest.approx(max(best), abs=1e-6)
    predicted = shares >= rates["thresholds"][positive] - 1e-7
    assert rates["sensitivity"] == pytest.approx(recall_score(labels, predicted))
    assert rates["specificity"] == pytest.approx(recall_score(1 - labels, ~predicted))


@pytest.mark.parametrize("target", [{"specificity": 0.95}, {"costs": (1, 10)}], ids=str)
def test_no_image_is_positive_where_that_is_best_even_of_probability_1(target):
    metric = OperatingPoint(**target)
    shares = torch.tensor([1.0, 1, 1, 1, 1, 1, 0.2, 0.1])
    metric.update(torch.stack([1 - shares, shares], 1), torch.tensor([0, 0, 1, 1, 1, 1, 0, 0]))
    rates = metric.compute()
    assert (rates["specificity"], rates["sensitivity"]) == (1, 0)
    assert min(rates["thresholds"]) >= 0


def proportion_ci(hits, total):
    test = stats.binomtest(hits, total)
    return test.proportion_ci(method="wilson")


def test_the_balanced_accuracy_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    labels = torch.multinomial(
        torch.tensor([0.7, 0.2, 0.1, 0.0]), 300, replacement=True, generator=generator
    )
    logits = torch.randn(300, 4, generator=generator)
    logits[range(300), labels] += 1
    logits[:, 3] = -9.0  # a class that does not occur
    metric = BalancedAccuracy(4)
    for at in torch.arange(300).split(64):
        metric.update(logits[at], labels[at])
    assert float(metric.compute()) == pytest.approx(
        balanced_accuracy_score(labels, logits.argmax(1)), rel=1e-6
    )


def test_grad_cam_is_of_the_class_that_a_threshold_decides(monkeypatch):
    monkeypatch.setattr(BinaryClassifier, "predict_step", None)  # which may return what it likes
    model = BinaryClassifier(
        ["a", "b"], "b", preprocessing=PREPROCESSING, arch="resnet9_slim"
    ).eval()
    images = torch.randint(256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(0)).byte()
    torch.nn.init.normal_(model.network_head.weight)
    for decided, threshold in enumerate((1.1, 0.0)):
        model.thresholds = {"a": 1 - threshold, "b": threshold}
        kept: list[torch.Tensor] = []
        with model.network.get_submodule("layer3").register_forward_hook(
            lambda _, __, output, kept=kept: kept.append(output)
        ):
            score = model(images)[:, decided].sum()
        (slopes,) = torch.autograd.grad(score, kept[0])
        cam = (slopes.mean((2, 3), keepdim=True) * kept[0]).sum(1, keepdim=True).relu().detach()
        cam = torch.nn.functional.interpolate(cam, (32, 32), mode="bilinear")[:, 0]
        cam /= cam.amax((1, 2), keepdim=True).clamp(min=1e-12)
        torch.testing.assert_close(grad_cam(model, images), cam, rtol=1e-3, atol=1e-4)
