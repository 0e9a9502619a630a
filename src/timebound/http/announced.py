"""PROXY protocol, versions 1 and 2: a proxy that passes bytes on says first, in a line of its own, whose they are.

With `--proxy-protocol` every connection of a proxy that is believed begins so; others must not, and do not.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

from timebound.http.connection import Connection

_MAGIC = b"\r\n\r\n\x00\r\nQUIT\n"
_LONGEST_LINE = 107
_MOST_BYTES = 4096
"""Of addresses and what else a proxy may say in version 2."""


class Announced(Connection):
    """A connection that is announced by the proxy it comes through."""

    _begun: bytes | None = None
    """What has come of the announcement, while one is awaited."""

    def sit(self, address: str | None) -> None:
        """Wait for what a proxy says before the connection counts for anybody."""
        proxies = self._state.proxies
        if proxies is not None and proxies.trusts(address):
            self._begun = b""
        else:
            super().sit(address)

    def data_received(self, data: bytes) -> None:
        if self._begun is None:
            super().data_received(data)
            return
        self._begun += data
        try:
            found = read_announcement(self._begun)
        except ValueError:
            self.cut("malformed_http")
            return
        if found is None:
            return
        self._begun = None
        address, rest = found
        peer = self.client[0] if self.client is not None else None
        if address is not None:
            # An address of the proxy's own machine is no address of ours: it gives no operator's rights.
            self.client = ("proxied" if ip_address(address).is_loopback else address, 0)
        super().sit(peer if address is None else address)
        if rest:
            super().data_received(rest)


def read_announcement(data: bytes) -> tuple[str | None, bytes] | None:
    """The client's address and what follows; None if more must come. A proxy that speaks for itself gives no address.

    Raises `ValueError` if this is no announcement.
    """
    if data.startswith(_MAGIC):
        return _read_binary(data)
    if _MAGIC.startswith(data[: len(_MAGIC)]) and len(data) < len(_MAGIC):
        return None
    line, end, rest = data.partition(b"\r\n")
    is_so_far = line.startswith(b"PROXY ") or (not end and b"PROXY ".startswith(line))
    if not is_so_far or len(line) > _LONGEST_LINE:
        raise ValueError(data[:20])
    if not end:
        return None
    words = line.decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return None, rest
    if words[1] not in ("TCP4", "TCP6") or len(words) != 6:
        raise ValueError(line)
    return str(ip_address(words[2])), rest


def _read_binary(data: bytes) -> tuple[str | None, bytes] | None:
    if len(data) < 16:
        return None
    command, family, length = data[12], data[13] >> 4, int.from_bytes(data[14:16])
    if command not in (0x20, 0x21) or length > _MOST_BYTES:
        raise ValueError(data[:16])
    if len(data) < 16 + length:
        return None
    told, rest = data[16 : 16 + length], data[16 + length :]
    sizes: dict[int, tuple[Any, int]] = {1: (socket.AF_INET, 4), 2: (socket.AF_INET6, 16)}
    if command == 0x20 or family not in sizes:  # its own check, or a protocol without such addresses
        return None, rest
    kind, size = sizes[family]
    if length < 2 * size + 4:
        raise ValueError(data[:16])
    return socket.inet_ntop(kind, told[:size]), rest
