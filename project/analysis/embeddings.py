"""Images in a network's feature space: their embeddings, nearest neighbours and a projection to two dimensions."""

import torch
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor
from torch.nn import functional as F

from project.analysis.plots import as_rgb
from project.model import ImageClassifier
from project.model.networks import head


def embed(model: ImageClassifier, images: Tensor) -> Tensor:
    """Computes the features that the head of the network gets for images: float (N, features), on the CPU."""
    model.eval()
    (layer,) = list(head(model.network, len(model.class_names)).values())[-1:]
    features: list[Tensor] = []
    with (
        torch.inference_mode(),
        layer.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0])),
    ):
        model(images.to(model.device))
    return features[0].float().flatten(1).cpu()


def nearest(embeddings: Tensor, queries: Tensor, count: int) -> Tensor:
    """Finds for each query the positions of the ``count`` embeddings of greatest cosine similarity, best first."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(embeddings, dim=1).T
    return similarity.topk(count, dim=1).indices


def project(embeddings: Tensor) -> Tensor:
    """Projects embeddings onto their two principal components; the largest loading of each is positive."""
    centred = embeddings.double() - embeddings.double().mean(0)
    components = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    signs = components.gather(1, components.abs().argmax(1, keepdim=True)).sign()
    projected: Tensor = centred @ (components * signs).T
    return projected


def projection_figure(
    points: Tensor, labels: Tensor, class_names: list[str], thumbnails: dict[int, Tensor]
) -> Figure:
    """Draws projected embeddings as dots in the colours of their classes, and some images by their positions."""
    figure = Figure(figsize=(8, 6), layout="constrained", dpi=110)
    axes = figure.add_subplot(
        xlabel="first principal component", ylabel="second principal component"
    )
    for label, name in enumerate(class_names):
        own = points[labels == label if labels.dim() == 1 else labels[:, label] > 0]
        axes.scatter(
            own[:, 0], own[:, 1], s=8, color=f"C{label % 10}", label=name if label < 20 else None
        )
    first = labels if labels.dim() == 1 else labels.argmax(1)
    for position, image in thumbnails.items():
        small = (
            F.interpolate(as_rgb(image)[None].float(), (28, 28), mode="area")[0].permute(1, 2, 0)
            / 255
        )
        colour = f"C{int(first[position]) % 10}"
        place, frame = tuple(points[position].tolist()), {"edgecolor": colour}
        axes.add_artist(AnnotationBbox(OffsetImage(small.numpy()), place, pad=0.1, bboxprops=frame))
    # outliers, which would squeeze all others into a column, lie outside
    low, high = torch.quantile(
        points.double(), torch.tensor([0.02, 0.98], dtype=torch.float64), dim=0
    )
    margin = 0.25 * (high - low).clamp(min=1e-6)
    (left, bottom), (right, top) = (low - margin).tolist(), (high + margin).tolist()
    axes.set(xlim=(left, right), ylim=(bottom, top))
    for text in figure.legend(loc="outside right upper", fontsize=8).get_texts():
        text.set_parse_math(False)
    return figure
