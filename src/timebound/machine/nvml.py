"""What NVIDIA's driver says of its GPUs, through nvidia-ml-py where that is installed; never through CUDA."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from timebound.machine.gpus import index_of


class Card(NamedTuple):
    """One GPU at one moment."""

    name: str
    busy: float
    """Share of the last moments in which it computed anything, from 0 to 1."""
    used_bytes: int
    total_bytes: int


class Cards:
    """The GPUs that may be used. Reading takes the driver some milliseconds: not for an event loop."""

    def __init__(self, there: list[str], library: Any) -> None:
        self._library = library
        library.nvmlInit()
        self.names = there
        self._handles = [self._handle(name) for name in there]

    def _handle(self, name: str) -> Any:
        index = index_of(name)
        if index is not None:
            return self._library.nvmlDeviceGetHandleByIndex(index)
        return self._library.nvmlDeviceGetHandleByUUID(name)

    def driver(self) -> str:
        """Its version."""
        return str(self._library.nvmlSystemGetDriverVersion())

    def read(self) -> list[Card]:
        """How they are now, in the order of their names."""
        return [self._read(handle) for handle in self._handles]

    def _read(self, handle: Any) -> Card:
        memory = self._library.nvmlDeviceGetMemoryInfo(handle)
        try:
            busy = self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except self._library.NVMLError:  # parts of a GPU (MIG) have none
            busy = 0.0
        return Card(str(self._library.nvmlDeviceGetName(handle)), busy, int(memory.used), int(memory.total))


def open_cards(there: list[str]) -> Cards | None:
    """The GPUs of these names; None if there are none, or nobody can be asked."""
    if not there:
        return None
    try:
        return Cards(there, import_module("pynvml"))
    except ModuleNotFoundError:
        return None
    except Exception:  # its own errors: a driver that is too old, or not allowed; the server runs without it
        return None
