"""A server in Redis's place that says only what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Reply = Callable[[asyncio.StreamWriter, int], None]
"""What a stand-in server does with the bytes that came in, given how often it has been called on this connection."""


@asynccontextmanager
async def stand_in(reply: Reply) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that speaks as told; its URL, and each piece of bytes as it came."""
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while data := await reader.read(1 << 20):
            came.append(data)
            reply(writer, count)
            count += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
