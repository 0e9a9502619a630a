"""A GPU, by way of torch: the only file that names torch.cuda."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch

from timebound.errors import DeviceLost, SetupError

T = TypeVar("T")

_SWITCH_S = 0.0005
"""How long a busy thread may keep the interpreter from the one that feeds the GPU; Python allows ten times that."""


_SCARCE = 0.15
"""Of the memory: with less free, what torch keeps for later is given back first."""


class CudaMark:
    """An event on a stream. Who waits for it sleeps: a core that spins is one less for preparing."""

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream) -> None:
        self._device = device
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)
        self.event.record(stream)

    def wait(self) -> None:
        try:
            self.event.synchronize()
        except RuntimeError as error:
            self._device.check(error)
            raise

    def is_past(self) -> bool:
        return bool(self.event.query())

    def seconds_since(self, earlier: CudaMark) -> float:
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaGraph:
    """A captured graph and the memory it writes to."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Any) -> None:
        self.graph = graph
        self.outputs = outputs


class CudaDevice:
    """One GPU with three streams: one computes, one brings rows, one fetches results. Opened on the lane's thread."""

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        self.name = f"cuda:{index}"
        self.place = torch.device("cuda", index)
        self._index = index
        self._compute, self._up, self._down = (torch.cuda.Stream(self.place) for _ in range(3))
        self._sides: list[torch.cuda.Stream] = []
        # Graphs never run at the same time, so all of them share one pool of memory.
        self._pool = torch.cuda.graph_pool_handle()
        self._pinned: dict[int, int] = {}
        torch.cuda.set_stream(self._compute)  # for this thread, from here on
        sys.setswitchinterval(_SWITCH_S)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.zeros(tuple(shape), dtype=dtype, device=self.place)

    def staging(self, shape: Sequence[int], dtype: Any) -> Any:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def pin(self, buffer: Any) -> None:
        memory = np.frombuffer(buffer, np.uint8)
        if not memory.size:
            raise ValueError("no bytes to pin")
        address, size = memory.ctypes.data, memory.size
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, size, 0)))
        self._pinned[address] = size

    def unpin(self, buffer: Any) -> None:
        address = np.frombuffer(buffer, np.uint8).ctypes.data
        if self._pinned.pop(address, None) is not None:
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(address)))

    def is_pinned(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= start + length for start, length in self._pinned.items())

    def compute(self, work: Callable[[], T]) -> T:
        with torch.inference_mode(), torch.cuda.stream(self._compute):
            result = work()
        self._compute.synchronize()
        return result

    def launch(self, work: Callable[[], None]) -> None:
        work()  # this thread's stream is the one that computes

    def branches(self, works: Sequence[Callable[[], T]]) -> list[T]:
        current = torch.cuda.current_stream(self.place)
        while len(self._sides) < len(works) - 1:
            self._sides.append(torch.cuda.Stream(self.place))
        begin = torch.cuda.Event()
        begin.record(current)
        made: list[T] = []
        for work, side in zip(works[1:], self._sides, strict=False):
            side.wait_event(begin)
            with torch.cuda.stream(side):
                made.append(work())
        first = works[0]()
        for side in self._sides[: len(works) - 1]:
            end = torch.cuda.Event()
            end.record(side)
            current.wait_event(end)
        return [first, *made]

    def capture(self, work: Callable[[], Any], inputs: Sequence[Any]) -> CudaGraph:
        self._run_without_looking(work)
        free, total = torch.cuda.mem_get_info(self._index)
        if free < _SCARCE * total:
            torch.cuda.empty_cache()  # what runs without a graph has kept; always, it would double the time of a start
        graph = torch.cuda.CUDAGraph()
        # Other threads may copy meanwhile; nothing else computes before this worker is ready.
        with torch.inference_mode(), torch.cuda.stream(self._compute):
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                outputs = work()
            except BaseException:
                with suppress(RuntimeError):  # it says what the work's own error says better
                    graph.capture_end()
                raise
            graph.capture_end()
        return CudaGraph(graph, outputs)

    def _run_without_looking(self, work: Callable[[], Any]) -> None:
        """Raise for what waits for numbers of the GPU: a capture that fails in the middle is harder to leave."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode(), torch.cuda.stream(self._compute):
                work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
        torch.cuda.synchronize(self.place)

    def replay(self, graph: CudaGraph, rows: int) -> None:
        graph.graph.replay()

    def forget(self, graphs: Sequence[CudaGraph]) -> None:
        torch.cuda.synchronize(self.place)
        for graph in graphs:
            graph.outputs = None
            graph.graph.reset()
        torch.cuda.empty_cache()

    def upload(self, source: Any, target: Any) -> CudaMark:
        with torch.inference_mode(), torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)
            return CudaMark(self, self._up)

    def wait_for(self, mark: CudaMark) -> None:
        self._compute.wait_event(mark.event)

    def mark(self) -> CudaMark:
        return CudaMark(self, self._compute)

    def download(self, source: Any, target: Any) -> CudaMark:
        self._down.wait_event(self.mark().event)
        with torch.inference_mode(), torch.cuda.stream(self._down):
            target.copy_(source, non_blocking=True)
            return CudaMark(self, self._down)

    def free_bytes(self) -> int | None:
        return int(torch.cuda.mem_get_info(self._index)[0])

    def is_exhausted(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)

    def check(self, error: BaseException) -> None:
        if not isinstance(error, RuntimeError) or self.is_exhausted(error):
            return
        try:
            torch.cuda.synchronize(self.place)
        except RuntimeError as lost:
            raise DeviceLost(f"{self.name} failed: {_first_line(lost)}") from error

    def facts(self) -> Mapping[str, Any]:
        return {
            "device": self.name,
            "gpu": torch.cuda.get_device_name(self._index),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def open_device(name: str) -> CudaDevice:
    """The GPU of this name; "cuda" is the first, or the one that this process may see."""
    number = name.partition(":")[2] or "0"
    if not number.isdecimal():
        raise SetupError(f'device={name!r} is unknown; use "cpu", "cuda" or "cuda:0"')
    if not torch.cuda.is_available():
        raise SetupError(
            f"device={name!r}: torch {torch.__version__} sees no CUDA device here; "
            'use device="cpu", or install a CUDA build of torch and the driver'
        )
    index, there = int(number), torch.cuda.device_count()
    if index >= there:
        raise SetupError(f"device={name!r}: this machine has {there} CUDA device(s), counted from cuda:0")
    return CudaDevice(index)
