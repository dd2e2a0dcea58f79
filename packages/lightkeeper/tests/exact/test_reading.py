"""A short file neither fills the memory nor takes for ever, and is refused."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.exact._reading import read_file, require_tree
from lightkeeper.images._checkpoint import read_checkpoint, read_weights
from safetensors.torch import save_file

from tests.toy import cases

HUGE = b"\x8a\x05" + (10**10).to_bytes(5, "little")
"""The number 10^10, as pickles have it."""
ENCODED = b"X\x01\0\0\0aX\x05\0\0\0ascii\x86R" + 60 * b"X\x03\0\0\0hex\x86R"
EXPANDED = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03"
    b"\0\0\0cpuK\x01tQK\0" + HUGE + b"\x85K\0\x85\x89ccollections\nOrderedDict\n)RtR"
)
CALLS = {
    "it contains __builtin__.bytearray": b"c__builtin__\nbytearray\n" + HUGE + b"\x85R",
    "it contains _codecs.encode": 61 * b"c_codecs\nencode\n" + ENCODED,
    "it contains torch._utils._rebuild_device_tensor_from_cpu_tensor": (
        b"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n("
        + EXPANDED
        + b"ctorch\nfloat64\nX\x03\0\0\0cpu\x89tR"
    ),
    "a tuple in it is too large": b"}(K\0\x85"
    + 60 * b"q\0h\0\x86"
    + b"K\1u",  # 2^60 numbers in a key
}


def zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        parts = {name: content, "version": b"3\n", "byteorder": b"little", "data/0": bytes(4)}
        for part, value in parts.items():
            archive.writestr(f"archive/{part}", value)
    return file.getvalue()


def write(path: Path, body: bytes, kind: str) -> Path:
    """Writes a file of torch's whose content is a pickle, new or old."""
    content = b"\x80\2" + body + b"."
    if kind != "old":
        name = "DATA.PKL" if kind == "capitals" else "data.pkl"
        path.write_bytes(zipped(name, content))
    else:
        old = io.BytesIO()
        torch.save({}, old, _use_new_zipfile_serialization=False)
        empty = pickle.dumps({}, protocol=2)
        path.write_bytes(old.getvalue().replace(empty, content))
        assert content in path.read_bytes()
    return path


@pytest.mark.parametrize("kind", ["zip", "capitals", "old"])
@pytest.mark.parametrize("read", [read_checkpoint, read_weights])
@cases("why", *CALLS)
def test_a_short_pickle_that_would_make_much_is_refused_before_it_is_loaded(
    tmp_path, why, read, kind
):
    path = write(tmp_path / "small.ckpt", CALLS[why], kind)
    assert path.stat().st_size < 3000
    with pytest.raises(UserError, match=rf"small\.ckpt' .* cannot be read safely: {why}$"):
        read(path)


def test_a_file_of_which_torch_and_python_see_other_parts_is_refused(tmp_path):
    (content,) = (body for why, body in CALLS.items() if "bytearray" in why)
    content = b"\x80\2" + content + b"."
    bad, good = (zipped("data.pkl", text.ljust(len(content))) for text in (content, b"\x80\2}."))
    start, end = (len(bad) - 22 - size for size in (directory_size(bad), 0))
    # Python moves places by what stands between the directory and where it is said to be
    path = tmp_path / "two.ckpt"
    path.write_bytes(bad[:end] + good)
    with open(path, "r+b") as file:
        file.seek(-6, io.SEEK_END)
        file.write(struct.pack("<I", start))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("archive/data.pkl").strip() == b"\x80\2}."
    with pytest.raises(UserError, match="its directory is not at its end"):
        read_file(path)


def directory_size(archive: bytes) -> int:
    return struct.unpack("<I", archive[-10:-6])[0]


def shared() -> Any:
    betas = (0.9, 0.999)
    return [{"betas": betas, "size": torch.Size([2, 3])} for _ in range(5000)]


@pytest.mark.parametrize("is_new", [True, False])
@cases(
    "content",
    {"a": torch.zeros(3, 4), "b": torch.nn.Parameter(torch.ones(2)), "c": [1, 2.5, None, "x"]},
    shared(),
    [(number, (number,)) for number in range(5000)],
    {"set": {1, 2}, "complex": 1j, "dtype": torch.bfloat16, "large": 2**70},
    "builtins bytearray",
)
def test_what_torch_writes_of_values_is_read(tmp_path, content, is_new):
    torch.save(content, path := tmp_path / "file", _use_new_zipfile_serialization=is_new)
    assert str(read_file(path)) == str(content)


def test_a_file_of_safetensors_is_read_by_its_own_package(tmp_path, monkeypatch):
    """Before 2.14, torch does not."""
    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1], dtype=torch.bfloat16)}
    save_file(weights, path := tmp_path / "w.safetensors")
    monkeypatch.delattr(torch, "load")
    torch.testing.assert_close(read_file(path), weights, rtol=0, atol=0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"w\.safetensors' is damaged"):
        read_file(path)


def nest(depth: int, width: int) -> list[Any]:
    nested: list[Any] = [0] * width
    for _ in range(depth):
        nested = [nested] * width
    return nested


def looped() -> dict[str, Any]:
    inner: dict[str, Any] = {"list": []}
    inner["list"].append(inner)
    return inner


@cases(
    "make problem",
    (lambda: {"a": nest(9, 9)}, "too often"),  # 9^10 numbers, which a test's name would be made of
    (lambda: {"a": {"b": (nest(7, 10),)}}, "too often"),
    (lambda: {"a": looped()}, "inside each other"),
    (lambda: nest(1000, 1), "inside each other"),
)
def test_what_would_be_walked_for_ever_is_refused_at_once(make, problem):
    with pytest.raises(ValueError, match=problem):
        require_tree(make())


def test_lists_that_occur_several_times_as_in_real_checkpoints_are_not_refused():
    names = [str(number) for number in range(300_000)]
    require_tree({"about": {"names": names, "again": names}, "options": {"names": names}})
    require_tree([[0.9, 0.999]] * 1000)
    require_tree(5)
