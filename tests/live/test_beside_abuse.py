"""Who behaves is answered in time beside those, of the same address, that do what costs an event loop most."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.tools.abusers import ABUSERS, Abuse
from tests.live.serving import Serving, eventually
from tests.live.wire import post

pytestmark = pytest.mark.live
ECHO = Path(__file__).parents[2] / "benchmarks/serving/apps/echo_app.py"
REQUESTS = 60


@pytest.mark.parametrize("kind", ["connections", "chunks", "trailers"])
def test_every_request_is_answered_in_time_beside_abuse_also_on_a_new_connection(kind: str) -> None:
    request, most = post("/predictions/echo", {"values": [1.0, 2.0]}), ABUSERS[kind][1]
    with Serving(ECHO, "--workers", "1") as serving, Abuse(kind, serving.port):
        eventually(lambda: serving.gauge("connections_open") > most, "the abusers, and who asks this")
        answers = []
        with serving.wire() as kept:
            for _ in range(REQUESTS):
                kept.send(request)
                with serving.wire() as anew:
                    anew.send(request)
                    answers += [kept.read(), anew.read()]
        eventually(lambda: serving.gauge("connections_open") > most, "the abusers once more")
    assert [(answer.status, answer.body) for answer in answers] == [(200, b'{"sum":3.0}')] * 2 * REQUESTS
