"""Converts model.onnx to OpenVINO, as model.xml, and checks it: ``python to_openvino.py``."""

import base64
import json

import numpy as np
import onnxruntime
import openvino

openvino.save_model(openvino.convert_model("model.onnx"), "model.xml", compress_to_fp16=False)
classify = openvino.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
about = onnxruntime.InferenceSession("model.onnx").get_modelmeta().custom_metadata_map
for check in json.loads(about["checks"]):
    pixels = np.frombuffer(
        base64.b64decode(check["pixels"]), classify.inputs[0].element_type.to_dtype()
    )
    (found,) = classify({"images": pixels.reshape(check["shape"])})["probabilities"]
    np.testing.assert_allclose(found, check["probabilities"], atol=1e-3)
