"""Measures ONNX files on a checkpoint's test set beside the checkpoint: metrics, latency, size.

python examples/deploy/evaluate_onnx.py runs/NAME/checkpoints/best.ckpt model.onnx small.onnx
"""

import json
from pathlib import Path

from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule

from project.analysis.evaluation import evaluate_split
from project.analysis.exported import OnnxNetwork
from project.analysis.tables import metrics_table
from project.model import ImageClassifier


def measure(path, model, data):
    """Classifies the test images one by one; returns the metrics, and the network that timed them."""
    network = OnnxNetwork(len(model.class_names), str(path))
    if (
        json.loads(network.session.get_modelmeta().custom_metadata_map["class_names"])
        != model.class_names
    ):
        raise UserError(f"'{path}' has other classes than the checkpoint", "files")
    photos = network.photos_in(data.splits["test"]) if network.takes_photos else None
    for batch in data.test_dataloader():
        for at, index in enumerate(batch.indices.tolist()):
            image = photos.photo(index)[None] if photos is not None else batch.images[at : at + 1]
            logits = network(image.float())
            if not model.has_one_class:  # sigmoid gives the probabilities back, not softmax
                logits = logits.exp().logit()
            label = batch.labels[at : at + 1]
            model.measure("test", logits, label, model.evaluation_loss(logits, label))
    return model.test_metrics.compute_and_reset(), network


def main(options):
    """Prints the metrics, and then the size and latency of each file."""
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    moved = {} if options.root is None else {"root": options.root}
    # loader workers would compete with the file for the cores
    data = ImageDataModule.load_from_checkpoint(options.checkpoint, num_workers=0, **moved)
    columns = {Path(options.checkpoint).name: evaluate_split(model, data).metrics}
    lines = []
    for path in options.files:
        columns[path.name], network = measure(path, model, data)
        size, middle, slow = network.costs().values()
        lines.append(f"{path.name}: {size:.1f} MB, latency p50 {middle:.1f}, p95 {slow:.1f} ms")
    print(metrics_table(columns, intervals=True), *lines, sep="\n  ")


if __name__ == "__main__":
    parser = CommandParser(prog="evaluate_onnx.py", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument("files", type=Path, nargs="+", help="Files exported from it.")
    parser.add_argument("--root", type=Path, help="The folder of its images, if they have moved.")
    parser.add_import()
    run_command(lambda: main(parser.parse_args()))
