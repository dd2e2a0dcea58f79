"""Pretrained weights, served from the loopback address."""

import hashlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import torchvision
from torchvision.models import (  # type: ignore[attr-defined]  # not in its __all__
    get_model,
    get_model_weights,
    list_models,
)
from torchvision.transforms import v2

from project.engine.errors import UserError
from project.engine.loading.crops import fit_image
from project.model import ImageClassifier
from project.model.networks import build_network
from project.model.normalize import Normalization
from project.model.pretrained import find_weights, hub_folder, start_from


class Server:
    """Serves one file.

    Attributes:
        content: What the file holds.
        sent: How many bytes of it are sent before the connection is cut.
        requests: How many there were.
    """

    def __init__(self) -> None:
        self.content, self.sent, self.requests = b"", None, 0
        self.url = ""


@pytest.fixture
def server() -> Iterator[Any]:
    served: Any = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            served.requests += 1
            if "missing" in self.path:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(served.content)))
            self.end_headers()
            self.wfile.write(served.content[: served.sent])

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    served.url = f"http://127.0.0.1:{http.server_port}"
    yield served
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch) -> Path:
    """An empty cache of torch's, and no proxy."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "hub" / "checkpoints"


def saved(network: Any, path: Path) -> bytes:
    torch.save(network.state_dict(), path)
    return path.read_bytes()


@pytest.fixture
def weights_file(server, tmp_path) -> tuple[dict[str, Any], str]:
    """Weights that the server has, and a name with their hash."""
    network = get_model("resnet18", num_classes=5)
    server.content = saved(network, tmp_path / "made.pth")
    return network.state_dict(), f"resnet18-{hashlib.sha256(server.content).hexdigest()[:8]}.pth"


def left(hub: Path) -> list[str]:
    return [path.name for path in hub.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_weights_are_downloaded_once_and_checked(server, weights_file, hub):
    expected, name = weights_file
    for _ in range(2):
        found = find_weights("resnet18", f"{server.url}/{name}").weights()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert server.requests == 1
    assert left(hub) == [name]


def test_files_of_one_name_at_two_addresses_are_two(server, hub, tmp_path):
    found: list[int] = []
    for run in ("first", "second", "first"):
        server.content = saved(get_model("resnet18", num_classes=2 + len(found)), tmp_path / "made.pth")
        found.append(find_weights("resnet18", f"{server.url}/runs/{run}/best.ckpt").weights()["fc.bias"].shape[0])
    assert found == [2, 3, 2]
    assert server.requests == 2


def test_of_those_that_start_together_one_downloads(server, weights_file, hub):
    _, name = weights_file
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: find_weights("resnet18", f"{server.url}/{name}").weights().keys(), range(4))
        assert len({len(keys) for keys in found}) == 1
    assert server.requests == 1
    assert left(hub) == [name]


@pytest.mark.parametrize(
    ("name", "sent", "complaint"),
    [
        ("resnet18-00000000.pth", None, r"its SHA-256 is [0-9a-f]{8}…, not 00000000…"),
        ("resnet18.pth", 1000, r"the connection was cut after 1,000 of [0-9,]+ bytes"),
        ("missing.pth", None, "404"),
    ],
    ids=["another hash", "cut", "missing"],
)
def test_what_does_not_arrive_whole_is_not_kept(server, weights_file, hub, name, sent, complaint):
    server.sent = sent
    with pytest.raises(UserError, match=complaint) as error:
        find_weights("resnet18", f"{server.url}/{name}").weights()
    for told in (str(hub), f"{name}'", f"{server.url}/{name}", "put the file there"):
        assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert left(hub) == []


def test_without_a_network_one_line_names_the_file_and_its_place(hub, monkeypatch):
    def no_network(*_args, **_kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr("project.engine.run.download.urlopen", no_network)
    with pytest.raises(UserError) as error:
        ImageClassifier(["a", "b"], PREPROCESSING, weights="IMAGENET1K_V1")
    expected = "resnet18-f37072fd.pth"
    assert str(hub / expected) in str(error.value)
    assert f"https://download.pytorch.org/models/{expected}" in str(error.value)
    assert "Network is unreachable" in str(error.value)
    assert left(hub) == []


def test_without_a_network_one_line_names_timms_weights_and_their_place(hub, monkeypatch, capsys):
    def no_network(*_args, **_kwargs):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 5/5].")
        raise OSError("Network is unreachable")

    weights = find_weights("timm/resnet18", "DEFAULT").weights
    monkeypatch.setattr(timm, "create_model", no_network)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    with pytest.raises(UserError, match=rf"^--model.weights: 'timm/resnet18\..*' is not in '{hub}' and .*unreachable"):
        weights()
    said = capsys.readouterr()
    assert "Retrying" not in said.err
    assert "fetching timm/resnet18." in said.err


PREPROCESSING: Any = {"resize": 32, "crop": 32, "mean": [0.5] * 3, "std": [0.25] * 3}


def test_a_file_in_the_cache_that_is_another_is_refused(hub):
    hub.mkdir(parents=True)
    (hub / "resnet18-f37072fd.pth").write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"resnet18-f37072fd\.pth' is not the expected file: .*remove it"):
        find_weights("resnet18", "DEFAULT").weights()


def old_names(weights):
    """As torchvision's files of DenseNets have them."""
    return {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value
        for name, value in weights.items()
        if not name.endswith("num_batches_tracked")
    }


