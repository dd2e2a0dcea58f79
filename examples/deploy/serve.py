"""Serves model.onnx with LitServe, on http://127.0.0.1:8000/predict: ``python serve.py``.

Errors: 400 for a broken image, 422 for other JSON, 413 above 10 MB, and 504 after 10 seconds. Do not batch: in LitServe 0.2,
one broken image fails its whole batch. Where a checkpoint has thresholds, decide by ``answers`` of prepare.py.
"""

import json

import litserve
import onnxruntime
from fastapi import HTTPException
from PIL import Image
from prepare import open_photo, pixels
from pydantic import Base64Bytes, BaseModel

Image.MAX_IMAGE_PIXELS = 25_000_000  # PIL refuses images with twice as many


class Upload(BaseModel):
    """A request: an image file in base64."""

    image: Base64Bytes


class Classifier(litserve.LitAPI):
    """Answers a photo with the probability of each class."""

    def setup(self, device):
        """Load the network, once in each worker."""
        self.session = onnxruntime.InferenceSession("model.onnx")
        self.about = self.session.get_modelmeta().custom_metadata_map

    def decode_request(self, request: Upload):
        """Turn a request into the network's input."""
        try:
            return pixels(open_photo(request.image))[None]
        except Exception as error:  # PIL raises all kinds
            raise HTTPException(400, "the image cannot be read") from error

    def predict(self, images):
        """Return the probabilities of a photo."""
        return self.session.run(["probabilities"], {"images": images})[0][0]

    def encode_response(self, probabilities):
        """Name the classes."""
        return dict(zip(json.loads(self.about["class_names"]), probabilities.tolist(), strict=True))


if __name__ == "__main__":
    server = litserve.LitServer(
        Classifier(), accelerator="cpu", timeout=10, max_payload_size=10_000_000
    )
    server.run(host="127.0.0.1", port=8000, generate_client_file=False)
