"""Clients that mean harm, one kind after the other, in a process of their own at the lowest priority.

Each sends as fast as its share of a line of 100 Mbit/s lets it, and comes back when it is cut.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any

import uvloop

from benchmarks.tools.load import HOST

LINE_BYTES_S = 100_000_000 / 8
FLOOD_BODY = 20_000_000
SLOW_CONNECTIONS = 500
SLOW_BYTE_S = 0.5
FEW = 4
"""Connections of the kinds whose bytes are the harm."""
CROWD = 800
"""Connections of the kind whose number is the harm; one address may have 1,024."""

BACKLOG = 100
"""Connections of the kind that has much wait behind an answer."""
FORM_BODY = 9_000_000
_LIGHT_BODY = 250_000
"""Less than what is always read in another process."""

_PIECE = 125_000
_BOUNDARY = b"x" * 70
_FORM_END = b"--%b--\r\n" % _BOUNDARY
_POST = b"POST /predictions/echo HTTP/1.1\r\nHost: test\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"

Harm = Callable[[asyncio.StreamWriter], Coroutine[None, None, None]]


async def _send(writer: asyncio.StreamWriter, data: bytes, connections: int = FEW, size: int = _PIECE) -> None:
    """These bytes, in pieces of this size, no faster than this connection's share of the line."""
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(len(piece) * connections / LINE_BYTES_S)


async def _flood(writer: asyncio.StreamWriter) -> None:
    """A body that is too large, with its length told or in one chunk; whatever it is answered meanwhile."""
    told, chunk = b"Content-Length: %d\r\n\r\n" % FLOOD_BODY, b"%x\r\n" % FLOOD_BODY
    await _send(writer, (_POST + told if next(_turns) % 2 else _CHUNKED + chunk) + bytes(FLOOD_BODY))


