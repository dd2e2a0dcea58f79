"""Checks model.onnx on images that it carries, or on lines of a file: ``python check.py [checks.jsonl]``."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
checks = session.get_modelmeta().custom_metadata_map["checks"]
if sys.argv[1:]:
    checks = "[" + ",".join(Path(sys.argv[1]).read_text().splitlines()) + "]"
dtype = "<u2" if "16" in session.get_inputs()[0].type else "u1"
differences, agreeing = [], 0
for check in json.loads(checks):
    images = np.frombuffer(base64.b64decode(check["pixels"]), dtype).reshape(check["shape"])
    probabilities = session.run(["probabilities"], {"images": images})[0][0]
    differences.append(abs(probabilities - check["probabilities"]).max())
    agreeing += probabilities.argmax() == np.argmax(check["probabilities"])
largest = np.max(differences, initial=0)  # NaN, if one is
print(f"{agreeing} of {len(differences)} agree, probabilities to {largest:.2g}")
sys.exit(0 if differences and largest <= 1e-3 else 1)
