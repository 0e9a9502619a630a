"""Clients that connect all at once are let in at once, also while the event loop is busy with others."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace

import uvloop

from timebound.admission import Peers
from timebound.admission.held import Held
from timebound.clock import MonotonicClock
from timebound.events import Events
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
