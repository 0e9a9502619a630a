"""A slow and lossy line between two networks, made of two TUN devices and this process between them.

Linux has `tc netem` for that, but not every kernel is built with it. Packets that come out of one device go into the
other after the delay, in order; each is lost with the given chance. Run as a program it is the line itself:
`slow_link.py NETWORK NETWORK DELAY_MS LOSS`, until it is ended.
"""

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.namespaces import Namespace, in_network
from benchmarks.tools.processes import StartError, die_with_parent

NEAR, FAR = "10.77.0.1", "10.77.0.2"
"""The addresses at the two ends."""
_DEVICE = "slow0"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LONGEST_PACKET = 65536
_START_S = 5.0


class SlowLink:
    """The line between two namespaces, for the length of a `with` block; `round_trip_s` there and back."""

    def __init__(self, near: Namespace, far: Namespace, *, round_trip_s: float, loss: float = 0.0) -> None:
        self._ends = (near, far)
        ends = [str(near.path), str(far.path)]
        self._command = [sys.executable, str(Path(__file__).resolve()), *ends, str(round_trip_s / 2), str(loss)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads yet
        )
        assert self._process.stdout is not None
        try:
            if self._process.stdout.readline() != b"open\n":
                raise StartError("the slow line cannot be made: /dev/net/tun is missing, or this is not root")
            for end, (own, other) in zip(self._ends, ((NEAR, FAR), (FAR, NEAR)), strict=True):
                for words in (f"addr add {own} peer {other} dev {_DEVICE}", f"link set {_DEVICE} mtu 1500 up"):
                    subprocess.run(end.inside("ip", *words.split()), check=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class _Way:
    """One direction: what came out of `source` goes into `target` after the delay."""

    def __init__(self, source: int, target: int, delay_s: float, loss: float) -> None:
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._loss = loss
        self._chance = random.Random(source)
        self._packets: deque[tuple[float, bytes]] = deque()

    def take(self, now: float) -> None:
        """Read a packet, and lose it or keep it until its time."""
        packet = os.read(self.source, _LONGEST_PACKET)
        if self._chance.random() >= self._loss:
            self._packets.append((now + self._delay_s, packet))

    def give(self, now: float) -> float:
        """Write what is due; when the next one will be."""
        while self._packets and self._packets[0][0] <= now:
            with suppress(OSError):  # the device is not up yet, or is full: lost
                os.write(self._target, self._packets.popleft()[1])
        return self._packets[0][0] if self._packets else float("inf")


def carry(near: Path, far: Path, delay_s: float, loss: float) -> None:
    """Be the line, for ever."""
    with suppress(PermissionError):  # as a real line it does not wait for the cores that the servers use
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    one, other = _device(near), _device(far)
    print("open", flush=True)
    ways = {way.source: way for way in (_Way(one, other, delay_s, loss), _Way(other, one, delay_s, loss))}
    due = float("inf")
    while True:
        wait_s = None if due == float("inf") else max(0.0, due - time.monotonic())
        ready, _, _ = select.select(list(ways), [], [], wait_s)
        now = time.monotonic()
        for descriptor in ready:
            ways[descriptor].take(now)
        due = min(way.give(now) for way in ways.values())


def _device(network: Path) -> int:
    """A TUN device in a network; it goes when the returned descriptor is closed."""
    with in_network(network):
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        return descriptor


if __name__ == "__main__":
    carry(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
