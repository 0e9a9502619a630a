"""A device made of the processor, for tests: as late and as strict as a GPU where mistakes would hide.

Work runs later, in order, on threads of its own. Memory that is being written, outputs of graphs and padded rows hold
poison until they are written; what a GPU forbids while capturing raises; capturing belongs to one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from timebound.devices.tree import leaves
from timebound.errors import DeviceLost, SetupError

T = TypeVar("T")

_LOOKS = ("item", "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal")
"""Operations that need a number or a shape before the device has computed it."""


class OutOfMemory(RuntimeError):
    """The device's memory is used up."""


class HostMark:
    """Set by the thread of its stream."""

    def __init__(self, device: HostDevice) -> None:
        self._device = device
        self._is_past = threading.Event()
        self._at = 0.0
        self._error: BaseException | None = None

    def set(self, error: BaseException | None) -> None:
        """The stream has come so far."""
        self._at, self._error = time.perf_counter(), error
        self._is_past.set()

    def wait(self) -> None:
        self._is_past.wait()
        if self._error is not None:
            raise DeviceLost(f"the device failed: {self._error}") from self._error

    def is_past(self) -> bool:
        return self._is_past.is_set()

    def seconds_since(self, earlier: HostMark) -> float:
        if not (self._is_past.is_set() and earlier._is_past.is_set()):
            raise RuntimeError("the time between marks is asked for before both are past")
        return self._at - earlier._at


class HostGraph:
    """What was captured, to be run again into the same outputs."""

    def __init__(self, work: Callable[[], Any], inputs: Sequence[Any], outputs: Any) -> None:
        self.work: Callable[[], Any] | None = work
        self.inputs = inputs
        self.outputs = outputs
        kept = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self._own = [leaf for leaf in leaves(outputs) if leaf.untyped_storage().data_ptr() not in kept]

    def poison(self) -> None:
        """Have its outputs hold what no correct result holds."""
        for leaf in self._own:
            _poisoned(leaf)


