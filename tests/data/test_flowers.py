import pytest

from project.data import FlowersDataModule, flowers
from project.engine.errors import UserError
from tests.engine.loading.image_files import write_folder
from tests.engine.run.archives import serving, write_archive

CLASSES = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(flowers, "URL", "http://127.0.0.1:9/flower_photos.tgz")


def photos(root):
    folder = write_folder(root / "flower_photos", dict.fromkeys(reversed(CLASSES), 4))
    (folder / "LICENSE.txt").write_text("the archive has one")
    return folder


def module(root):
    return FlowersDataModule(str(root), image_size=16, batch_size=5, num_workers=0)


def test_class_names_are_known_beforehand_and_are_those_of_the_folders(tmp_path):
    data = module(tmp_path)
    before = data.class_names
    photos(tmp_path)
    assert before == data.class_names == list(data.files()["train"]) == CLASSES


def test_without_network_the_error_tells_where_to_put_the_images(tmp_path):
    with pytest.raises(UserError, match=r"flower_photos\.tgz' cannot be fetched .*; connect to the network"):
        module(tmp_path).prepare_data()


def test_the_archive_is_fetched_and_checked(tmp_path, monkeypatch):
    folder = photos(tmp_path / "origin")
    members = {str(path.relative_to(folder.parent)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(flowers, "MD5", write_archive(tmp_path / "flower_photos.tgz", members))
    data = module(tmp_path / "new")
    with serving(tmp_path) as server:
        monkeypatch.setattr(flowers, "URL", server.url("flower_photos.tgz"))
        data.prepare_data()
    assert sum(len(files) for split in data.files().values() for files in split.values()) == 20
