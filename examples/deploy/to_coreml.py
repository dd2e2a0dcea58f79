"""Converts prepared.pt2 to Core ML, model.mlpackage: ``python to_coreml.py``, on Linux or a Mac.

Export it with ``--prepared``, of RGB images with 8 bits; Core ML takes images of this size alone.
"""

import json

import coremltools as ct
import torch

about = {"class_names": "", "checks": ""}
network = torch.export.load("prepared.pt2", extra_files=about).module(check_guards=False)
for node in [*network.graph.nodes]:  # Core ML passes pixels as floats
    if node.target is torch.ops.aten._assert_tensor_metadata.default:
        network.graph.erase_node(node)
network.recompile()
image = torch.zeros(json.loads(about["checks"])[0]["shape"])
ct.convert(
    torch.export.export(network, (image,)).run_decompositions({}),
    inputs=[ct.ImageType("images", image.shape)],
    classifier_config=ct.ClassifierConfig(json.loads(about["class_names"])),
    compute_precision=ct.precision.FLOAT32,
).save("model.mlpackage")
