"""Converts prepared.pt2 to ExecuTorch, model.pte, and checks it: ``python to_executorch.py``.

Export it with ``--prepared``, of images with 8 bits.
"""

import base64
import json
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

about = {"checks": ""}
program = torch.export.load("prepared.pt2", extra_files=about)
lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
Path("model.pte").write_bytes(lowered.to_executorch().buffer)
classify = Runtime.get().load_program("model.pte").load_method("forward")
for check in json.loads(about["checks"]):
    pixels = torch.frombuffer(bytearray(base64.b64decode(check["pixels"])), dtype=torch.uint8)
    (found,) = classify.execute([pixels.reshape(check["shape"])])[0]
    torch.testing.assert_close(found, torch.tensor(check["probabilities"]), rtol=0, atol=1e-3)
