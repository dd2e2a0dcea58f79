"""Pretrained weights: found, downloaded once, copied whatever saved them, and images prepared as they ask for."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any, cast
from unicodedata import normalize
from unittest.mock import Mock

import huggingface_hub
import lightkeeper.images
import pytest
import timm
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from lightkeeper.images._checkpoint import ABOUT, read_checkpoint, read_weights
from lightkeeper.images._preprocessing import fit_image
from safetensors.torch import save_file
from timm.data import resolve_data_config  # type: ignore[attr-defined]  # not in its __all__
from timm.models import save_for_hf
from torch import nn
from torchvision.models import get_model, get_model_weights  # type: ignore[attr-defined]  # not in its __all__

from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.networks import build_for_images, build_network, head
from project.model.normalize import Normalization
from project.model.pretrained import find_weights, load_weights, start_from
from tests.conftest import (
    FLOWERS,
    QUIET,
    SLIM,
    TINY_TRAINER,
    cases,
    checkpoint_of,
    evaluate,
    fit,
    load,
    make_folder,
    read_json,
)
from tests.model.test_classifier import PREPROCESSING, make_images

ARCH = ["--model.arch=mobilenet_v3_small", "--model.weights=IMAGENET1K_V1"]
TORCHVISION_VIT = {
    **dict.fromkeys(("num_layers", "num_heads"), 1),
    "image_size": 32,
    "patch_size": 16,
    "hidden_dim": 12,
    "mlp_dim": 12,
}
VIT = {"img_size": 32, "patch_size": 16, "depth": 1, "embed_dim": 12, "num_heads": 3}
DATA = [
    "--data=FolderDataModule",
    "--data.root=images",
    "--data.batch_size=4",
    "--data.num_workers=0",
]


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


@cases(
    "arch weights complaint",
    ("resnet18", "IMAGENET1K_V1", r"/hub/checkpoints/resnet18-f37072fd\.pth' is .*unreachable"),
    ("resnet18", "http://a/net-01234567.pth", r"/hub/checkpoints/net-01234567\.pth' is .*unreach"),
    ("timm/resnet18", "DEFAULT", r"^--model.weights: 'timm/resnet18\..*' is .*unreachable"),
)
def test_without_a_network_one_line_names_the_file(monkeypatch, arch, weights, complaint):
    no_network = Mock(side_effect=OSError("Network is unreachable"))
    monkeypatch.setattr("torch.hub.download_url_to_file", no_network)
    monkeypatch.setattr(timm, "create_model", no_network)
    with pytest.raises(UserError, match=complaint):
        find_weights(arch, weights).weights()


@cases("change", torch.Tensor.to_sparse, lambda x: x.to("meta"), lambda x: x * 1j, lambda x: x / 0)
def test_weights_without_a_finite_number_each_are_refused_in_one_line(change):
    network = build_network("resnet9_slim", 3)
    weights = network.state_dict()
    name = next(name for name in weights if weights[name].dim() == 4)
    weights[name] = change(weights[name])
    with pytest.raises(UserError, match="has values that are not finite, or none"):
        load_weights(network, weights, "FILE", ["a", "b", "c"])


@pytest.mark.parametrize(
    "arch",
    ["resnet18", *(pytest.param(a, marks=pytest.mark.slow) for a in ("densenet121", "googlenet"))],
)
def test_torchvisions_own_weights_give_torchvisions_logits(arch, hub):
    hub.mkdir(parents=True)
    options = {"init_weights": False, "aux_logits": True} if arch == "googlenet" else {}
    state = get_model(arch, **options).state_dict()
    entry: Any = get_model_weights(arch)["DEFAULT"]
    file = hub / entry.url.rsplit("/", 1)[-1]
    if arch == "densenet121":  # as torchvision's files have it
        names = [name for name in state if not name.endswith("num_batches_tracked")]
        state = {
            name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): state[name]
            for name in names
        }
    torch.save(state, file)
    reference, ours = get_model(arch, weights=entry), build_network(arch, 1000)
    for weights in (str(file), "DEFAULT"):
        start_from(ours, arch, weights, [*map(str, range(1000))])
    preprocessing: Any = find_weights(arch, "DEFAULT").preprocessing
    image = make_images(1, side=400)[0, :, :300]
    seen = Normalization(preprocessing)(fit_image(image, preprocessing)[None], like=torch.empty(0))
    with torch.inference_mode():
        expected, found = reference.eval()(entry.transforms()(image)[None]), ours.eval()(seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 * expected.abs().max().item())


def test_weights_of_timm_come_from_its_own_cache_with_their_preprocessing(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    theirs = timm.create_model("resnet10t.c3_in1k")
    snapshot = tmp_path / "hf" / "models--timm--resnet10t.c3_in1k" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    save_file(theirs.state_dict(), snapshot / "model.safetensors")
    network = build_network("timm/resnet10t", 5)
    start_from(network, "timm/resnet10t", "c3_in1k", [*"abcde"])
    own, expected = network.state_dict(), theirs.state_dict()
    assert all(torch.equal(own[name], expected[name]) for name in own if not name.startswith("fc."))
    config = resolve_data_config(model=theirs)
    assert find_weights("timm/resnet10t", "DEFAULT").preprocessing == {
        "resize": int(config["input_size"][1] / config["crop_pct"]),
        "crop": config["input_size"][1],
        "fit": "crop",
        "interpolation": config["interpolation"],
        "mean": [*config["mean"]],
        "std": [*config["std"]],
    }


@cases(
    "arch weights complaint",
    ("resnet18", "IMAGENET1K_V7", r"no weights of that name; it has DEFAULT, IMAGENET1K_V1$"),
    ("resnet9", "DEFAULT", "resnet9 has no weights of that name; it has none$"),
    ("resnet_18", "DEFAULT", "there is no network 'resnet_18'; did you mean resnet18"),
    ("timm/resnet18", "a0_in1k", "it has DEFAULT, .*a1_in1k"),
)
def test_weights_that_do_not_exist_are_an_error_with_those_that_do(arch, weights, complaint):
    with pytest.raises(UserError, match=complaint):
        find_weights(arch, weights)


class Wrapped(nn.Module):
    """Has an attribute that is called like a wrapper."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, num_classes)
        )


