"""A connection that has ended leaves nothing that only the garbage collector could free."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from tests.unread import is_read

from timebound.admission import Peers
from timebound.admission.held import Held
from timebound.clock import MonotonicClock
from timebound.events import Events
from timebound.http.bounded import Limits, State
from timebound.http.connection import Connection
from timebound.http.intake import Intake
from timebound.http.listener import Listener, bind
from timebound.http.routes import Routes
from timebound.types import Deliver, ModelInfo, Outcome, Question, Result

INFO = ModelInfo(name="m", deadline_s=1.0)
LIMITS = Limits(max_body=1_000_000, max_header=10_000, max_connections=100, read_timeout=5.0, write_timeout=5.0)
POST = b"POST /predictions/m HTTP/1.1\r\nhost: h\r\n%bcontent-type: application/json\r\ncontent-length: 2\r\n\r\n%b"
CLIENTS = 20


def _answer(question: Question, deliver: Deliver) -> None:
    deliver(Result(Outcome(b"7")))


def _keep_silent(question: Question, deliver: Deliver) -> Deliver:
    return deliver


async def _cold(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _open(submit: Any) -> tuple[Listener, socket.socket]:
    """A listener whose questions go to `submit`."""
    requests = SimpleNamespace(submit=submit, gone=lambda attempt, address: None)
    intake, routes = Intake(requests, clock=MonotonicClock(), events=Events(), cap_s=60.0), Routes()
    routes.add(INFO)
    state = State(limits=LIMITS, held=Held(10_000_000), peers=Peers(100), access=None, cors=None)
    listener = Listener(_cold, intake=intake, routes=routes, state=state, keep_alive_s=60.0, events=Events())
    sock = bind("127.0.0.1", 0)
    await listener.open(sock)
    return listener, sock


async def _left_after(submit: Any, data: bytes, *, waits: bool) -> list[str]:
    """What is found as garbage after some clients have sent this and gone."""
    listener, sock = await _open(submit)
    for turn in range(2 * CLIENTS):
        if turn == CLIENTS:  # what the first ones brought into being, once and for all, is no garbage of the others
            gc.collect()
            gc.disable()
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(data)
        if waits:
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
        else:
            async with asyncio.timeout(5):
                while not is_read(writer.get_extra_info("socket")):
                    await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(5):
        while listener.connections:
            await asyncio.sleep(0.001)
    del reader, writer
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = [type(thing).__qualname__ for thing in gc.garbage if type(thing).__module__.startswith("timebound")]
    listener.stop_accepting()
    await listener.close(1.0)
    return found


@pytest.mark.parametrize(
    ("submit", "data", "waits"),
    [
        pytest.param(_answer, POST % (b"", b"{}"), True, id="answered"),
        pytest.param(_answer, POST % (b"connection: close\r\n", b"{}"), True, id="closed by the server"),
        pytest.param(_keep_silent, POST % (b"", b"{}"), False, id="left before the answer"),
        pytest.param(_answer, POST % (b"", b"{"), False, id="left within the body"),
        pytest.param(_answer, b"GET /other HTTP/1.1\r\nhost: h\r\n\r\n", True, id="another route"),
        pytest.param(_answer, b"GET /other HTTP/1.1\r\nhost: h\r\n\r\n" * 3, True, id="left before the third answer"),
    ],
)
def test_no_garbage(submit: Any, data: bytes, waits: bool) -> None:
    try:
        assert uvloop.run(_left_after(submit, data, waits=waits)) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def _alive_after_resets() -> int:
    """How many connections are remembered that clients reset after their answer."""
    listener, sock = await _open(_answer)
    try:
        for _ in range(CLIENTS):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(POST % (b"", b"{}"))
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
            plain = writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        async with asyncio.timeout(5):
            while listener.connections:
                await asyncio.sleep(0.001)
        # By type: isinstance asks objects for their class, and lazy ones of other libraries then wake up.
        return sum(type(thing) is Connection for thing in gc.get_objects())
    finally:
        listener.stop_accepting()
        await listener.close(1.0)


def test_a_reset_connection_is_forgotten_before_the_keep_alive_time_is_over() -> None:
    gc.collect()
    assert uvloop.run(_alive_after_resets()) == 0
