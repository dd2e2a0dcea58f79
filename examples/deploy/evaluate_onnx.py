"""Measures ONNX files on a checkpoint's test set beside the checkpoint: metrics, latency, size.

python examples/deploy/evaluate_onnx.py runs/NAME/checkpoints/best.ckpt model.onnx small.onnx
"""

import json
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime
import torch
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset, ImageDataModule
from prepare import open_photo, pixels

from project.analysis.evaluation import evaluate_split
from project.analysis.tables import metrics_table
from project.model import ImageClassifier


def measure(path, model, data):
    """Classifies the test images one by one; returns the metrics, and the seconds of each."""
    try:
        session = onnxruntime.InferenceSession(str(path))
    except Exception as error:  # it raises many kinds
        raise UserError(f"'{path}' cannot be opened ({str(error).splitlines()[0]})") from error
    if json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) != model.class_names:
        raise UserError(f"'{path}' has other classes than the checkpoint", "files")
    takes_photos = isinstance(session.get_inputs()[0].shape[2], str)
    is_rgb = len(model.preprocessing["mean"]) == 3 and "bits" not in model.preprocessing
    test = data.splits["test"]
    if takes_photos and not (is_rgb and isinstance(test, FileDataset)):
        raise UserError(f"'{path}' takes RGB photos from files; export it with --prepared", "files")
    seconds = []
    for batch in data.test_dataloader():
        for at, index in enumerate(batch.indices.tolist()):
            images = batch.images[at : at + 1].contiguous().numpy()
            if takes_photos:
                images = pixels(open_photo(test.path(index).read_bytes()))[None]
            start = perf_counter()
            probabilities = torch.tensor(session.run(["probabilities"], {"images": images})[0])
            seconds.append(perf_counter() - start)
            # softmax and sigmoid give the probabilities back
            logits = probabilities.clamp(min=1e-37)
            logits = logits.log() if model.has_one_class else logits.logit()
            label = batch.labels[at : at + 1]
            model.measure("test", logits, label, model.evaluation_loss(logits, label))
    return model.test_metrics.conclude(), seconds


def main(options):
    """Prints the metrics, and then the size and latency of each file."""
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    moved = {} if options.root is None else {"root": options.root}
    # loader workers would compete with the file for the cores
    data = ImageDataModule.load_from_checkpoint(options.checkpoint, num_workers=0, **moved)
    columns = {Path(options.checkpoint).name: evaluate_split(model, data).metrics}
    lines = []
    for path in options.files:
        columns[path.name], seconds = measure(path, model, data)
        middle, slow = 1000 * np.percentile(seconds, [50, 95])
        size = path.stat().st_size / 1e6
        lines.append(f"{path.name}: {size:.1f} MB, latency p50 {middle:.1f}, p95 {slow:.1f} ms")
    print(metrics_table(columns, intervals=True), *lines, sep="\n  ")


if __name__ == "__main__":
    parser = CommandParser(prog="evaluate_onnx.py", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument("files", type=Path, nargs="+", help="Files exported from it.")
    parser.add_argument("--root", type=Path, help="The folder of its images, if they have moved.")
    parser.add_import()
    run_command(lambda: main(parser.parse_args()))
