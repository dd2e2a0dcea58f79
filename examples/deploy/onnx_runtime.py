"""Labels photo.jpg with model.onnx: ``python onnx_runtime.py``."""

import json

import onnxruntime
from PIL import Image
from prepare import prepare

session = onnxruntime.InferenceSession("model.onnx")
about = session.get_modelmeta().custom_metadata_map
class_names = json.loads(about["class_names"])
images = prepare(Image.open("photo.jpg"), about)[None]
probabilities = session.run(["probabilities"], {"images": images})[0][0]
print(class_names[probabilities.argmax()], probabilities.max())
