"""Labels photo.jpg with model.onnx: ``python onnx_runtime.py``."""

import json
from pathlib import Path

import onnxruntime
from prepare import answers, open_photo, pixels, require_rgb

session = onnxruntime.InferenceSession("model.onnx")
about = session.get_modelmeta().custom_metadata_map
require_rgb(about)
class_names = json.loads(about["class_names"])
images = pixels(open_photo(Path("photo.jpg").read_bytes()))[None]
probabilities = session.run(["probabilities"], {"images": images})[0][0]
for at in answers(probabilities, about):
    print(class_names[at], probabilities[at])
