"""Clients that connect all at once are let in at once while turns are long, and one a turn while they are short."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import cast

import uvloop

from timebound.admission import Peers
from timebound.admission.held import Held
from timebound.clock import ManualClock, MonotonicClock
from timebound.events import Events
from timebound.http.accepting import MOST_AT_ONCE, Accepting, Pace
from timebound.http.bounded import Limits, State
from timebound.http.intake import Intake
from timebound.http.listener import Listener, bind
from timebound.http.routes import Routes

CLIENTS = 320
LIMITS = Limits(max_body=1_000_000, max_header=10_000, max_connections=1000, read_timeout=5.0, write_timeout=5.0)


async def _turns_until_all_are_in() -> int:
    requests = SimpleNamespace(submit=None, gone=None)
    intake = Intake(requests, clock=MonotonicClock(), events=Events(), cap_s=60.0)
    state = State(limits=LIMITS, held=Held(10_000_000), peers=Peers(1000), access=None, cors=None)
    listener = Listener(None, intake=intake, routes=Routes(), state=state, keep_alive_s=60.0, events=Events())  # type: ignore[arg-type]
    sock = bind("127.0.0.1", 0)
    await listener.open(sock)
    clients = [socket.socket() for _ in range(CLIENTS)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(sock.getsockname())
    turns = 0
    while listener.connections < CLIENTS:
        turns += 1
        time.sleep(0.0005)  # what others ask of the loop
        await asyncio.sleep(0)
        assert turns < 10 * CLIENTS
    for client in clients:
        client.close()
    listener.stop_accepting()
    await listener.close(1.0)
    return turns


def test_many_connections_are_accepted_in_one_turn_of_a_busy_event_loop() -> None:
    assert uvloop.run(_turns_until_all_are_in()) < CLIENTS / 4


async def _accepted_by_turn(turn_s: float) -> list[int]:
    """How many of a crowd that connects at once each turn of the event loop lets in, if turns are so long."""
    clock, let_in = ManualClock(100.0), list[asyncio.Transport]()

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            let_in.append(cast(asyncio.Transport, transport))

    sock = bind("127.0.0.1", 0)
    accepting = Accepting(sock, Guest, clock)
    await accepting.open()
    clients = [socket.create_connection(sock.getsockname()) for _ in range(64)]
    by_turn, turns = [], 0
    while len(let_in) < len(clients):
        before, turns = len(let_in), turns + 1
        clock.advance(turn_s)
        await asyncio.sleep(0)
        by_turn.append(len(let_in) - before)
        assert turns < 1000
    accepting.close()
    for transport in let_in:
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.abort()
    for client in clients:
        client.close()
    return by_turn


def test_a_turn_that_is_short_lets_one_of_a_crowd_in() -> None:
    assert max(uvloop.run(_accepted_by_turn(0.000_05))) == 1


def test_a_turn_that_is_long_lets_many_of_a_crowd_in() -> None:
    assert max(uvloop.run(_accepted_by_turn(0.01))) > MOST_AT_ONCE / 2


def test_more_are_let_in_the_longer_the_turns_are_up_to_a_bound() -> None:
    clock = ManualClock(100.0)
    pace = Pace(clock)
    allowed = []
    for passed_s in (0.0, 0.000_1, 0.001, 0.001_6, 1.0, 0.0):
        clock.advance(passed_s)
        allowed.append(pace.allowed())
    assert allowed == [1, 1, 7, 11, MOST_AT_ONCE, 1]
