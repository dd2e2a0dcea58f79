"""Grad-CAM, compared with its formula at a layer that is named here; embeddings with the network cut by hand."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torchvision.models.resnet import resnet18
from torchvision.models.squeezenet import squeezenet1_1
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from project.analysis.embeddings import embed, nearest, project
from project.analysis.gradcam import grad_cam
from project.model import ImageClassifier
from tests.model.test_classifier import PREPROCESSING, classifier, make_images

SIZE = 64
IMAGES = make_images(2, SIZE)


def with_network(network):
    model = classifier()
    model.network = network
    return model.eval()


def by_formula(model, layer, to_map):
    """Grad-CAM of the predicted class at a layer, one image after the other."""
    cams = []
    for image in IMAGES:
        kept: list[torch.Tensor] = []
        hook = layer.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output))
        logits = model(image[None])
        hook.remove()
        (slopes,) = torch.autograd.grad(logits[0].max(), kept[0])
        features, slopes = to_map(kept[0].detach())[0], to_map(slopes)[0]
        cam = sum(slopes[c].mean() * features[c] for c in range(len(features))).relu()
        cam = nn.functional.interpolate(cam[None, None], (SIZE, SIZE), mode="bilinear")[0, 0]
        cams.append(cam / cam.max().clamp(min=1e-12))
    return torch.stack(cams)


NETWORKS = {
    "resnet": (lambda: resnet18(num_classes=3), "layer4", lambda x: x),
    "squeezenet": (lambda: squeezenet1_1(num_classes=3), "classifier.2", lambda x: x),
    "vision transformer": (
        lambda: VisionTransformer(SIZE, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=3),
        "encoder.layers.encoder_layer_1.ln_1",
        lambda x: x[:, 1:].transpose(1, 2).unflatten(2, (4, 4)),
    ),
    "swin": (lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 2], [7, 7], num_classes=3), "permute", lambda x: x),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_finds_the_last_layer_with_places_of_any_network(name):
    torch.manual_seed(1)
    build, layer, to_map = NETWORKS[name]
    network = build()
    for parameter in network.parameters():  # some heads start from zero
        if parameter.abs().max() == 0:
            nn.init.normal_(parameter, std=0.1)
    model = with_network(network)
    expected = by_formula(model, network.get_submodule(layer), to_map)
    torch.testing.assert_close(grad_cam(model, IMAGES), expected, rtol=1e-3, atol=1e-4)


def test_a_frozen_network_is_explained_too_and_left_as_it_was():
    torch.manual_seed(0)
    model = with_network(resnet18(num_classes=3).requires_grad_(False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = grad_cam(model, IMAGES)
    assert found.shape == (2, SIZE, SIZE)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.network.modules())


def test_an_embedding_is_what_the_head_sees():
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet18").eval()
    images = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8)
    found = embed(model, images)
    assert found.shape == (4, 512)
    with torch.no_grad():
        torch.testing.assert_close(model.network.get_submodule("fc")(found), model(images))


EMBEDDINGS = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 3, 16)


def test_neighbours_are_those_of_scikit_learn():
    queries = EMBEDDINGS[:20]
    reference = NearestNeighbors(n_neighbors=5, metric="cosine").fit(EMBEDDINGS.numpy())
    expected = reference.kneighbors(queries.numpy(), return_distance=False)
    found = nearest(EMBEDDINGS, queries, 5)
    assert np.array_equal(found.numpy(), expected)
    assert found[:, 0].tolist() == list(range(20))


def test_the_projection_is_that_of_scikit_learn_up_to_signs():
    expected = PCA(2, svd_solver="full").fit_transform(EMBEDDINGS.double().numpy())
    found = project(EMBEDDINGS).numpy()
    for component in range(2):
        sign = np.sign(found[0, component] * expected[0, component])
        np.testing.assert_allclose(found[:, component], sign * expected[:, component], rtol=1e-6, atol=1e-9)
