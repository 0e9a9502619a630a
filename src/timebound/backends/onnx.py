"""The backend for ONNX files, on the engine that is chosen: onnxruntime, or OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from timebound.backends.base import Backend, TensorSpec, current_place
from timebound.backends.signature import feed
from timebound.errors import SetupError
from timebound.types import ENGINES


class Session(Protocol):
    """A file, open on an engine; `run` may be called from several threads at once."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    warm_sizes: Sequence[int]
    """Batch sizes to run once before serving."""

    def run(self, given: Mapping[str, Any]) -> list[Any]: ...

    def divide(self, slots: int) -> bool: ...


class OnnxBackend(Backend):
    """One ONNX file. Calls from several threads share its weights, unless it is divided, and run side by side.

    Relative paths start at the folder of the served file. `engine` fixes what runs it; without, `--engine` or the
    model's `engine` says so, else it is onnxruntime. `int8` is the same network in eight bits, for the engine
    "onnxruntime-int8".
    """

    kind = "onnx"
    parallel = True

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int | None = None,
        engine: str | None = None,
        int8: str | Path | None = None,
    ) -> None:
        place = current_place()
        self.path = place.file(path)
        self._int8 = place.file(int8) if int8 is not None else None
        self.label = self.path.name
        self.engine = engine or place.engine or next(iter(ENGINES))
        fitting = [name for name in ENGINES if self._int8 or not name.endswith("-int8")]
        self.engines = fitting if engine is None else []
        """What it could run on: none to choose from if the engine was named where it was opened."""
        self._session = self._open(threads or place.threads, place.slots)
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        _check_dtypes(self.label, self.inputs)
        # A first dimension that is a number was fixed at export: such a file takes only batches of that size.
        self.fixed_batch = self.inputs[0].shape[0] if self.inputs and self.inputs[0].shape else None
        self.max_batch = self.fixed_batch
        self.batch_sizes = (self.fixed_batch,) if self.fixed_batch not in (None, 1) else ()
        place.opened.append(self)

    def __call__(self, batch: Any) -> Any:
        """Run a batch: an array for a file with one input, else a dict; the same form comes back."""
        given = feed(self.label, self.inputs, batch)
        count = len(next(iter(given.values())))
        if self.fixed_batch is not None and count != self.fixed_batch:
            outputs = self._run_in_parts(given, count, self.fixed_batch)
        else:
            outputs = self._session.run(given)
        if len(self.outputs) == 1:
            return outputs[0]
        return {spec.name: output for spec, output in zip(self.outputs, outputs, strict=True)}

    def divide(self, slots: int) -> bool:
        """Let slots run apart from each other where that is faster; says whether anything new has to be warmed up."""
        return self._session.divide(slots)

    def warm_sizes(self, max_batch: int) -> list[int]:
        """Those of its engine: some build their kernels for each shape that they meet."""
        most = min(max_batch, self.max_batch or max_batch)
        return [size for size in self._session.warm_sizes if size <= most]

    def _open(self, threads: int, slots: int) -> Session:
        if self.engine not in ENGINES:
            raise SetupError(f"engine {self.engine!r} of {self.label} is unknown; choose one of {', '.join(ENGINES)}")
        # Each engine is imported when it is needed: the others cost memory and time for nothing.
        engine = import_module(ENGINES[self.engine])
        session: Session = engine.open_session(self.engine, self.path, self._int8, threads=threads, slots=slots)
        return session

    def _run_in_parts(self, given: dict[str, Any], count: int, size: int) -> list[Any]:
        """Run the file on parts of the size it takes, the last one padded with its last item."""
        runs = []
        for start in range(0, count, size):
            part = {name: value[start : start + size] for name, value in given.items()}
            missing = size - min(size, count - start)
            if missing:
                part = {name: np.concatenate([rows, rows[-1:].repeat(missing, 0)]) for name, rows in part.items()}
            runs.append([output[: size - missing] for output in self._session.run(part)])
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


def _check_dtypes(label: str, inputs: Sequence[TensorSpec]) -> None:
    for spec in inputs:
        try:
            is_known = np.dtype(spec.dtype).kind in "biufU"  # libraries may add others
        except TypeError:
            is_known = False
        if not is_known:
            raise SetupError(
                f"{label}: input {spec.name!r} is {spec.dtype}, which no array of numpy holds; export the model with "
                "inputs of float32, which it may cast by itself"
            )


onnx = OnnxBackend
"""As users write it: `tb.onnx(...)`."""
