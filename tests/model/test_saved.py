"""A checkpoint is plain data and needs nothing else to give the same logits, or to train on."""

import pytest
import torch
from torch import nn
from torch.optim import Adam

from project.model import ImageClassifier
from tests.model.test_classifier import NAMES, PREPROCESSING, Memory, classifier, logits_of, make_images, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model after some training, and its checkpoint."""
    model = classifier(arch_args={"stem": "cifar"}, optimizer=lambda parameters: Adam(parameters, lr=1e-3))
    run = trainer(max_epochs=1)
    run.fit(model, datamodule=Memory())
    path = tmp_path_factory.mktemp("checkpoints") / "model.ckpt"
    run.save_checkpoint(path)
    return model, path


def test_a_checkpoint_is_plain_data(trained):
    checkpoint = torch.load(trained[1], weights_only=True)
    assert checkpoint["hyper_parameters"]["class_names"] == NAMES
    assert checkpoint["hyper_parameters"]["preprocessing"] == PREPROCESSING


def test_a_checkpoint_needs_nothing_else_to_give_the_same_logits(trained):
    model, path = trained
    loaded = ImageClassifier.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(logits_of(loaded, make_images(32)), logits_of(model, make_images(32)))
    assert (loaded.class_names, loaded.arch, loaded.arch_args) == (NAMES, "resnet18", {"stem": "cifar"})


def test_a_loaded_model_trains_on_and_its_checkpoint_is_plain_data_too(trained, tmp_path):
    loaded = ImageClassifier.load_from_checkpoint(trained[1], weights_only=True)
    run = trainer(max_epochs=1, limit_val_batches=0)
    run.fit(loaded, datamodule=Memory())
    run.save_checkpoint(tmp_path / "again.ckpt")
    again = ImageClassifier.load_from_checkpoint(tmp_path / "again.ckpt", weights_only=True)
    assert torch.equal(logits_of(again, make_images()), logits_of(loaded, make_images()))
    assert not torch.equal(logits_of(again, make_images()), logits_of(trained[0], make_images()))


def test_what_was_trained_with_synchronised_batchnorm_loads_anywhere(trained, tmp_path):
    model, path = trained
    checkpoint = torch.load(path, weights_only=True)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(ImageClassifier.load_from_checkpoint(path))
    assert any(isinstance(module, nn.SyncBatchNorm) for module in synchronised.modules())
    torch.save({**checkpoint, "state_dict": synchronised.state_dict()}, tmp_path / "sync.ckpt")
    loaded = ImageClassifier.load_from_checkpoint(tmp_path / "sync.ckpt", weights_only=True)
    assert torch.equal(logits_of(loaded, make_images()), logits_of(model, make_images()))


def test_the_state_dict_holds_the_network_alone(trained):
    assert all(name.startswith("network.") for name in trained[0].state_dict())
