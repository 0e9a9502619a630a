"""Bodies of requests to the server's own routes: short ones, for what comes there is counted nowhere."""

from __future__ import annotations

from starlette.types import Message, Receive

from timebound.errors import RequestError

MOST = 65_536
"""Bytes; the longest body that any of these routes has a use for is a division of traffic."""


def shortened(receive: Receive) -> Receive:
    """The same, but whoever reads more than `MOST` bytes by it gets a `RequestError`."""
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MOST:
            raise RequestError(f"a body for this path has at most {MOST} bytes", code="body_too_large")
        return message

    return receive_some
