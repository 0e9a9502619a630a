"""The server that the GPU benchmark measures: its process, and what it says of itself."""

import os
import subprocess
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from pathlib import Path

from timebound.lab.load.processes import process_tree, stat_of

_SUMS = ("timebound_batch_ends", "timebound_batch_rows", "timebound_device", "timebound_worker_cpu")


class Serving:
    """A server under test and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, ready_s: float, pauses: Path) -> None:
        self.process, self.port, self.log, self.ready_s = process, port, log, ready_s
        self.pauses = pauses
        """Where its processes note when they stood still."""

    def metrics(self) -> dict[str, float]:
        """Every number it tells."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def tell_sums(self) -> None:
        """Print sums of its own metrics: where the time of a request goes."""
        for name, value in sorted(self.metrics().items()):
            if name.startswith(_SUMS) and "bucket" not in name:
                print(f"    {name} {value:.6g}", flush=True)

    def workers_lost(self) -> float:
        return sum(value for name, value in self.metrics().items() if name.startswith("timebound_worker_deaths_total"))

    def unprepared(self) -> float:
        """Batches that met a shape, or kernels, which were not there when the server was ready."""
        name = "timebound_device_unprepared_total"
        return sum(value for key, value in self.metrics().items() if key.startswith(name))

    def cores_s(self) -> dict[str, float]:
        """Processor time so far, by process: who is busy when nothing else is the limit."""
        spent: dict[str, float] = {}
        for place, pid in enumerate(process_tree(self.process.pid)):
            with suppress(OSError, IndexError):
                command = command_of(pid).split(b"\0")
                module = next((part.decode() for part in command if part.startswith(b"timebound.")), "gateway")
                user, system = stat_of(pid)[11:13]
                spent[f"{place}:{module}"] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return spent


def bound_of(told: Mapping[str, float], name: str, share: float) -> float:
    """The bound of a histogram's bucket below which this share of what it saw lies."""
    buckets = {
        float(key.partition('le="')[2].partition('"')[0]): count
        for key, count in told.items()
        if key.startswith(f"{name}_bucket")
    }
    most = max(buckets.values(), default=0.0)
    bound = min((bound for bound, count in buckets.items() if most and count >= share * most), default=0.0)
    return bound if isfinite(bound) else 1000.0


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Killer:
    """Ends a process that takes too long."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._timer = threading.Timer(limit_s, process.kill)
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()