def loaded(path: Path, weights, num_classes: int) -> tuple[dict[str, Any], str]:
    torch.save(weights, path)
    network = Wrapped(num_classes)
    names = [*map(str, range(num_classes))]
    head = load_weights(network, read_weights(path).tensors, str(path), names)
    return network.state_dict(), head


def prefixed(prefix: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in weights.items()}


@pytest.mark.parametrize("classes", [7, 3])
@cases(
    "wrap",
    lambda weights: weights,
    lambda weights: prefixed("_orig_mod.module.", weights),
    lambda weights: {"model": weights, "optimizer": {"lr": 0.1}, "args": Namespace(lr=0.1)},
    lambda weights: {"model": prefixed("module.", weights), "model_ema": weights, "epoch": 3},
    lambda weights: {"best_state_dict": prefixed("module.", weights), "epoch": 7},
    lambda weights: {"epoch": 3, "model_state_dict": weights, "optimizer_state_dict": {}},
    lambda weights: {"net": prefixed("module.", weights), "acc": 94.7, "epoch": 199},
    lambda weights: {"state_dict": prefixed("model.", weights) | {"loss.weight": torch.ones(7)}},
    lambda weights: {"state_dict": prefixed("net._orig_mod.", weights)},
    lambda weights: prefixed("module.", weights) | {"n_averaged": torch.tensor(3)},
    lambda weights: {"state_dict": prefixed("network.", weights), "about": {}, "counts": weights},
    lambda weights: {n: v for n, v in weights.items() if not n.endswith("num_batches_tracked")},
)
def test_weights_are_found_however_a_script_saved_them_and_a_new_head_starts_from_zero(
    tmp_path, wrap, classes
):
    trained = {name: value + 1 for name, value in Wrapped(7).state_dict().items()}
    state, head = loaded(tmp_path / "weights.pth", wrap(trained), classes)
    new = [] if classes == 7 else ["network.3.weight", "network.3.bias"]
    assert ("its head: it does not name its classes, so the 7 of the data" in head) == (not new)
    assert ("a new head for 3 classes (network.3.weight, network.3.bias)" in head) == bool(new)
    assert not any(state[name].any() for name in new)
    kept = [name for name in trained if name not in new and "num_batches" not in name]
    assert all(torch.equal(state[name], trained[name]) for name in kept)


