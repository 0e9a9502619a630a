"""The backend for ONNX files, on onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from timebound.backends.base import TensorSpec, current_place
from timebound.backends.signature import feed
from timebound.errors import SetupError

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint64)": "uint64",
    "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
}


class OnnxBackend:
    """One onnxruntime session. Calls from several threads share its weights and run side by side."""

    kind = "onnx"
    parallel = True

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        place = current_place()
        self.path = place.folder / path
        if not self.path.is_file():
            raise SetupError(f"model file not found: {self.path}; check the name, it is relative to {place.folder}")
        self.label = self.path.name
        self._session = _open_session(self.path, threads or place.threads)
        self.inputs: Sequence[TensorSpec] = [_spec(node) for node in self._session.get_inputs()]
        self.outputs: Sequence[TensorSpec] = [_spec(node) for node in self._session.get_outputs()]
        # A first dimension that is a number was fixed at export: such a file takes only batches of that size.
        self.fixed_batch = self.inputs[0].shape[0] if self.inputs and self.inputs[0].shape else None
        self.max_batch = self.fixed_batch

    def __call__(self, batch: Any) -> Any:
        """Run a batch: an array for a file with one input, else a dict; the same form comes back."""
        given = feed(self.label, self.inputs, batch)
        count = len(next(iter(given.values())))
        if self.fixed_batch is not None and count != self.fixed_batch:
            if self.fixed_batch != 1:
                raise SetupError(
                    f"{self.path.name} was exported for batches of exactly {self.fixed_batch}; "
                    "export it again with a dynamic first dimension"
                )
            outputs = self._run_singly(given, count)
        else:
            outputs = self._session.run(None, given)
        if len(self.outputs) == 1:
            return outputs[0]
        return {spec.name: output for spec, output in zip(self.outputs, outputs, strict=True)}

    def _run_singly(self, given: dict[str, Any], count: int) -> list[Any]:
        runs = [
            self._session.run(None, {name: value[i : i + 1] for name, value in given.items()}) for i in range(count)
        ]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


def onnx(path: str | Path, *, threads: int | None = None) -> OnnxBackend:
    """Open an ONNX file; relative paths start at the folder of the served file."""
    return OnnxBackend(path, threads=threads)


@cache
def _share_arena() -> None:
    """Let all sessions of this process take their scratch memory from one pool: members of an ensemble run in turn.

    Three small networks at batches of 16: 299 MiB instead of 427 after a while, at the same speed.
    """
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(0, 0, -1, -1))


def _open_session(path: Path, threads: int) -> Any:
    _share_arena()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads would burn the core the gateway needs: 3.6 ms of event-loop lag instead of 0.4.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = str(error).replace("\n", " ")
        raise SetupError(f"onnxruntime cannot load {path}: {reason[:300]}; export the model again") from error


def _spec(node: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else None for size in node.shape)
    return TensorSpec(node.name, _DTYPES.get(node.type, node.type), shape)
