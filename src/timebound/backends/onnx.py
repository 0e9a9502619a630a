"""The backend for ONNX files, on the engine that is chosen: onnxruntime, or OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from timebound.backends.base import Place, TensorSpec, current_place
from timebound.backends.signature import feed
from timebound.errors import SetupError
from timebound.types import ENGINES, Engine


class Session(Protocol):
    """A file, open on an engine; `run` may be called from several threads at once."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def run(self, given: Mapping[str, Any]) -> list[Any]: ...

    def divide(self, slots: int) -> bool: ...


class OnnxBackend:
    """One ONNX file. Calls from several threads share its weights, unless it is divided, and run side by side."""

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
        self.path = _file(place, path)
        self._int8 = _file(place, int8) if int8 is not None else None
        self.label = self.path.name
        self.engine = engine or place.engine or Engine.ONNXRUNTIME
        self.engines = [] if engine is not None else self._engines()
        """What it could run on: none to choose from if the engine was named where it was opened."""
        self._session = self._open(threads or place.threads, place.slots)
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        # A first dimension that is a number was fixed at export: such a file takes only batches of that size.
        self.fixed_batch = self.inputs[0].shape[0] if self.inputs and self.inputs[0].shape else None
        self.max_batch = self.fixed_batch
        place.opened.append(self)

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
            outputs = self._session.run(given)
        if len(self.outputs) == 1:
            return outputs[0]
        return {spec.name: output for spec, output in zip(self.outputs, outputs, strict=True)}

    def divide(self, slots: int) -> bool:
        """Let slots run apart from each other where that is faster; says whether anything new has to be warmed up."""
        return self._session.divide(slots)

    def warm_sizes(self, max_batch: int) -> list[int]:
        """Batch sizes to run once before serving: OpenVINO builds its kernels for each shape that it meets."""
        if not self.engine.startswith("openvino"):
            return []
        most = min(max_batch, self.max_batch or max_batch)
        return [size for size in (*range(1, 17), 20, 24, 28, 32) if size <= most]

    def _engines(self) -> list[str]:
        return [name for name in ENGINES if name != Engine.ONNXRUNTIME_INT8 or self._int8 is not None]

    def _open(self, threads: int, slots: int) -> Session:
        # Each engine is imported when it is needed: the other one costs memory and time for nothing.
        if self.engine in (Engine.OPENVINO_F32, Engine.OPENVINO_BF16):
            from timebound.backends.openvino import OpenvinoSession

            return OpenvinoSession(self.path, threads, slots, self.engine.removeprefix("openvino-"))
        from timebound.backends.onnxruntime import OnnxruntimeSession

        if self.engine == Engine.ONNXRUNTIME:
            return OnnxruntimeSession(self.path, threads)
        if self.engine != Engine.ONNXRUNTIME_INT8:
            raise SetupError(f"engine {self.engine!r} of {self.label} is unknown; choose one of {', '.join(ENGINES)}")
        if self._int8 is None:
            raise SetupError(
                f"engine {self.engine} needs an int8 file beside {self.label}: make one with `timebound convert "
                f'{self.label} small.onnx --int8` and open them with tb.onnx("{self.label}", int8="small.onnx")'
            )
        return OnnxruntimeSession(self._int8, threads)

    def _run_singly(self, given: dict[str, Any], count: int) -> list[Any]:
        runs = [self._session.run({name: value[i : i + 1] for name, value in given.items()}) for i in range(count)]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


def onnx(
    path: str | Path, *, threads: int | None = None, engine: str | None = None, int8: str | Path | None = None
) -> OnnxBackend:
    """Open an ONNX file; relative paths start at the folder of the served file.

    `engine` fixes what runs it; without, `--engine` or the model's `engine` says so, else it is onnxruntime. `int8` is
    the same network in eight bits, for the engine "onnxruntime-int8".
    """
    return OnnxBackend(path, threads=threads, engine=engine, int8=int8)


def _file(place: Place, path: str | Path) -> Path:
    file = place.folder / path
    if not file.is_file():
        raise SetupError(f"model file not found: {file}; check the name, it is relative to {place.folder}")
    return file
