"""The simplest HTTP server there is: sends each body back; may stand still for a while, once, as real ones do."""

import argparse
import asyncio
import time
from typing import cast

import uvloop


class Stall:
    """Blocks the whole process once, so long after the first request."""

    def __init__(self, after_s: float, seconds: float) -> None:
        self._after_s = after_s
        self._seconds = seconds
        self._first = 0.0

    def look(self) -> None:
        """To be called with each request."""
        if not self._seconds:
            return
        now = time.monotonic()
        self._first = self._first or now
        if now >= self._first + self._after_s:
            time.sleep(self._seconds)
            self._seconds = 0.0


class Echo(asyncio.Protocol):
    """Reads heads with Content-Length only, and any number of requests at a time."""

    def __init__(self, stall: Stall, work_s: float) -> None:
        self._stall = stall
        self._work_s = work_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, found, rest = self._received.partition(b"\r\n\r\n")
            _, named, after = head.lower().partition(b"content-length:")
            length = int(after.split(b"\r\n", 1)[0]) if named else 0
            if not found or len(rest) < length:
                return
            self._stall.look()
            self._work()
            body, self._received = rest[:length], rest[length:]
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (length, body)
            )

    def _work(self) -> None:
        """Keep the core busy, the same time for each request."""
        end = time.perf_counter() + self._work_s
        while time.perf_counter() < end:
            pass


async def serve(port: int, stall: Stall, work_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Echo(stall, work_s), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--stall-after", type=float, default=0.0, metavar="S", help="seconds after the first request")
    parser.add_argument("--stall", type=float, default=0.0, metavar="S", help="how long it stands still, once")
    parser.add_argument("--work-us", type=float, default=0.0, metavar="N", help="microseconds of work for each request")
    options = parser.parse_args()
    uvloop.run(serve(options.port, Stall(options.stall_after, options.stall), options.work_us / 1e6))


if __name__ == "__main__":
    main()
