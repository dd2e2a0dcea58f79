"""A checkpoint is plain data and needs nothing else to give the same logits, or to train on."""

import torch
from torch import nn
from torch.optim import Adam

from project.model import ImageClassifier
from tests.model.test_classifier import NAMES, PREPROCESSING, Memory, classifier, logits_of, make_images, trainer


def test_a_checkpoint_is_plain_data_that_loads_trains_on_and_loads_again(tmp_path):
    model = classifier(arch="airbench", arch_args={"widths": [8, 8, 8]}, optimizer=lambda groups: Adam(groups, lr=1e-3))
    run, path = trainer(max_epochs=1), tmp_path / "model.ckpt"
    run.fit(model, datamodule=Memory())
    run.save_checkpoint(path)
    content = torch.load(path, weights_only=True)
    assert content["hyper_parameters"]["class_names"] == NAMES
    assert content["hyper_parameters"]["preprocessing"] == PREPROCESSING
    assert all(name.startswith("network.") for name in content["state_dict"])
    loaded, images = ImageClassifier.load_from_checkpoint(path, weights_only=True), make_images(32)
    expected = logits_of(model, images)
    assert torch.equal(logits_of(loaded, images), expected)
    assert (loaded.class_names, loaded.arch, loaded.arch_args) == (NAMES, "airbench", {"widths": [8, 8, 8]})
    # with synchronised BatchNorm, too, which other machines may not have
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(ImageClassifier.load_from_checkpoint(path))
    assert any(isinstance(module, nn.SyncBatchNorm) for module in synchronised.modules())
    torch.save({**content, "state_dict": synchronised.state_dict()}, tmp_path / "sync.ckpt")
    other = ImageClassifier.load_from_checkpoint(tmp_path / "sync.ckpt", weights_only=True)
    assert torch.equal(logits_of(other, images), expected)

    run = trainer(max_epochs=1, limit_val_batches=0)
    run.fit(loaded.train(), datamodule=Memory())
    run.save_checkpoint(tmp_path / "again.ckpt")
    again = ImageClassifier.load_from_checkpoint(tmp_path / "again.ckpt", weights_only=True)
    assert torch.equal(logits_of(again, images), logits_of(loaded, images))
    assert not torch.equal(logits_of(again, images), expected)