@cases(
    "change complaint",
    (lambda weights: weights.pop("network.0.weight"), r'Missing key.*"network\.0\.weight"'),
    (lambda weights: weights.update(extra=torch.zeros(1)), r'Unexpected key.*"extra"'),
    (
        lambda weights: weights.update({"network.1.bias": torch.zeros(3)}),
        r"size mismatch for network\.1\.bias",
    ),
    (lambda weights: (weights.clear(), weights.update(epoch=3)), "a dict of weights, got none"),
    (
        lambda weights: weights.update(weights={"a": torch.ones(1)}, ema={"a": torch.ones(1)}),
        r'Unexpected key.*"weights\.a", "ema\.a"',
    ),
)
def test_weights_that_do_not_fit_are_listed(tmp_path, change, complaint):
    weights = Wrapped(7).state_dict()
    change(weights)
    with pytest.raises(UserError, match=complaint):
        loaded(tmp_path / "weights.pth", dict(weights), 7)


@cases(
    "write prefixes",
    (lambda a, b: prefixed("student.", a) | prefixed("teacher.", b), "'student.', 'teacher.'"),
    (lambda a, b: prefixed("ema.", a) | prefixed("model.", b), "'ema.', 'model.'"),
    (lambda a, b: a | prefixed("ema.", b), "'', 'ema.'"),
    (lambda a, b: a | {"ema": b, "epoch": 3}, "'', 'ema.'"),
    (lambda a, b: {"ema": a, "model": b | {"step": 3}}, "'ema.', 'model.'"),
    (lambda a, b: {"model": a, "model_ema": prefixed("module.", b)}, "'model.', 'model_ema.mod"),
    (lambda a, b: {"student": a, "teacher": b, "epoch": 3}, "'student.', 'teacher.'"),
    (lambda a, b: {"state_dict": a, "state_dict_ema": b}, "'state_dict.', 'state_dict_ema.'"),
    (
        lambda a, b: {
            "state_dict": prefixed("module.encoder_q.", a) | prefixed("module.encoder_k.", b)
        },
        "'module.encoder_q.', 'module.encoder_k.'",
    ),
    (  # with heads of other classes, or none
        lambda a, b: prefixed("q.", {n: a[n] for n in a if ".3." not in n}) | prefixed("teach.", b),
        "'q.', 'teach.'",
    ),
)
def test_of_two_networks_none_is_taken_and_the_message_has_the_line_that_saves_one(
    workplace, write, prefixes
):
    networks = [Wrapped(5).state_dict() for _ in range(2)]
    with pytest.raises(UserError, match=f"several networks .* prefixes {prefixes}") as error:
        loaded(Path("both.pth"), write(*networks), 7)
    (line,) = re.findall(r"torch\.save\(.*\)", str(error.value))
    exec(line, {"torch": torch, "lightkeeper": lightkeeper})
    state, _ = loaded(Path("again.pth"), torch.load("one.pth"), 7)
    expected = {name: networks[1][name] for name in state if ".3." not in name}
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_a_network_is_taken_that_fits_alone_and_one_that_is_there_twice(tmp_path):
    own = Wrapped(7).state_dict()
    wider = {
        name: value.repeat(2, *[1] * (value.dim() - 1))
        for name, value in own.items()
        if value.dim()
    }
    for others in (
        prefixed("m.", wider),
        prefixed("m.", own),
        {"head.network.3.bias": own["network.3.bias"] + 1},
    ):
        state, _ = loaded(tmp_path / "weights.pth", others | prefixed("student.", own), 7)
        assert all(torch.equal(state[name], value) for name, value in own.items())


def test_of_a_checkpoint_of_ours_the_network_is_taken_whatever_a_subclass_keeps_beside_it(
    tmp_path, tiny_run
):
    content = load(tiny_run / "checkpoints" / "best.ckpt")
    own = {n: v for n, v in content["state_dict"].items() if n.startswith("network.")}
    copies = {n.replace("network.", "net."): v + 1 for n, v in own.items()}
    content["state_dict"] = copies | content["state_dict"]
    torch.save(content, path := tmp_path / "student.ckpt")
    model = ImageClassifier(
        content["about"]["class_names"],
        cast(Any, {**PREPROCESSING, "resize": 64, "crop": 64}),  # a small one is no default
        weights=str(path),
    )
    assert all(torch.equal(model.state_dict()[name], value) for name, value in own.items())


