"""The contract of a device, which one this process has, and what its work took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from timebound.devices.lane import the_lane
from timebound.errors import SetupError

T = TypeVar("T")

DEVICES = {"cuda": "timebound.devices.cuda", "host": "timebound.devices.host"}
"""The word in `device=`, and the module whose `open_device` opens one."""

_DRIVER = Path("/proc/driver/nvidia/version")


class Mark(Protocol):
    """A moment in a device's stream of work."""

    def wait(self) -> None:
        """Return when the device has come so far; raises `DeviceLost` if it never will."""

    def is_past(self) -> bool: ...

    def seconds_since(self, earlier: Any) -> float:
        """Device time between two marks that are past."""


class Graph(Protocol):
    """Work that was captured once and is replayed as it was, into the same outputs."""

    outputs: Any


class Device(Protocol):
    """Runs work in order, later than it was asked to. Capturing, launching and replaying are for the lane's thread.

    Tensors are the library's; `Any` here, so that who only asks for the device needs no library.
    """

    name: str
    place: Any
    """Where its tensors live, as the library writes it."""

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Memory of the device."""

    def staging(self, shape: Sequence[int], dtype: Any) -> Any:
        """Memory of the machine that the device can copy from and to by itself."""

    def pin(self, buffer: Any) -> None:
        """Let the device copy from this memory by itself, until `unpin`."""

    def unpin(self, buffer: Any) -> None: ...

    def is_pinned(self, address: int, size: int) -> bool:
        """Whether these bytes lie in memory given to `pin`."""

    def compute(self, work: Callable[[], T]) -> T:
        """Run this on the device and wait for its end."""

    def launch(self, work: Callable[[], None]) -> None:
        """Have this run after what was launched before; it may not look at numbers."""

    def branches(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Inside captured work: run these beside each other."""

    def capture(self, work: Callable[[], Any], inputs: Sequence[Any]) -> Graph:
        """Record what this runs; `inputs` is the memory that it reads."""

    def replay(self, graph: Any, rows: int) -> None:
        """Launch a captured graph; only the first rows of its inputs count."""

    def forget(self, graphs: Sequence[Any]) -> None:
        """Give back what these took."""

    def upload(self, source: Any, target: Any) -> Mark:
        """Copy to the device beside what it computes; the source stays as it is until the mark is past."""

    def wait_for(self, mark: Any) -> None:
        """Have what is launched from here on wait for this mark."""

    def mark(self) -> Mark:
        """The end of what was launched so far."""

    def download(self, source: Any, target: Any) -> Mark:
        """Copy what was launched so far has made, beside what is launched next."""

    def free_bytes(self) -> int | None:
        """Memory that is left; None if it cannot be known."""

    def is_exhausted(self, error: BaseException) -> bool:
        """Whether this error says that the device's memory is used up."""

    def check(self, error: BaseException) -> None:
        """Raise `DeviceLost` if after this error the device computes no more."""

    def facts(self) -> Mapping[str, Any]:
        """Names and versions that results depend on."""


class Usage(msgspec.Struct, frozen=True):
    """Seconds of device time, and seconds waited for the device behind other batches."""

    device_s: float = 0.0
    waited_s: float = 0.0


class Unsettled(Protocol):
    """Networks that have met their first batch and are to be captured before they serve."""

    def settle(self, most: int, in_flight: int, tell: Callable[[str], None]) -> None: ...


unprepared: ContextVar[Callable[[bool], None] | None] = ContextVar("timebound_unprepared", default=None)
"""Told by the thread that asks for a batch of a shape that was not prepared, before it runs; and whether it is new."""


class _Spent(threading.local):
    device_s = 0.0
    waited_s = 0.0


_spent = _Spent()
_open: dict[str, Device] = {}
_unsettled: list[Unsettled] = []


def take_usage() -> Usage:
    """What the calls of this thread have used since it last asked."""
    usage = Usage(_spent.device_s, _spent.waited_s)
    _spent.device_s = _spent.waited_s = 0.0
    return usage


def add_usage(device_s: float, waited_s: float) -> None:
    """A call of this thread has used so much."""
    _spent.device_s += device_s
    _spent.waited_s += waited_s


def expect(networks: Unsettled) -> None:
    """These have met a batch: `settle_all` captures them."""
    if networks not in _unsettled:
        _unsettled.append(networks)


def settle_all(most: int, in_flight: int, tell: Callable[[str], None]) -> None:
    """Capture what has met a batch so far, for batches of up to `most`, so many of them at a time."""
    while _unsettled:
        _unsettled.pop(0).settle(most, in_flight, tell)


def open_device(name: str) -> Device:
    """The device of this name, "cuda", "cuda:1" or "host"; opened by the first who asks."""
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise SetupError(f'device={name!r} is not supported; use "cpu", "cuda", "cuda:1" or "auto"')
    if name not in _open:
        others = [other for other in _open if other.partition(":")[0] != kind]
        if others:
            raise SetupError(f"device={name!r}: this worker has opened {others[0]!r}; all networks of one use the same")
        found: Device = the_lane().call(lambda: import_module(DEVICES[kind]).open_device(name))
        _open[name] = _open.setdefault(found.name, found)
    return _open[name]


def current_device() -> Device | None:
    """The device that backends of this process have opened; None if there is none so far."""
    return next(iter(_open.values()), None)


def adopt(device: Device | None) -> None:
    """Have this one instead of what was open, or none; for tests."""
    _open.clear()
    _unsettled.clear()
    if device is not None:
        _open[device.name] = device


def run_on_device(call: Callable[[], T], *, is_wanted: bool = False) -> T:
    """Run this on the lane's thread where a device may be wanted: libraries keep what they set up per thread."""
    if is_wanted or _DRIVER.exists():
        return the_lane().call(call)
    return call()


def has_driver() -> bool:
    """Whether this machine has a driver for GPUs; asks no library, which would set itself up for one."""
    return _DRIVER.exists()
