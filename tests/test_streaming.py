"""The example of images in a bucket: a server of S3 on this machine has the same images as a folder."""

from typing import Any

import pytest
import torch

from examples.streaming import StreamingDataModule
from project.data import FolderDataModule
from tests.conftest import make_folder
from tests.data.stubs import attached
from tests.data.test_torch_dataset import joined


@pytest.fixture
def images(tmp_path):
    make_folder(tmp_path / "images", {"rose": 12, "tulip": 20})
    return tmp_path / "images"


@pytest.fixture
def bucket(images, monkeypatch):
    """The address of a folder's images in a bucket."""
    pytest.importorskip("s3fs", reason="s3fs is no requirement")
    server = pytest.importorskip("moto.server", reason="moto is no requirement")
    boto3 = pytest.importorskip("boto3", reason="boto3 is no requirement")
    s3 = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3.start()
    address = "http://{}:{}".format(*s3.get_host_and_port())
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "x")
    keys |= {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="photos")
    for file in images.rglob("*.jpg"):
        key = f"all/{file.relative_to(images).as_posix()}"
        client.put_object(Bucket="photos", Key=key, Body=file.read_bytes())
    yield "s3://photos/all"
    s3.stop()


@pytest.mark.filterwarnings("ignore")  # of s3fs and botocore
@pytest.mark.parametrize("place", ["images", "bucket"])
def test_a_bucket_is_served_as_the_folder_is_to_the_last_bit(images, place, request):
    root = str(request.getfixturevalue(place))
    options: dict[str, Any] = {"image_size": 8, "batch_size": 4, "seed": 3}
    theirs = attached(FolderDataModule(str(images), num_workers=0, **options), epoch=2)
    for workers in (1, 0):
        data = attached(StreamingDataModule(root, num_workers=workers, **options), epoch=2)
        assert data.class_names == theirs.class_names
        for split in ("train", "val", "test"):
            loaders = (getattr(module, f"{split}_dataloader")() for module in (data, theirs))
            assert all(map(torch.equal, *map(joined, loaders)))
