"""When a request really arrived: the system may have had it for a while before this process came to read it."""

from __future__ import annotations

import socket
import struct

_LAST_DATA = struct.Struct("@52xI")
"""Of Linux's `tcp_info`: `tcpi_last_data_recv`, the milliseconds since data came."""

_TICKS_MS = 8
"""The kernel counts in ticks, and up to so much may be none."""


def unread_s(sock: socket.socket | None) -> float:
    """How long the last bytes that a client sent have been here, if that is more than a few milliseconds; else 0."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    milliseconds: int = _LAST_DATA.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size))[0]
    return milliseconds * 1e-3 if milliseconds > _TICKS_MS else 0.0
