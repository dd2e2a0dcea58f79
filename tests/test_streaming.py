"""The example of images in a bucket: a server of S3 on this machine has the same images as a folder."""

from typing import Any

import pytest
import torch

from project.data import FolderDataModule
from tests.conftest import make_folder
from tests.data.stubs import attached
from tests.data.test_torch_dataset import joined

litdata = pytest.importorskip("litdata", reason="litdata is no requirement")
server = pytest.importorskip("moto.server", reason="moto is no requirement")
boto3 = pytest.importorskip("boto3", reason="boto3 is no requirement")


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The address of a folder's images in a bucket, and the client."""
    s3 = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    s3.start()
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "x")
    address = "http://{}:{}".format(*s3.get_host_and_port())
    for name, value in (
        keys | {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS, "allow_http", "true")
    client = boto3.client("s3")
    client.create_bucket(Bucket="photos")
    for file in make_folder(tmp_path / "images", {"rose": 12, "tulip": 20}).rglob("*.jpg"):
        key = f"all/{file.relative_to(tmp_path / 'images').as_posix()}"
        client.put_object(Bucket="photos", Key=key, Body=file.read_bytes())
    yield "s3://photos/all", client
    s3.stop()


@pytest.mark.filterwarnings("ignore")  # of fsspec, s3fs and botocore
def test_a_bucket_is_served_as_the_folder_is_to_the_last_bit_and_stays_as_it_is(tmp_path, bucket):
    from examples.streaming import StreamingDataModule

    (address, client), images = bucket, str(tmp_path / "images")
    options: dict[str, Any] = {"image_size": 8, "batch_size": 4, "seed": 3}
    theirs = attached(FolderDataModule(images, num_workers=0, **options), epoch=2)
    for root, workers in ((address, 1), (address, 0), (images, 0)):
        data = attached(StreamingDataModule(root, num_workers=workers, **options), epoch=2)
        assert data.class_names == theirs.class_names
        for split in ("train", "val", "test"):
            loaders = (getattr(one, f"{split}_dataloader")() for one in (data, theirs))
            assert all(torch.equal(*fields) for fields in zip(*map(joined, loaders), strict=True))
    assert (
        len(client.list_objects_v2(Bucket="photos")["Contents"])
        == len([*tmp_path.rglob("*.*")])
        == 32
    )
