"""Embeddings, compared with the network cut by hand and with scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from project.analysis.embeddings import embed, nearest, project
from project.model import ImageClassifier
from tests.model.test_classifier import PREPROCESSING


def test_an_embedding_is_what_the_head_sees():
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet18").eval()
    images = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8)
    found = embed(model, images)
    assert found.shape == (4, 512)
    with torch.no_grad():
        torch.testing.assert_close(model.network.get_submodule("fc")(found), model(images))


@pytest.fixture(scope="module")
def embeddings():
    return torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 3, 16)


def test_neighbours_are_those_of_scikit_learn(embeddings):
    queries = embeddings[:20]
    reference = NearestNeighbors(n_neighbors=5, metric="cosine").fit(embeddings.numpy())
    expected = reference.kneighbors(queries.numpy(), return_distance=False)
    found = nearest(embeddings, queries, 5)
    assert np.array_equal(found.numpy(), expected)
    assert found[:, 0].tolist() == list(range(20))


def test_the_projection_is_that_of_scikit_learn_up_to_signs(embeddings):
    expected = PCA(2, svd_solver="full").fit_transform(embeddings.double().numpy())
    found = project(embeddings).numpy()
    for component in range(2):
        sign = np.sign(found[0, component] * expected[0, component])
        np.testing.assert_allclose(found[:, component], sign * expected[:, component], rtol=1e-6, atol=1e-9)
