"""What a proxy says of the request it brings, if the operator named it as one that is believed.

When the request came (`X-Request-Start`), and from whom (`X-Forwarded-For`). A request that comes from anywhere else is
taken without a call into this file, and what it says there is not looked at.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from timebound.admission import Client, Hold, Peers
from timebound.clock import Clock, Wall
from timebound.errors import Refusal
from timebound.events import TurnedAway
from timebound.http.flow import Respond
from timebound.http.intake import Intake
from timebound.http.routes import Route

Headers = Collection[tuple[bytes, bytes]]

UNIX = "unix"
"""Stands for whoever comes by a Unix socket."""

_STAMP = b"x-request-start"
_FORWARDED = b"x-forwarded-for"
_MOST_HOPS = 16
_TELL_EVERY_S = 60.0

_MIN_RTT = struct.Struct("@148xI")
"""Of Linux's `tcp_info`: `tcpi_min_rtt`, in microseconds."""

log = logging.getLogger("timebound.http")


class Proxies:
    """Who is believed: addresses and networks, separated by commas, and `unix`."""

    def __init__(self, named: str, *, longest_s: float, clock: Clock, wall: Wall) -> None:
        parts = named.split(",")
        self._networks = [ip_network(part, strict=False) for part in parts if part != UNIX]
        self._has_unix = UNIX in parts
        self._longest_s = longest_s
        self._clock = clock
        self._wall = wall
        self._tell_from = -math.inf

    def trusts(self, address: str | None) -> bool:
        """Whether what comes from there is believed; None is a peer without an address."""
        if address is None:
            return self._has_unix
        known = _address(address)
        return known is not None and any(known in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """Who really asks: the last address on the way that is no proxy we believe."""
        hops = b",".join([value for name, value in headers if name == _FORWARDED]).rsplit(b",", _MOST_HOPS)
        nearest = peer
        for hop in reversed(hops[-_MOST_HOPS:]):
            known = _address(_without_port(hop.decode("latin-1").strip()))
            if known is None:
                break  # whoever is beyond is not told
            nearest = str(known)
            if not self.trusts(nearest):
                break
        return nearest

    def age_s(self, headers: Headers) -> float:
        """How long ago the first proxy had this request; 0 if none said so, or said what cannot be."""
        oldest = 0.0
        for name, value in headers:
            if name == _STAMP:
                age_s = self._wall() - read_stamp(value)
                if 0.0 <= age_s <= self._longest_s:
                    oldest = max(oldest, age_s)
                elif not -0.001 <= age_s < 0:
                    self._tell(value, age_s)
        return oldest

    def _tell(self, value: bytes, age_s: float) -> None:
        now = self._clock.now()
        if now >= self._tell_from:
            self._tell_from = now + _TELL_EVERY_S
            facts = {} if math.isnan(age_s) else {"seconds_ago": round(age_s, 3)}
            log.warning(
                "a proxy's X-Request-Start is not believed; are its clock and ours the same?",
                extra={"stamp": value[:40].decode("latin-1"), **facts},
            )


class Proxied:
    """The way in for what one peer brings that is believed: an intake that knows when it came and from whom."""

    def __init__(
        self, intake: Intake, proxies: Proxies, peers: Peers, *, peer: str, back_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._intake = intake
        self._proxies = proxies
        self._peers = peers
        self._peer = peer
        self._back_s = back_s

    def take(
        self,
        route: Route,
        headers: Headers,
        body: bytes,
        respond: Respond,
        *,
        client: Client | None = None,
        hold: Hold | None = None,
        unread_s: Callable[[], float] | None = None,
        age_s: float = 0.0,
        address: str = "",
    ) -> Callable[[], None] | None:
        """As `Intake.take`; what a host keeps of each limit (`age_s`) comes on top of what the stamp tells."""
        age_s += self._proxies.age_s(headers)
        if age_s:
            age_s += self._back_s()  # the answer has as long a way
        address = self._proxies.client(self._peer, headers)
        take = self._intake.take
        if address == self._peer or self._proxies.trusts(address):
            return take(
                route, headers, body, respond, client=client, hold=hold, unread_s=unread_s, age_s=age_s, address=address
            )
        seat = _Seat(self._peers, address, respond)
        if not seat.is_had:
            most = self._peers.limit
            error = Refusal(f"your address has {most} requests in work", code="client_busy", retry_after_s=1)
            self._intake.events.emit(TurnedAway(error.code))
            seat.respond(*route.surface.refuse(error, self._intake.request_id(dict(headers))))
            return None
        leave = take(
            route,
            headers,
            body,
            seat.respond,
            client=client,
            hold=hold,
            unread_s=unread_s,
            age_s=age_s,
            address=address,
        )
        return None if leave is None else seat.leaving(leave)


class _Seat:
    """One request in work of an address that shares its connection with others."""

    __slots__ = ("_address", "_peers", "_respond", "is_had")

    def __init__(self, peers: Peers, address: str, respond: Respond) -> None:
        self._peers: Peers | None = peers
        self._address = address
        self._respond = respond
        self.is_had = peers.come(address)

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        self._go()
        self._respond(status, head, body)

    def leaving(self, leave: Callable[[], None]) -> Callable[[], None]:
        def go() -> None:
            self._go()
            leave()

        return go

    def _go(self) -> None:
        if self._peers is not None:
            peers, self._peers = self._peers, None
            peers.go(self._address)


def read_stamp(value: bytes) -> float:
    """Seconds since 1970 of `t=1700000000.123`, or of milli-, micro- or nanoseconds; NaN of anything else."""
    try:
        number = float(value.strip().removeprefix(b"t="))
    except ValueError:
        return math.nan
    for unit in (1.0, 1e-3, 1e-6, 1e-9):
        if 1e8 <= number * unit < 1e11:  # from 1973 on; seconds for three thousand years
            return number * unit
    return math.nan


def way_back_s(sock: Any) -> float:
    """How long an answer takes to a peer: half of the shortest round trip that the kernel has seen."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
    microseconds: int = _MIN_RTT.unpack(told)[0] if len(told) == _MIN_RTT.size else 0
    return 0.5e-6 * microseconds if microseconds != 0xFFFFFFFF else 0.0  # none seen yet


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        known = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(known, "ipv4_mapped", None) or known


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
