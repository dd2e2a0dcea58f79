"""Quantising a file of ONNX to 8-bit integers."""

import logging
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from project.deploy.formats import INPUT

# those that take nearly all the time, and what lies between them; normalisation and softmax stay in float32
_QUANTIZED = ["Conv", "Gemm", "MatMul", "Add", "Relu", "MaxPool"]
_BATCH = 16


class _Batches:
    """Images, as ONNX Runtime's calibration asks for them."""

    def __init__(self, images: Tensor) -> None:
        starts = range(0, len(images), _BATCH)
        self._batches = iter([images[start : start + _BATCH].contiguous().numpy() for start in starts])

    def get_next(self) -> dict[str, Any] | None:
        """The next batch by the input's name, None after the last."""
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}


def quantize_to_int8(source: Path, target: Path, images: Tensor) -> None:
    """Quantises weights for each channel and activations for each tensor, as pairs of QuantizeLinear and DequantizeLinear.

    Quantising is static: the ranges of the activations are those that they take on the images.

    Args:
        source: The network in float32.
        target: The file to write, with the metadata of the source.
        images: uint8 (N, 3, crop, crop), such as the network will see.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    CalibrationDataReader.register(_Batches)  # or it would have to be its subclass, and onnxruntime be there
    logging.getLogger().setLevel(logging.ERROR)  # it warns of each operator that it leaves as it is
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)  # merges BatchNorm into convolutions
        quantize_static(
            prepared,
            target,
            _Batches(images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=_QUANTIZED,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # to 7 bits: x86 processors without VNNI add products of 8 bits in 16, which overflow
        )
    graph = onnx.load(target)
    _merge_equal_tensors(graph.graph)
    onnx.helper.set_model_props(graph, {entry.key: entry.value for entry in onnx.load(source).metadata_props})
    onnx.save(graph, target)


def _merge_equal_tensors(graph: Any) -> None:
    """Keeps one of equal tensors, as each view of a test-time augmentation has got quantised weights of its own."""
    names: dict[str, str] = {}
    kept: dict[bytes, Any] = {}
    for tensor in graph.initializer:
        nameless = type(tensor)()
        nameless.CopyFrom(tensor)
        nameless.ClearField("name")
        same = kept.setdefault(blake2b(nameless.SerializeToString()).digest(), tensor)
        names[tensor.name] = same.name
    tensors = list(kept.values())
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
