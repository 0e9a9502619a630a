"""Networks of their own for a measurement: what happens in one is not seen outside, and all of it goes with it."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from benchmarks.tools.processes import StartError

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network namespace with a loopback device, for the length of a `with` block. Needs root."""

    def __init__(self, name: str) -> None:
        # The number keeps two measurements apart.
        self.name = f"{name}-{os.getpid()}"
        self.path = Path("/run/netns") / self.name

    def __enter__(self) -> Self:
        try:
            _run("ip", "netns", "add", self.name)
            _run(*self.inside("ip", "link", "set", "lo", "up"))
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            told = error.stderr.decode().strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise StartError(f"a network of its own cannot be made (that needs root, and iproute2): {told}") from None
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.kill()  # such as a name server for containers: all of it was started in here
            subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def inside(self, *command: str) -> list[str]:
        """The command, to be run in this network. (Not `ip netns exec`: that mounts a /sys without control groups.)"""
        return ["nsenter", f"--net={self.path}", "--", *command]

    def kill(self) -> None:
        """End everything that runs in this network, at once and without a word."""
        left = subprocess.run(["ip", "netns", "pids", self.name], check=False, capture_output=True, text=True)
        for pid in left.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in this network meanwhile."""
        with in_network(self.path):
            yield


def join(hub: Namespace, others: Sequence[Namespace], addresses: Sequence[str]) -> None:
    """Put networks on one switch, which is in the hub; the addresses are theirs in this order, the hub's first.

    All of it goes with the networks.
    """
    _run(*hub.inside("ip", "link", "add", "switch", "type", "bridge"))
    _run(*hub.inside("ip", "address", "add", f"{addresses[0]}/24", "dev", "switch"))
    _run(*hub.inside("ip", "link", "set", "switch", "up"))
    for number, (other, address) in enumerate(zip(others, addresses[1:], strict=True)):
        port = f"port{number}"
        _run(*hub.inside("ip", "link", "add", port, "type", "veth", "peer", "name", "line", "netns", other.name))
        _run(*hub.inside("ip", "link", "set", port, "master", "switch", "up"))
        _run(*other.inside("ip", "address", "add", f"{address}/24", "dev", "line"))
        _run(*other.inside("ip", "link", "set", "line", "up"))


@contextmanager
def in_network(network: Path) -> Iterator[None]:
    """This thread is in the network of that file meanwhile."""
    with open("/proc/thread-self/ns/net") as before, network.open() as there:
        _set(there.fileno())
        try:
            yield
        finally:
            _set(before.fileno())


def _set(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def may_make_networks() -> bool:
    """Whether this process may make networks and devices in them."""
    tools: Sequence[str] = ("/dev/net/tun", "/run")
    return os.geteuid() == 0 and all(os.path.exists(tool) for tool in tools)
