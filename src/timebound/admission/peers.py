"""How many connections each address has open, so that no one takes all the seats."""

from __future__ import annotations

from collections import defaultdict
from ipaddress import IPv6Address, ip_address


class Peers:
    """Counts connections by address; those of one IPv6 network (/64) count as one, as they are one customer's."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: defaultdict[str, int] = defaultdict(int)

    def come(self, address: str) -> bool:
        """One more connection; False if there are too many from there now. Call `go` in any case."""
        peer = peer_of(address)
        self._open[peer] += 1
        return self._open[peer] <= self.limit

    def go(self, address: str) -> None:
        """A connection that came has ended."""
        peer = peer_of(address)
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]

    def count(self, peer: str) -> int:
        """How many are open of whoever this stands for; see `peer_of`."""
        return self._open.get(peer, 0)

    def __len__(self) -> int:
        """From how many addresses there are connections."""
        return len(self._open)


def peer_of(address: str) -> str:
    """Whom an address stands for."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.exploded[:19]
