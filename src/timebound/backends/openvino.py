"""ONNX files on OpenVINO, in f32 or in bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from timebound.backends.base import TensorSpec
from timebound.errors import MissingExtra, SetupError
from timebound.machine.processor import has_bf16

try:
    import openvino as library
except ModuleNotFoundError as error:
    if error.name != "openvino":
        raise
    raise MissingExtra("openvino", "openvino") from None

from openvino import opset13


class OpenvinoSession:
    """One file, compiled. Each call takes an infer request of its own, so that slots never wait for each other."""

    def __init__(self, path: Path, threads: int, slots: int, precision: str) -> None:
        if precision == "bf16" and not has_bf16():
            raise SetupError(
                "engine openvino-bf16: this processor has no instructions for bf16 (avx512_bf16, amx_bf16); "
                "use openvino-f32 or onnxruntime"
            )
        self._compiled = _compile(path, threads, slots, precision)
        self.inputs: Sequence[TensorSpec] = [_spec(port, path) for port in self._compiled.inputs]
        self.outputs: Sequence[TensorSpec] = [_spec(port, path) for port in self._compiled.outputs]
        # Requests that nobody uses; a list's pop and append are each one step for all threads.
        self._idle: list[Any] = []

    warm_sizes = (*range(1, 17), 20, 24, 28, 32)
    """It builds its kernels for each shape that it meets."""

    def run(self, given: Mapping[str, Any]) -> list[Any]:
        """The outputs in order, for inputs by name."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        arrays = [np.ascontiguousarray(given[spec.name]) for spec in self.inputs]
        try:
            # Inputs are read in place; outputs are copies, for the next run writes over the request's own.
            answers = request.infer(arrays, share_inputs=True)
            return [answers[place] for place in range(len(self.outputs))]
        finally:
            self._idle.append(request)

    def divide(self, slots: int) -> bool:
        """Each call has its own request already."""
        del slots
        return False


def open_session(engine: str, path: Path, int8: Path | None, *, threads: int, slots: int) -> OpenvinoSession:
    """Open a file in the precision that the engine's name ends with."""
    del int8
    return OpenvinoSession(path, threads, slots, engine.rpartition("-")[2])


@cache
def _core() -> Any:
    return library.Core()


def _compile(path: Path, threads: int, slots: int, precision: str) -> Any:
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        # A stream is what one call runs on: with fewer than slots, calls would wait for each other.
        "NUM_STREAMS": slots,
        "INFERENCE_NUM_THREADS": threads * slots,
        # Pinned streams of several members would all sit on the first core.
        "ENABLE_CPU_PINNING": False,
    }
    try:
        network = _core().read_model(str(path))
        _ease(network)
        return _core().compile_model(network, "CPU", options)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise SetupError(f"OpenVINO cannot load {path}: {reason[-300:]}; use the engine onnxruntime") from error


def _ease(network: Any) -> None:
    """Write hard sigmoids in the form that OpenVINO joins with the layers around them.

    HardSigmoid(1/6, 1/2), as ONNX says it, is computed by itself in f32, between two changes of format. HSigmoid is
    the same function. Three MobileNetV3 at batches of 8, in bf16: 5.1 ms per picture instead of 7.3.
    """
    for node in network.get_ordered_ops():
        if node.get_type_name() == "HardSigmoid" and _constants(node, 1, 2) == [1 / 6, 0.5]:
            node.output(0).replace(opset13.hsigmoid(node.input_value(0)).output(0))
    network.validate_nodes_and_infer_types()


def _constants(node: Any, *places: int) -> list[float]:
    """The numbers at these inputs, to six digits; empty if one is computed."""
    sources = [node.input_value(place).get_node() for place in places]
    if any(source.get_type_name() != "Constant" for source in sources):
        return []
    values = [float(np.ravel(source.data)[0]) for source in sources]
    return [1 / 6 if abs(value - 1 / 6) < 1e-6 else value for value in values]


def _spec(port: Any, path: Path) -> TensorSpec:
    # A tensor that is input and output at once has both names; that of the node is the file's.
    name = port.get_node().get_friendly_name().removesuffix("/sink_port_0")
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise SetupError(f"OpenVINO cannot tell how many dimensions {name} of {path.name} has; use onnxruntime")
    sizes = tuple(None if size.is_dynamic else size.get_length() for size in shape)
    kind = port.element_type
    if kind == library.Type.string:
        return TensorSpec(name, "str", sizes)
    return TensorSpec(name, np.dtype(kind.to_dtype()).name, sizes)