@pytest.mark.parametrize("arch", ["resnet18", "densenet121", "mnasnet0_5", "googlenet"])
def test_torchvisions_own_weights_are_loaded_with_a_new_head_and_give_torchvisions_features(arch, hub, monkeypatch):
    hub.mkdir(parents=True)
    options = {"init_weights": False, "aux_logits": True} if arch == "googlenet" else {}
    theirs: Any = get_model(arch, **options)
    entry: Any = get_model_weights(arch)["DEFAULT"]
    name = entry.url.rsplit("/", 1)[-1]
    torch.save(old_names(theirs.state_dict()) if arch == "densenet121" else theirs.state_dict(), hub / name)
    monkeypatch.setattr("project.model.pretrained.fetch_file", lambda url, path, sha256: None)
    reference: Any = get_model(arch, weights=entry) if arch != "resnet18" else theirs
    ours = build_network(arch, 1000)
    start_from(ours, arch, "DEFAULT", 1000)

    preprocessing: Any = find_weights(arch, "DEFAULT").preprocessing()
    image = torch.randint(0, 256, (3, 300, 400), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = Normalization(preprocessing["mean"], preprocessing["std"])(
        fit_image(image, preprocessing)[None], like=torch.empty(0)
    )
    with torch.inference_mode():
        expected = reference.eval()(entry.transforms()(image)[None])
        found = ours.eval()(seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 * expected.abs().max().item())


@pytest.mark.parametrize("arch", list_models(module=torchvision.models))
def test_the_preprocessing_of_every_name_is_torchvisions(arch):
    image = torch.randint(0, 256, (3, 120, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for entry in {weights.name: weights for weights in get_model_weights(arch)}.values():
        found: Any = find_weights(arch, entry.name).preprocessing()
        preset = entry.transforms()
        scale = v2.Resize(preset.resize_size, interpolation=preset.interpolation, antialias=True)
        expected = v2.functional.center_crop(scale(image), preset.crop_size)
        assert (fit_image(image, found).int() - expected.int()).abs().max() <= 1
        if arch not in ("googlenet", "inception_v3"):
            assert (found["mean"], found["std"]) == (list(preset.mean), list(preset.std))


@pytest.mark.parametrize(
    ("arch", "weights", "complaint"),
    [
        ("resnet18", "IMAGENET1K_V7", r"no weights of that name; it has DEFAULT and IMAGENET1K_V1$"),
        ("resnet9", "DEFAULT", "resnet9 has no weights of that name; it has none$"),
        ("my_package.Net", "DEFAULT", r"my_package\.Net cannot be imported"),
        ("resnet17", "DEFAULT", "there is no network 'resnet17'"),
        ("timm/resnet18", "a0_in1k", "it has DEFAULT, .*a1_in1k"),
    ],
)
def test_weights_that_do_not_exist_are_an_error_with_those_that_do(arch, weights, complaint):
    if arch.startswith("timm/"):
        pytest.importorskip("timm")
    with pytest.raises(UserError, match=complaint):
        find_weights(arch, weights)


@pytest.fixture
def timm_cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub that timm uses, and no network."""
    pytest.importorskip("timm")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hf"


def test_weights_of_timm_come_from_its_own_cache_with_their_preprocessing(timm_cache):
    import timm
    from safetensors.torch import save_file
    from timm.data import resolve_data_config  # type: ignore[attr-defined]  # not in its __all__

    theirs = timm.create_model("resnet10t.c3_in1k")
    snapshot = timm_cache / "models--timm--resnet10t.c3_in1k" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    save_file(theirs.state_dict(), snapshot / "model.safetensors")
    network = build_network("timm/resnet10t", 5)
    start_from(network, "timm/resnet10t", "c3_in1k", 5)
    own, expected = network.state_dict(), theirs.state_dict()
    assert all(torch.equal(own[name], expected[name]) for name in own if not name.startswith("fc."))
    found: Any = find_weights("timm/resnet10t", "DEFAULT").preprocessing()
    config = resolve_data_config(model=theirs)
    assert (found["crop"], found["interpolation"]) == (config["input_size"][1], config["interpolation"])
    assert found["resize"] == int(config["input_size"][1] / config["crop_pct"])
    assert (tuple(found["mean"]), tuple(found["std"])) == (config["mean"], config["std"])


def test_the_folder_is_torchs_own(hub):
    assert hub_folder() == hub
    assert find_weights("resnet18", "DEFAULT").source == "IMAGENET1K_V1 of resnet18"
