"""Of connections that have sent half a head the event loop hears a few a turn, and each of them in the end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from timebound.admission import Peers
from timebound.admission.held import Held
from timebound.clock import MonotonicClock
from timebound.events import Events
from timebound.http.bounded import Limits, State
from timebound.http.intake import Intake
from timebound.http.listener import Listener, bind
from timebound.http.routes import Routes
from timebound.http.unfinished import A_TURN

CLIENTS = 200
LIMITS = Limits(max_body=1_000_000, max_header=10_000, max_connections=1000, read_timeout=5.0, write_timeout=5.0)
HEAD = b"GET /livez HTTP/1.1\r\nHost: h\r\nX-A: " + b"a" * 100
TURNS = 100_000


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, State, tuple[str, int]]]:
    intake = Intake(SimpleNamespace(submit=None, gone=None), clock=MonotonicClock(), events=Events(), cap_s=60.0)
    state = State(limits=LIMITS, held=Held(10_000_000), peers=Peers(1000), access=None, cors=None)
    listener = Listener(_answer, intake=intake, routes=Routes(), state=state, keep_alive_s=60.0, events=Events())
    sock = bind("127.0.0.1", 0)
    await listener.open(sock)
    try:
        yield listener, state, sock.getsockname()
    finally:
        listener.stop_accepting()
        await listener.close(1.0)


def _connected(address: tuple[str, int], said: bytes) -> socket.socket:
    client = socket.create_connection(address)
    client.sendall(said)
    return client


async def _have_begun(state: State, count: int) -> None:
    for _ in range(TURNS):
        if len(state.unfinished) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(state.unfinished)} have begun")


async def _most_ended_in_a_turn(how: bytes) -> int:
    async with listening() as (listener, state, address):
        clients = [_connected(address, HEAD) for _ in range(CLIENTS)]
        await _have_begun(state, CLIENTS)
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
            client.close()
        most = turns = 0
        while (before := listener.connections) and turns < TURNS:
            await asyncio.sleep(0)
            most, turns = max(most, before - listener.connections), turns + 1
        assert listener.connections == len(state.unfinished) == 0
        return most


@pytest.mark.parametrize("how", [struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)], ids=["reset", "closed"])
def test_a_crowd_that_leaves_with_half_its_heads_sent_ends_a_few_a_turn(how: bytes) -> None:
    assert 1 <= uvloop.run(_most_ended_in_a_turn(how)) <= 2 * A_TURN


async def _answers_to_heads_in_pieces() -> list[bytes]:
    """What clients get that send their heads in three pieces, beside those that never finish theirs."""
    async with listening() as (_, state, address):
        idle = [_connected(address, HEAD) for _ in range(CLIENTS)]
        clients = [_connected(address, HEAD) for _ in range(20)]
        await _have_begun(state, CLIENTS + 20)
        for client in clients:
            client.setblocking(False)
            client.sendall(b"a" * 3000)
        answers = [b""] * len(clients)
        for turn in range(TURNS):
            await asyncio.sleep(0)
            if turn == 200:
                for client in clients:
                    client.sendall(b"\r\n\r\n")
            for place, client in enumerate(clients):
                try:
                    answers[place] += client.recv(1000)
                except BlockingIOError:
                    continue
            if all(answer.endswith(b"ok") for answer in answers):
                break
        for client in (*idle, *clients):
            client.close()
        return answers


def test_heads_that_come_in_pieces_are_answered_beside_many_that_never_end() -> None:
    answers = uvloop.run(_answers_to_heads_in_pieces())
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 20