async def _trailers(writer: asyncio.StreamWriter) -> None:
    """Lines behind a body, for ever; to a model or to the server itself, long lines or the shortest."""
    turn = next(_turns)
    head = _CHUNKED if turn % 2 else b"GET /livez HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    line = b"a:\r\n" if turn % 4 < 2 else b"X-A: " + b"a" * 200 + b"\r\n"
    await _send(writer, head + b"2\r\n{}\r\n0\r\n" + line * (5_000_000 // len(line)))


async def _chunks(writer: asyncio.StreamWriter) -> None:
    """A body in chunks of two bytes."""
    await _send(writer, _CHUNKED + b"2\r\nxx\r\n" * 4_000_000)


async def _fields(writer: asyncio.StreamWriter) -> None:
    """A JSON body that is hard to compare, with a key, so that it has to be: very many fields, or all but heavy."""
    kinds = _hard_to_compare()
    body = kinds[next(_turns) % len(kinds)]
    head = _POST + b"Content-Type: application/json\r\nIdempotency-Key: k%d\r\n" % next(_turns)
    await _send(writer, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await asyncio.sleep(0.5)


async def _uploads(writer: asyncio.StreamWriter) -> None:
    """A form with a file as large as a server may be told to take."""
    await _send_form(writer, _part(b'name="file"; filename="a.png"', bytes(FLOOD_BODY)) + _FORM_END, connections=1)


async def _parts(writer: asyncio.StreamWriter) -> None:
    """A form of very many of the smallest parts, one of as many pairs, and one of a boundary without end."""
    turn = next(_turns) % 3
    if turn == 1:
        body = b"a=1&" * (FORM_BODY // 4)
        head = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(body)
        await _send(writer, _POST + head + body)
        await asyncio.sleep(0.5)
        return
    part = _part(b"name=a", b"") if turn else b"\r\n--" + _BOUNDARY[:-1]
    await _send_form(writer, part * (FORM_BODY // len(part)) + _FORM_END)


def _part(disposition: bytes, value: bytes) -> bytes:
    return b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (_BOUNDARY, disposition, value)


async def _send_form(writer: asyncio.StreamWriter, body: bytes, connections: int = FEW) -> None:
    head = b"Content-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n" % (_BOUNDARY, len(body))
    await _send(writer, _POST + head + body, connections)
    await asyncio.sleep(0.5)


async def _headers(writer: asyncio.StreamWriter) -> None:
    """Headers without end: the shortest lines, long ones, one that is endless."""
    line = (b"a:\r\n", b"X-A: " + b"a" * 2000 + b"\r\n", b"a")[next(_turns) % 3]
    await _send(writer, _POST + b"X-B: " + line * (500_000 // len(line)))


async def _pipelining(writer: asyncio.StreamWriter) -> None:
    """A thousand requests at once, of the server itself and of a model in turn, and a pause."""
    asked = b"GET /livez HTTP/1.1\r\nHost:x\r\n\r\n" + _POST + b"Content-Length: 2\r\n\r\n{}"
    for _ in range(10):
        await _send(writer, asked * 500)
        await asyncio.sleep(2.0)


async def _backlog(writer: asyncio.StreamWriter) -> None:
    """An answer too large for the line, which is not read, and small bodies that wait behind it."""
    small = b"Content-Length: 15000\r\n\r\n" + b" " * 14_998 + b"{}"
    asked = b"GET /ui/vendor/swagger-ui/swagger-ui.css HTTP/1.1\r\nHost:x\r\n\r\n" + (_POST + small) * 9
    await asyncio.sleep(next(_turns) % BACKLOG * 5_000 / LINE_BYTES_S)  # on one line they come one after the other
    await _send(writer, asked, BACKLOG, size=5_000)
    await asyncio.sleep(5.0)


async def _crowd(writer: asyncio.StreamWriter) -> None:
    """One of very many connections, each with a head that is not finished; gone and back after a while."""
    await _send(writer, _POST + b"X-A: " + b"a" * 2000, CROWD)
    await asyncio.sleep(1.5)


_turns = count()


@cache
def _hard_to_compare() -> tuple[bytes, ...]:
    """A megabyte of fields, and bodies of up to a quarter: the more that is hard, the smaller it may be to be light."""
    texts = [escaped * (_LIGHT_BODY // len(escaped)) for escaped in ('"', "\\", "\n", "e-")]
    names = {f"{number}" + '"' * (_LIGHT_BODY // 800): 1.5 for number in range(400)}
    fields = [{f"{number:x}": number for number in range(count)} for count in (100_000, 1_500)]
    more: list[dict[str, Any]] = [*fields, names, *({"more": [1.5, text[: _LIGHT_BODY // 2]]} for text in texts)]
    return tuple(json.dumps({"values": [1.0], **each}, separators=(",", ":")).encode() for each in more)


async def _abuse_for_ever(port: int, harm: Harm, *, is_stubborn: bool, is_deaf: bool) -> None:
    """Do this harm again and again; who is not stubborn comes anew as soon as it is answered and the door closed.

    Who is deaf reads nothing, and has next to no room for what was not read.
    """
    while True:
        with suppress(OSError):
            line = socket.socket()
            if is_deaf:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # else the sender's system takes megabytes
            line.setblocking(False)
            await asyncio.get_running_loop().sock_connect(line, (HOST, port))
            reader, writer = await asyncio.open_connection(sock=line)
            reading = asyncio.ensure_future(asyncio.Event().wait() if is_deaf else _read(reader))
            if is_deaf:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            doing = asyncio.ensure_future(harm(writer))
            await asyncio.wait((doing,) if is_stubborn else (doing, reading), return_when=asyncio.FIRST_COMPLETED)
            for task in (doing, reading):
                task.cancel()
            await asyncio.wait((doing, reading))
            writer.transport.abort()
        await asyncio.sleep(0.02)


async def _read(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


def _many(harm: Harm, connections: int, *, is_stubborn: bool = False, is_deaf: bool = False) -> Callable[[int], None]:
    def run(port: int) -> None:
        async def all_of_them() -> None:
            each = (_abuse_for_ever(port, harm, is_stubborn=is_stubborn, is_deaf=is_deaf) for _ in range(connections))
            await asyncio.gather(*each)

        uvloop.run(all_of_them())

    return run


def _slow_clients(port: int) -> None:
    """Connections that say a little of a request again and again, and start anew when they are cut.

    By hand and in turn: this must cost less than what it does to the server.
    """
    opening = b"POST /predictions/echo HTTP/1.1\r\nHost: test\r\nX-Slow: "
    lines: list[socket.socket | None] = [None] * SLOW_CONNECTIONS
    pause_s = SLOW_BYTE_S / SLOW_CONNECTIONS
    due = time.perf_counter()
    while True:
        for place, line in enumerate(lines):
            due += pause_s
            time.sleep(max(0.0, due - time.perf_counter()))
            lines[place] = _say_a_little(line, port, opening)


def _say_a_little(line: socket.socket | None, port: int, opening: bytes) -> socket.socket | None:
    """The connection to go on with: this one, or a new one at once if it was cut."""
    try:
        if line is not None:
            with suppress(BlockingIOError):
                line.recv(4096)
                raise ConnectionError  # it was told why, or is cut
            line.send(b"a")
            return line
    except OSError:
        assert line is not None
        line.close()
    with suppress(OSError):
        line = socket.create_connection((HOST, port))
        line.setblocking(False)
        line.send(opening)
        return line
    return None


ABUSERS: dict[str, tuple[Callable[[int], None], int]] = {
    "slowloris": (_slow_clients, SLOW_CONNECTIONS),
    "flood": (_many(_flood, FEW, is_stubborn=True), FEW),
    "trailers": (_many(_trailers, FEW), FEW),
    "chunks": (_many(_chunks, FEW), FEW),
    "fields": (_many(_fields, FEW), FEW),
    "uploads": (_many(_uploads, 1), 1),
    "parts": (_many(_parts, FEW), FEW),
    "headers": (_many(_headers, FEW), FEW),
    "pipelining": (_many(_pipelining, FEW), FEW),
    "backlog": (_many(_backlog, BACKLOG, is_deaf=True), BACKLOG),
    "connections": (_many(_crowd, CROWD), CROWD),
}
"""By kind, what they do and how many connections they hold."""


def _abuse(kind: str, port: int) -> None:
    os.nice(19)
    ABUSERS[kind][0](port)


class Abuse:
    """Abusers of one kind, for the length of a `with` block."""

    def __init__(self, kind: str, port: int) -> None:
        self._process = multiprocessing.get_context("spawn").Process(target=_abuse, args=(kind, port), daemon=True)

    def __enter__(self) -> "Abuse":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