class HostDevice:
    """Three streams, as on a GPU: one that computes, one that brings rows, one that fetches results.

    For tests of what can go wrong: `rooms` has the largest batch that finds memory, by what it is wanted for
    ("capture", "beside" for a capture with branches, "device", "staging"), `changes` is done to every output of a
    replay, and nothing runs while `gate` is closed.
    """

    def __init__(self, *, rooms: Mapping[str, int] | None = None, changes: Callable[[Any], Any] | None = None) -> None:
        self.name = "host"
        self.place = torch.device("cpu")
        self._rooms, self.changes = rooms or {}, changes
        self.gate = threading.Event()
        self.gate.set()
        self.free: int | None = None
        """What is said to be free of its memory."""
        self.captures = 0
        self.replays = 0
        self._owner = threading.get_ident()
        self._is_capturing = False
        self._rows = 0
        self._graphs: WeakSet[HostGraph] = WeakSet()
        self._lost: BaseException | None = None
        self._pinned: dict[int, int] = {}
        self._compute, self._up, self._down = (_Stream(self, name) for name in ("compute", "upload", "download"))

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        return self._memory("device", shape, dtype)

    def staging(self, shape: Sequence[int], dtype: Any) -> Any:
        return self._memory("staging", shape, dtype)

    def _memory(self, what: str, shape: Sequence[int], dtype: Any) -> Any:
        self._no_capture("memory is taken")
        self._check_room(what, shape[0])
        return _poisoned(torch.empty(tuple(shape), dtype=dtype))

    def _check_room(self, what: str, rows: int) -> None:
        if rows > self._rooms.get(what, rows):
            raise OutOfMemory("the device has no memory left")

    def pin(self, buffer: Any) -> None:
        memory = np.frombuffer(buffer, np.uint8)
        if not memory.size:
            raise ValueError("no bytes to pin")
        if memory.ctypes.data in self._pinned:
            raise RuntimeError("this memory is pinned already")
        self._pinned[memory.ctypes.data] = memory.size

    def unpin(self, buffer: Any) -> None:
        del self._pinned[np.frombuffer(buffer, np.uint8).ctypes.data]

    def is_pinned(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= start + length for start, length in self._pinned.items())

    def compute(self, work: Callable[[], T]) -> T:
        self._from_owner("computing")
        self._no_capture("something else computes")
        return self._compute.run(work)

    def launch(self, work: Callable[[], None]) -> None:
        self._from_owner("computing")
        self._no_capture("something else computes")
        self._compute.put(work)

    def branches(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Run in another order than they are given: what needs one of them done before is found out."""
        self._check_room("beside", self._rows)
        return [work() for work in reversed(works)][::-1]

    def capture(self, work: Callable[[], Any], inputs: Sequence[Any]) -> HostGraph:
        self._from_owner("capturing")
        self._no_capture("another capture begins")
        self._rows = max(len(tensor) for tensor in inputs)
        self._check_room("capture", self._rows)
        self._compute.run(lambda: None)  # as torch synchronises before it captures
        self._is_capturing = True
        try:
            with torch.inference_mode(), _NoLooks():
                outputs = work()
        finally:
            self._is_capturing = False
        graph = HostGraph(work, inputs, outputs)
        graph.poison()  # a capture computes nothing
        self.captures += 1
        self._graphs.add(graph)
        return graph

    def replay(self, graph: HostGraph, rows: int) -> None:
        self._from_owner("replaying")
        self._no_capture("a graph is replayed")
        work = graph.work
        if work is None:
            raise RuntimeError("a graph is replayed that was given back")
        self.replays += 1

        def run() -> None:
            for tensor in graph.inputs:
                _poisoned(tensor[rows:])
            for each in list(self._graphs):  # graphs share their memory: what is there may be written over
                each.poison()
            made = work()
            for target, source in zip(leaves(graph.outputs), leaves(made), strict=True):
                target.copy_(source if self.changes is None else self.changes(source))

        self._compute.put(run)

    def forget(self, graphs: Sequence[HostGraph]) -> None:
        self._compute.run(lambda: None)
        for graph in graphs:
            graph.work = None

    def upload(self, source: Any, target: Any) -> HostMark:
        return self._copy(self._up, source, target, after=None)

    def download(self, source: Any, target: Any) -> HostMark:
        return self._copy(self._down, source, target, after=self.mark())

    def _copy(self, stream: _Stream, source: Any, target: Any, after: HostMark | None) -> HostMark:
        if after is not None:
            stream.put(after.wait)

        def run() -> None:
            target.copy_(source)

        _poisoned(target)  # whoever reads it before the mark is past gets this
        stream.put(run)
        return stream.mark()

    def wait_for(self, mark: HostMark) -> None:
        if mark._device is not self:
            raise RuntimeError("a mark of another device is waited for")
        self._compute.put(mark.wait)

    def mark(self) -> HostMark:
        self._no_capture("a mark is set")
        return self._compute.mark()

    def free_bytes(self) -> int | None:
        return self.free

    def is_exhausted(self, error: BaseException) -> bool:
        return isinstance(error, OutOfMemory)

    def check(self, error: BaseException) -> None:
        if self._lost is not None:
            raise DeviceLost(f"the device failed: {self._lost}") from error

    def lose(self, why: str) -> None:
        """Fail from now on, as a GPU does after an error in a kernel."""
        self._lost = RuntimeError(why)

    def facts(self) -> Mapping[str, Any]:
        return {"device": self.name, "torch": torch.__version__}

    def _from_owner(self, doing: str) -> None:
        if threading.get_ident() != self._owner:
            raise RuntimeError(f"{doing} from a thread that does not own the device")

    def _no_capture(self, what: str) -> None:
        if self._is_capturing:
            raise RuntimeError(f"operation not permitted while capturing: {what}")


class _Stream:
    """Work that runs in order on a thread of its own."""

    def __init__(self, device: HostDevice, name: str) -> None:
        self._device = device
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"host-{name}", daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        self._works.put(lambda: self._do(work))

    def run(self, work: Callable[[], T]) -> T:
        """Run it in its turn, wait, and raise what it raises: it is the caller's error, not the device's."""
        made: list[T] = []
        failed: list[BaseException] = []

        def keep() -> None:
            try:
                with torch.inference_mode():
                    made.append(work())
            except BaseException as error:
                failed.append(error)

        self.put(keep)
        self.mark().wait()
        if failed:
            raise failed[0]
        return made[0]

    def mark(self) -> HostMark:
        mark = HostMark(self._device)
        self._works.put(lambda: mark.set(self._device._lost))
        return mark

    def _do(self, work: Callable[[], None]) -> None:
        if self._device._lost is None:
            try:
                with torch.inference_mode():
                    work()
            except BaseException as error:  # a kernel that fails takes the device with it
                self._device._lost = error

    def _run(self) -> None:
        while True:
            work = self._works.get()
            self._device.gate.wait()
            work()


class _NoLooks(TorchDispatchMode):  # type: ignore[misc]
    """Refuses what would have to wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _LOOKS or (name.startswith("index") and _has_mask(args)):
            raise RuntimeError(f"operation not permitted while capturing: {name} needs a number of the device")
        return func(*args, **(kwargs or {}))


def _has_mask(arguments: Any) -> bool:
    """Whether something is picked by true and false: how much that is only the device knows."""
    each = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], tuple | list) else ()
    return any(isinstance(part, torch.Tensor) and part.dtype is torch.bool for part in each)


def _poisoned(tensor: Any) -> Any:
    """The tensor, full of what no correct result holds; whole numbers may be indices, so small ones they stay."""
    with torch.inference_mode():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        elif tensor.dtype is torch.uint8:
            tensor.fill_(255)
    return tensor


def open_device(name: str) -> HostDevice:
    """The device for tests."""
    if name != "host":
        raise SetupError(f'device={name!r}: there is one such device, "host"')
    return HostDevice()
