"""Shards: what is written, in which order it is read, how often it is fetched, and that no kill changes a bit."""

import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from lightkeeper.exact import UserError
from lightkeeper.images import prepare

from examples.shards import ShardsDataModule
from examples.tests.test_examples import NO_PLOTS
from examples.write_shards import write_shards
from project.data import FolderDataModule
from tests.conftest import ROOT, environment, make_folder
from tests.stubs import attached

LIBRARY = ROOT / "packages" / "lightkeeper"
OPTIONS: dict[str, Any] = {"image_size": 16, "batch_size": 4, "seed": 3}


class Counted(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files, of which each fetched one is noted in a file, by any process."""

    protocol = "counted"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("counted://"))
        return stripped

    def get_file(self, path: str, *args: Any, **options: Any) -> None:
        with open("fetched", "a") as log:
            log.write(f"{Path(path).name}\n")
        super().get_file(path, *args, **options)


fsspec.register_implementation("counted", Counted, clobber=True)


@pytest.fixture
def shards(workplace) -> str:
    """A folder of shards of seven images, or fewer."""
    make_folder(Path("images"), {"rose": 40, "tulip": 50, "aster": 30})
    write_shards("images", Path("shards"), 7)
    return f"counted://{Path('shards').absolute()}"


def test_a_shard_is_a_plain_tar_file_of_all_classes_and_evaluation_sees_the_folders_images(shards):
    folder = FolderDataModule("images", num_workers=0, **OPTIONS)
    data = ShardsDataModule(shards, num_workers=0, **OPTIONS)
    files = folder.files()
    for split, positions in data.positions.items():
        written: list[tuple[bytes, int]] = []
        for path in sorted(Path("shards").glob(f"{split}-*.tar")):
            with tarfile.open(path) as tar:
                parts = [tar.extractfile(member) for member in tar]
                content = [part.read() for part in parts if part is not None]
            written += zip(content[::2], map(int, content[1::2]), strict=True)
        assert [data.datasets[split][position] for position in positions] == written
        own = [file for file in files if file.split == split]
        expected = [(Path(f.path).read_bytes(), folder.class_names.index(f.label)) for f in own]
        assert sorted(written) == sorted(expected)
    image = attached(data).splits["val"].image(2)
    paths = [file.path for file in files if file.split == "val"]
    assert any(torch.equal(image, prepare(path, data.preprocessing)) for path in paths)


def test_a_call_that_failed_is_repeated_and_none_adds_to_the_shards_of_another(workplace):
    for _ in range(2):
        with pytest.raises(UserError, match="there is no folder 'images'"):
            write_shards("images", Path("shards"))
    make_folder(Path("images"), {"rose": 4, "tulip": 4})
    Path("shards").mkdir()  # an empty one, by hand
    write_shards("images", Path("shards"))
    with pytest.raises(UserError, match="'shards' is there already; remove it, or take another"):
        write_shards("images", Path("shards"))


def test_an_epoch_mixes_a_few_shards_at_a_time_and_has_each_image_once(shards):
    data = attached(ShardsDataModule(shards, mixed=3, num_workers=0, **OPTIONS))
    places = data.datasets["train"].places[:, 0]
    orders = [data.order(epoch).tolist() for epoch in range(4)]
    assert len({*map(tuple, orders)}) == 4
    for order in orders:
        assert sorted(order) == list(range(len(places)))
        groups = [{*places[order[start : start + 3]].tolist()} for start in range(0, len(order), 3)]
        left = Counter(places.tolist())
        open_shards: set[int] = set()
        for group, start in zip(groups, range(0, len(order), 3), strict=True):
            open_shards |= group
            assert len(open_shards) <= 6  # three that end, and three that begin
            left.subtract(places[order[start : start + 3]].tolist())
            open_shards -= {shard for shard in open_shards if not left[shard]}
    seen = torch.cat([batch.indices for batch in data.train_dataloader()])
    assert seen.tolist() == orders[0][: len(seen)]


@pytest.mark.parametrize("kept", [2, 64])
def test_workers_fetch_a_shard_once_if_the_disk_keeps_it_and_serve_the_same_if_not(shards, kept):
    cached = ShardsDataModule(shards, cache="cache", kept=kept, num_workers=2, **OPTIONS)
    alone = ShardsDataModule(shards, cache="other", num_workers=0, **OPTIONS)
    batches = [*attached(cached).train_dataloader()]
    fetched = Counter(Path("fetched").read_text().split())
    files = {path.name for path in Path("shards").glob("train-*.tar")}
    assert {name for name in fetched if name.startswith("train")} == files
    assert len([*Path("cache").glob("*.tar")]) <= kept
    if kept == 64:
        assert {*fetched.values()} == {1}
    for batch, expected in zip(batches, attached(alone).train_dataloader(), strict=True):
        assert all(map(torch.equal, batch, expected))


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARY.is_dir(), reason="the library's stress test is not here")
@pytest.mark.parametrize(
    "scenario", ["loader workers, several validations an epoch", "two processes"]
)
@pytest.mark.usefixtures("shards")
def test_twenty_kills_change_no_bit(scenario):
    options = [
        *(
            "--data=examples.shards.ShardsDataModule",
            f"--data.root={Path('shards').absolute()}",
            "--data.kept=6",
        ),
        *("--data.mixed=2", "--data.image_size=16", "--model.arch=resnet9_slim"),
        *(f"--data.cache={Path('cache').absolute()}", "--data.num_workers=1"),
        *NO_PLOTS,
    ]
    stress = [sys.executable, "-m", "tests.stress", "--command=project.fit.FitCLI", "--kills=20"]
    paths = os.pathsep.join(map(str, (LIBRARY, LIBRARY / "src", ROOT)))
    done = subprocess.run(
        [*stress, f"--scenario={scenario}", "--", *options],
        cwd=LIBRARY,  # whose tests these are
        env=environment() | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(
        r"20 kills, \d+ continuations, 0 differences, .*", done.stdout.splitlines()[-1]
    )
