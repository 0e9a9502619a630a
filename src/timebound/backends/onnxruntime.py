"""ONNX files on onnxruntime."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from timebound.backends.base import TensorSpec, current_slot
from timebound.backends.parts import Parts
from timebound.clock import MonotonicClock, ThreadClock
from timebound.errors import SetupError

_TENSOR = re.compile(r"tensor\((\w+)\)")
_DTYPES = {"float": "float32", "double": "float64", "string": "str"}
"""What numpy calls otherwise; the rest have the same name there."""
MUCH = 100_000_000
"""Bytes that sessions of slots' own may hold besides the first."""


class OnnxruntimeSession:
    """One file, open. Calls from several threads share its weights and run side by side, unless it is divided."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path, self._threads = path, threads
        self._sessions = [_open_session(path, threads)]
        self.inputs: Sequence[TensorSpec] = [_spec(node) for node in self._sessions[0].get_inputs()]
        self.outputs: Sequence[TensorSpec] = [_spec(node) for node in self._sessions[0].get_outputs()]

        clock = ThreadClock() if threads == 1 else MonotonicClock()  # of several, one would tell of itself alone
        self._parts = Parts(clock) if _can_be_cut(self._sessions[0]) else None

    warm_sizes = ()

    def run(self, given: Mapping[str, Any]) -> list[Any]:
        """The outputs in order, for inputs by name."""
        session = self._sessions[current_slot() % len(self._sessions)]
        if self._parts is None:
            whole: list[Any] = session.run(None, given)
            return whole
        parts: list[list[Any]] = []

        def compute(start: int, end: int) -> None:
            parts.append(session.run(None, {name: value[start:end] for name, value in given.items()}))

        self._parts.run(len(next(iter(given.values()))), compute)
        return parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]

    def divide(self, slots: int) -> bool:
        """Give each slot a session of its own, if inputs vary in more than the batch and it costs little; says whether.

        Such networks take and give back much small memory, and in a pool that threads share it wanders between cores,
        which is slow where the cores are far apart: about an eighth of the speed of the transformer that
        `benchmarks/serving/goodput.py` serves. Convolutions on pictures of one size lose nothing by sharing.
        """
        is_varied = any(size is None for spec in self.inputs for size in spec.shape[1:])
        if not is_varied or (slots - 1) * _weight(self._path) > MUCH:
            return False
        more = slots - len(self._sessions)
        self._sessions += [_open_session(self._path, self._threads, has_own_pool=True) for _ in range(more)]
        return more > 0


def open_session(engine: str, path: Path, int8: Path | None, *, threads: int, slots: int) -> OnnxruntimeSession:
    """Open a file, or for the engine of eight bits the one that was made of it."""
    del slots  # all of them share a session, until it is divided
    if engine == "onnxruntime":
        return OnnxruntimeSession(path, threads)
    if int8 is None:
        raise SetupError(
            f"engine {engine} needs an int8 file beside {path.name}: make one with `timebound convert "
            f'{path.name} small.onnx --int8` and open them with tb.onnx("{path.name}", int8="small.onnx")'
        )
    return OnnxruntimeSession(int8, threads)


def _weight(path: Path) -> float:
    """Bytes of a file; without end if some of them lie in others."""
    if (size := path.stat().st_size) <= MUCH and b"\x0a\x08location" in path.read_bytes():
        return math.inf
    return size


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


def _can_be_cut(session: Any) -> bool:
    """Whether a batch may be run in parts: each of its sides has the batch first, and nothing else in it varies."""
    sides = [node.shape for node in (*session.get_inputs(), *session.get_outputs())]
    if not session.get_inputs() or not all(shape and isinstance(shape[0], str) for shape in sides):
        return False
    return len({shape[0] for shape in sides}) == 1 and all(
        isinstance(size, int) for shape in sides for size in shape[1:]
    )


def _spec(node: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else None for size in node.shape)
    kind = _TENSOR.sub(r"\1", node.type)
    return TensorSpec(node.name, _DTYPES.get(kind, kind), shape)
