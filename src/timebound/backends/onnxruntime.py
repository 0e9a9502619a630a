"""ONNX files on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from threading import local
from typing import Any

import onnxruntime

from timebound.backends.base import TensorSpec
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


SMALL = 100_000_000
"""Bytes of a file up to which a network with inputs of any length is opened once for each slot."""


class OnnxruntimeSession:
    """One file, open. Calls from several threads share its weights and run side by side.

    Unless it is small and its inputs vary in more than the batch: then each slot has one to itself. Such networks take
    and give back much small memory, and in a pool that threads share it wanders between cores: two threads on the
    transformer of `benchmarks/goodput.py` did 740 texts/s instead of 840 at hours when the host had put the two cores
    far apart. Convolutions on pictures of one size lose nothing by sharing.
    """

    def __init__(self, path: Path, threads: int, slots: int) -> None:
        first = _open_session(path, threads)
        self.inputs: Sequence[TensorSpec] = [_spec(node) for node in first.get_inputs()]
        self.outputs: Sequence[TensorSpec] = [_spec(node) for node in first.get_outputs()]
        self._sessions = [first]
        if slots > 1 and self._is_varied() and path.stat().st_size <= SMALL:
            self._sessions += [_open_session(path, threads, has_own_pool=True) for _ in range(slots - 1)]

    def run(self, given: Mapping[str, Any]) -> list[Any]:
        """The outputs in order, for inputs by name."""
        session = self._sessions[_thread_number() % len(self._sessions)]
        outputs: list[Any] = session.run(None, given)
        return outputs

    def _is_varied(self) -> bool:
        return any(size is None for spec in self.inputs for size in spec.shape[1:])


_numbers = count()
_local = local()


def _thread_number() -> int:
    """Threads are numbered as they come here first: those of the slots follow each other."""
    try:
        return int(_local.number)
    except AttributeError:
        _local.number = next(_numbers)
        return int(_local.number)


@cache
def _share_arena() -> None:
    """Let all sessions of this process take their scratch memory from one pool: members of an ensemble run in turn.

    Three small networks at batches of 16: 299 MiB instead of 427 after a while, at the same speed.
    """
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(0, 0, -1, -1))


def _open_session(path: Path, threads: int, has_own_pool: bool = False) -> Any:
    options = onnxruntime.SessionOptions()
    if not has_own_pool:
        _share_arena()
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
