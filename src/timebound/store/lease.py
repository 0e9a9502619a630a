"""That this gateway lives: a lease that ends unless it is renewed, and that every claim of the gateway names."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Command: TypeAlias = tuple[Any, ...]

LEASE = Path(__file__).with_name("lease.lua").read_bytes()
_SHA = sha1(LEASE).hexdigest()

SHORTEST_S = 0.5
"""No lease is shortened below this: a quarter of it passes between renewals, and servers and Redis do pause."""
_SHARE_OF_DEADLINE = 0.5
"""Of the shortest deadline: so that a retry can wait for the end of a dead gateway's lease, and still be computed."""
_TABLE_KEPT_MS = 4_000_000
"""As long as a claim. A table is renewed with every lease in it; this only clears it away."""


def shortened(lease_s: float, deadline_s: float) -> float:
    """The lease of a gateway whose models' shortest deadline is this; `lease_s` is the longest."""
    return min(lease_s, max(SHORTEST_S, _SHARE_OF_DEADLINE * deadline_s))


class Lease(Protocol):
    """A gateway's lease at one Redis. After a lost connection it is a new owner: `come` begins a new lease."""

    scripts: tuple[bytes, ...]
    keys: tuple[str, ...]
    """What a claim must name besides its own keys."""
    prefix: str
    lease_s: float

    @property
    def owner(self) -> str: ...
    def come(self) -> list[Command]: ...
    def was_taken(self) -> None: ...
    def take(self) -> Command: ...
    def renew(self) -> Command: ...
    def go(self) -> Command: ...
    def left(self, owner: bytes) -> Command: ...


class OwnKey:
    """A key of its own that expires: for one Redis."""

    scripts: tuple[bytes, ...] = ()
    keys: tuple[str, ...] = ()

    def __init__(self, space: str, gateway: str, lease_s: float) -> None:
        self.prefix = f"{space}:o:"
        self._gateway = gateway
        self.lease_s = lease_s
        self._epoch = 0
        self._last = ""  # of the last connection that was up

    @property
    def owner(self) -> str:
        return f"{self._gateway}.{self._epoch}"

    def come(self) -> list[Command]:
        """Begin a new lease; what is left of the last one's claims is free at once."""
        self._epoch += 1
        return [*([("DEL", self._last)] if self._last else []), self.take()]

    def was_taken(self) -> None:
        """The connection that took it is up."""
        self._last = self.prefix + self.owner

    def take(self) -> Command:
        milliseconds = str(int(self.lease_s * 1e3))
        return "SET", self.prefix + self.owner, milliseconds, "PX", milliseconds

    def renew(self) -> Command:
        """Unlike `take`, this is allowed when Redis has no memory left. Zero: the lease is over."""
        return "PEXPIRE", self.prefix + self.owner, str(int(self.lease_s * 1e3))

    def go(self) -> Command:
        return "DEL", self.prefix + self.owner

    def left(self, owner: bytes) -> Command:
        return "PTTL", self.prefix.encode() + owner


class InTable:
    """A line in a table that all gateways share: for the keys with one hash tag on a cluster."""

    scripts: tuple[bytes, ...] = (LEASE,)
    prefix = ""

    def __init__(self, space: str, gateway: str, lease_s: float) -> None:
        self.keys: tuple[str, ...] = (f"{space}:o",)
        self._gateway = gateway
        self.lease_s = lease_s
        self._epoch = 0
        self._last = ""

    @property
    def owner(self) -> str:
        return f"{self._gateway}.{self._epoch}"

    def come(self) -> list[Command]:
        self._epoch += 1
        return [*([self._do("go", self._last)] if self._last else []), self._do("come", self.owner)]

    def was_taken(self) -> None:
        self._last = self.owner

    def take(self) -> Command:
        return self._do("stay", self.owner)

    def renew(self) -> Command:
        return self.take()

    def go(self) -> Command:
        return self._do("go", self.owner)

    def left(self, owner: bytes) -> Command:
        return self._do("left", owner)

    def _do(self, what: str, owner: str | bytes) -> Command:
        times = str(int(self.lease_s * 1e3)), str(_TABLE_KEPT_MS)
        return "EVALSHA", _SHA, "1", self.keys[0], what, owner, *times