TINY: dict[str, Any] = {"depth": 1, "num_heads": 2}
# a small one of each family, and an image size that is not its own
BACKBONES: dict[str, tuple[dict[str, Any], int]] = {
    "vit_small_patch14_dinov2": ({**TINY, "embed_dim": 24}, 98),
    "vit_small_patch14_reg4_dinov2": ({**TINY, "embed_dim": 24}, 56),
    "vit_small_patch16_dinov3": ({**TINY, "embed_dim": 24}, 96),  # positions by rotation alone
    "vit_base_patch16_siglip_224": ({**TINY, "embed_dim": 24}, 320),
    "vit_base_patch32_clip_224": ({**TINY, "embed_dim": 24}, 96),
    "eva02_tiny_patch14_224": ({"depth": 1, "embed_dim": 24}, 98),
    "test_vit": ({"depth": 1}, 96),  # takes any size
}


@pytest.mark.parametrize("arch", BACKBONES)
@pytest.mark.parametrize("kind", ["pth", "safetensors", "folder", "folder of torch's", "run"])
def test_weights_at_another_image_size_are_those_of_timm(tmp_path, arch, kind, capsys):
    args, size = BACKBONES[arch]
    file = str(tmp_path / "w.safetensors")
    about: Any = {"file": file, "hf_hub_id": None, "num_classes": 5}
    source: Any = timm.create_model(arch, num_classes=5, **args)
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.2)
    save_file(source.state_dict(), file)
    reference = timm.create_model(
        arch, pretrained=True, pretrained_cfg_overlay=about, num_classes=5, img_size=size, **args
    )
    own_size: Any = {**PREPROCESSING, "resize": size, "crop": size}
    path = tmp_path / f"w.{kind}"
    if "folder" in kind:
        save_for_hf(source, str(path), model_args=args, safe_serialization=kind == "folder")
    elif kind == "run":
        native: Any = {**PREPROCESSING, "crop": source.pretrained_cfg["input_size"][1]}
        model = ImageClassifier([*"abcde"], native, f"timm/{arch}", args, weights=file)
        checkpoint_of(model, path)
    else:
        (torch.save if kind == "pth" else save_file)(source.state_dict(), path)
    ours = ImageClassifier([*"abcde"], own_size, f"timm/{arch}", args, weights=str(path))
    images = make_images(2, side=size)
    seen = Normalization(own_size)(images, like=torch.empty(0))
    with torch.no_grad():
        expected, logits = reference.eval()(seen), ours.eval()(images)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)  # in another memory format
    assert expected.std() > 1e-3
    assert ("fitted" in capsys.readouterr().err.splitlines()[-1]) == (ours.arch_args != args)
    again = ImageClassifier.load_from_checkpoint(checkpoint_of(ours, tmp_path / "again.ckpt"))
    assert torch.equal(again.eval()(images), logits)


def test_an_image_size_that_cuts_a_patch_names_the_nearest_two():
    about = Preprocessing(resize=96, crop=[84, 96], mean=[0.5] * 3, std=[0.25] * 3)
    with pytest.raises(UserError, match=r"a multiple of 14, .* such as 84 or 98; got 96$"):
        build_for_images("timm/vit_small_patch14_dinov2", 5, {**TINY, "embed_dim": 24}, about)


KNOWN = ["cat", "dog", "cow", "caf\u00e9", "owl"]


