"""``python -m benchmarks`` does the same work in each variant, in turns, and reports what it measured."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import loops, peers
from benchmarks.loading import loading_variants
from benchmarks.loops import IN_TRAINING, OURS, PLAIN, TUTORIAL, Work, variants
from project.model.networks import build_network
from tests.conftest import as_in_a_terminal, make_folder

CPU = torch.device("cpu")
WORK = Work("resnet9_slim", {}, image_size=8, batch_size=4, steps=2)


@pytest.mark.slow
def test_every_variant_is_printed_and_written(tmp_path, monkeypatch, capsys):
    def sections(device, folder):
        yield "loading", loading_variants(folder, count=6, batch_size=2, image_size=16)
        yield "training", variants(WORK, device, training=True)
        yield "evaluating", variants(WORK, device, training=False)
        yield "starting", {"nothing": lambda round_: command.seconds_to_run(["-c", "pass"], round_)}

    monkeypatch.setattr(command, "sections", sections)
    with as_in_a_terminal():
        command.main([f"--output={tmp_path / 'found.json'}", "--rounds=2"])
    found = json.loads((tmp_path / "found.json").read_text())["sections"]
    assert list(found["training"]) == [TUTORIAL, PLAIN, OURS]
    assert list(found["evaluating"]) == [TUTORIAL, IN_TRAINING, OURS]
    assert all(
        len(values) == 2 and min(values) > 0
        for section in found.values()
        for values in section.values()
    )
    printed = capsys.readouterr().out
    expected = statistics.median(
        a / b for a, b in zip(found["training"][OURS], found["training"][PLAIN], strict=True)
    )
    assert f"{OURS} / {PLAIN}: {expected:.3f} (" in printed


def test_a_peer_that_fails_is_left_out_with_the_reason(tmp_path, monkeypatch, capsys):
    """As one whose package is there, and cannot be imported beside a newer torch."""
    folder = make_folder(tmp_path / "images", {"a": 8, "b": 8})

    def measured(peer: str, place: Path, size: int) -> float:
        if peer == "torchvision":
            text = b"Traceback:\n  import x\nImportError: cannot import name 'y'\n"
            raise subprocess.CalledProcessError(1, ["python"], stderr=text)
        return float(place.name == "many")

    monkeypatch.setattr(peers, "cpu_seconds", measured)
    monkeypatch.setattr(sys, "argv", ["peers", str(folder), "--rounds=2"])
    for name, value in {"FEW": 4, "MANY": 12, "BATCH": 2}.items():
        monkeypatch.setattr(peers, name, value)
    peers.main()
    out = capsys.readouterr().out
    assert "torchvision fails, and is left out: ImportError: cannot import name 'y'\n" in out
    assert "round 2: ours " in out
    assert "round 2: torchvision" not in out


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_plain_loop_and_lightning_end_in_the_same_weights(precision, monkeypatch):
    for module in ("benchmarks.loops", "lightkeeper.cli._fit"):
        monkeypatch.setattr(f"{module}.best_precision", lambda _: precision)
    with as_in_a_terminal():
        ours = loops.through_lightning(WORK, CPU, training=True)[1].network.state_dict()
    looped = loops.plain_loop(WORK, loops.images_for(WORK, CPU), CPU)[1].network.state_dict()
    torch.testing.assert_close(ours, looped)
    torch.manual_seed(0)
    fresh = build_network(WORK.arch, 10, WORK.arch_args).state_dict()
    assert not torch.allclose(looped["fc.weight"], fresh["fc.weight"], atol=1e-4)
