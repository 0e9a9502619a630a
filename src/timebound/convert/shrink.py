"""Smaller ONNX files: eight-bit whole numbers or half-precision floats inside; inputs and outputs stay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from timebound.convert.reason import library, told
from timebound.convert.samples import Samples

# Shares of 256 would be all that probabilities could be; computing them is cheap.
_IN_FLOATS = {"Softmax", "Sigmoid"}

Tell = Callable[[str], None]


def write_int8(given: Path, path: Path, samples: Samples | None, tell: Tell) -> None:
    """Quantise: with samples the activations too (static), without them the weights only (dynamic)."""
    with library():
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
        from onnxruntime.quantization.shape_inference import quant_pre_process
    refused = told("the network cannot be brought to eight bits: %kind: %s")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, refused, library():
        ready = Path(folder) / "ready.onnx"
        # Shapes noted by the exporter are in the way of the clean-up, which moves weights about; it finds them anew.
        model = onnx.load(str(given))
        del model.graph.value_info[:]
        onnx.save(model, str(ready))
        # Without the symbolic pass: it needs more libraries and fails on graphs that quantise well.
        quant_pre_process(str(ready), str(ready), skip_symbolic_shape=True)
        if samples is None:
            tell("quantising weights (no samples: activations stay floats)")
            quantization.quantize_dynamic(str(ready), str(path), weight_type=quantization.QuantType.QInt8)
            return
        quantization.quantize_static(
            str(ready),
            str(path),
            _Reader(samples, tell),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=sorted({*QDQRegistry, *QLinearOpsRegistry} - _IN_FLOATS),
        )


def write_fp16(given: Path, path: Path) -> None:
    """Half precision: half the size; on processors without half-precision arithmetic not faster."""
    with library():
        import onnx
        from onnxruntime.transformers.float16 import convert_float_to_float16
    with told("the network cannot be brought to half precision: %kind: %s"), library():
        onnx.save(convert_float_to_float16(onnx.load(str(given)), keep_io_types=True), str(path))


class _Reader:
    """Hands samples to the calibration one at a time, and tells how far it is."""

    def __init__(self, samples: Samples, tell: Tell) -> None:
        self._items = samples.batches(1)
        self._tell = tell
        self._done, self._of = 0, len(samples)

    def get_next(self) -> dict[str, Any] | None:
        self._done += 1
        if self._done % 16 == 0 or self._done == self._of:
            self._tell(f"calibrating on sample {self._done} of {self._of}")
        return next(self._items, None)