@cases(
    "names said",
    (KNOWN, "with its head for the same 5 classes$"),
    (KNOWN[::-1], "with its head for the same 5 classes$"),
    (["cow", "owl"], "with its head for the same 2 classes$"),
    (
        ["ant", "cafe\u0301", "cow", "bee"],
        "its head's rows of 2 classes; new, from zero: ant, bee$",
    ),
    (["ant", "bee", "fly", "fox", "elk"], r"but with a new head for 5 classes \("),
    (["ant", "bee"], r"but with a new head for 2 classes \("),
)
@cases(
    "arch args",
    ("resnet9_slim", {}),
    ("mobilenet_v3_small", {}),  # classifier.3
    ("torchvision.models.VisionTransformer", TORCHVISION_VIT),  # heads.head
    ("squeezenet1_0", {}),  # whose head is a convolution
    ("timm/test_convnext", {}),  # head.fc
    ("timm/deit_tiny_distilled_patch16_224", VIT),  # two heads
)
def test_each_class_keeps_its_row_of_the_head_and_a_new_one_starts_from_zero(
    arch, args, names, said
):
    old = build_network(arch, len(KNOWN), args)
    for parameter in old.parameters():
        nn.init.normal_(parameter)
    network = build_network(arch, len(names), args)
    assert re.search(said, load_weights(network, old.state_dict(), "", names, KNOWN))
    rows = {normalize("NFD", name): row for row, name in enumerate(KNOWN)}
    heads = zip(head(network, len(names)).values(), head(old, len(KNOWN)).values(), strict=True)
    count = 0
    for layer, earlier in heads:
        for name, value in layer.named_parameters():
            for row, class_name in zip(value, names, strict=True):
                place = rows.get(normalize("NFD", class_name))
                expected = 0 * row if place is None else earlier.get_parameter(name)[place]
                assert torch.equal(row, expected)
                count += 1
    assert count == len(names) * (4 if "distilled" in arch else 2)


class WithHiddenLayer(nn.Module):
    """Has a head as timm's networks may have, whose hidden layer is as wide as KNOWN are many."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Sequential(nn.Linear(4, len(KNOWN)), nn.Linear(len(KNOWN), num_classes))

    def get_classifier(self) -> nn.Module:
        return self.head


def test_a_hidden_layer_of_a_head_is_kept_as_it_is():
    old: Any = WithHiddenLayer(5)
    new: Any = WithHiddenLayer(6)
    load_weights(new, old.state_dict(), "", [*reversed(KNOWN), "ant"], KNOWN)
    torch.testing.assert_close(new.head[0].state_dict(), old.head[0].state_dict())
    torch.testing.assert_close(new.head[1].weight[:5], old.head[1].weight.flip(0))


@pytest.fixture
def weights(workplace, hub) -> Path:
    """A file in torch's cache called as torchvision's, of other weights, and a folder of images."""
    make_folder(workplace / "images", dict.fromkeys("abc", 6))
    hub.mkdir(parents=True)
    torch.save(
        get_model("mobilenet_v3_small").state_dict(),
        file := hub / "mobilenet_v3_small-047dcff4.pth",
    )
    return file


def test_preprocessing_follows_the_weights_unless_it_is_given(weights, tiny_run, capsys):
    def parsed(*args: str):
        cli = FitCLI([*ARCH, *TINY_TRAINER, *args])
        return cli.config.data.init_args, cli.model.preprocessing

    options, found = parsed(*DATA)
    assert found == find_weights("mobilenet_v3_small", "IMAGENET1K_V1").preprocessing
    assert (options.image_size, options.resize, options.interpolation) == (224, 256, "bilinear")
    _, found = parsed(*DATA, "--data.image_size=[96,200]")
    assert (found["crop"], found["resize"]) == ([96, 200], [110, 229])
    options, found = parsed(
        FLOWERS, "--data.train_size=16", *SLIM, f"--model.weights={tiny_run}/checkpoints/best.ckpt"
    )
    assert (options.image_size, found["mean"]) == (32, [0.5, 0.5, 0.5])
    parsed(*DATA, f"--model.weights={weights}")
    assert capsys.readouterr().err.count("does not say how images are prepared") == 1


def test_a_run_keeps_what_the_weights_asked_for_and_needs_them_no_more(weights, capsys):
    flags = [
        *(*DATA, *ARCH, *TINY_TRAINER, *QUIET, "--model.freeze=backbone", "--name=run"),
        *("--data.image_size=64", "--data.interpolation=bicubic"),
    ]
    run = fit(*flags).run
    assert "but with a new head for 3 classes (classifier.3" in capsys.readouterr().err
    prepared = read_checkpoint(run.best)[ABOUT]["preprocessing"]
    assert (prepared["crop"], prepared["resize"], prepared["interpolation"]) == (64, 73, "bicubic")
    weights.unlink()
    evaluate(f"{run.best}", "--output=all.json")
    assert read_json("all.json")["accuracy"] == read_json(run.metrics)["test"]["accuracy"]
    run.metrics.unlink()
    fit(*flags, "--trainer.max_epochs=2")
    assert read_checkpoint(run.best)[ABOUT]["preprocessing"] == prepared
