"""Quantizes prepared.onnx to 8 bits, small.onnx, calibrated on the images in photos/: ``python quantize.py``.

Export it with ``--prepared``: in 8 bits, resizing would be wrong.

``reduce_range`` avoids overflows on x86 processors without VNNI. Measure the accuracy afterwards; some networks lose much.
"""

from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from prepare import open_photo, prepare, require_rgb


class Photos(CalibrationDataReader):
    """Feeds the photos to the calibration, one at a time."""

    def __init__(self, about):
        images = (prepare(open_photo(path.read_bytes()), about)[None] for path in photos)
        self.inputs = ({"images": image} for image in images)

    def get_next(self):
        """Return the inputs of the next photo, None after the last."""
        return next(self.inputs, None)


photos = sorted(Path("photos").glob("*.jpg"))
if not photos:
    raise SystemExit("error: photos/ has no .jpg file to calibrate on")
about = onnxruntime.InferenceSession("prepared.onnx").get_modelmeta().custom_metadata_map
require_rgb(about)
quant_pre_process(
    "prepared.onnx", "small.onnx", skip_symbolic_shape=True
)  # merges BatchNorm into convolutions
operators = [
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "Relu",
    "MaxPool",
]  # normalisation and softmax stay in float32
kinds = {"activation_type": QuantType.QUInt8, "per_channel": True, "reduce_range": True}
quantize_static("small.onnx", "small.onnx", Photos(about), op_types_to_quantize=operators, **kinds)
small = onnx.load("small.onnx")
onnx.helper.set_model_props(small, about)
onnx.save(small, "small.onnx")
