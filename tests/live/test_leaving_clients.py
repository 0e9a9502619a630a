"""Clients that ask and leave, again and again, take nothing from those who wait."""

from __future__ import annotations

import threading

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live


def test_requests_of_clients_that_left_give_way_to_those_who_wait(gate: Gate) -> None:
    arguments = ("--workers", "1", "--slots", "1", "--max-queue", "64", "--max-held", "20MB")
    with Serving(MODELS / "waits.py", *arguments) as serving, serving.wire() as first:
        first.send(post("/wait", {"value": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "a request that runs")
        large = {"value": 1, "text": "x" * 200_000}
        for number in range(300):
            with serving.wire() as leaver:
                leaver.send(post("/wait", large, f"Idempotency-Key: k{number}", "Timebound-Timeout-Ms: 49000"))
                eventually(lambda wire=leaver: wire.is_read, "a request that is read")  # type: ignore[misc]
        eventually(lambda: serving.gauge("requests_pending") == 1, "everybody gone")
        assert serving.gauge("requests_queued") <= 16
        statuses: list[int] = []

        def ask(number: int) -> None:
            with serving.wire() as wire:
                wire.send(post("/wait", {"value": number}))
                statuses.append(wire.read().status)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(63)]
        for thread in threads:
            thread.start()
        eventually(lambda: serving.gauge("requests_pending") == 64, "everybody who waits let in")
        gate.open()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 63
        assert first.read().status == 200
        eventually(lambda: serving.gauge("held_bytes") == 0, "no bytes held")
