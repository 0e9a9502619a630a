"""A whole stack under load while its servers come and go, and a server at the end of a slow line.

`benchmarks/serving/ship.py` measures the same with clients in a hurry. Here they have time enough for a busy machine:
what must hold then is that everything is answered, and computed once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest
from benchmarks.tools.namespaces import Namespace, may_make_networks
from benchmarks.tools.rehearsal import Clients, Lengths, Rehearsal
from benchmarks.tools.slow_link import FAR, NEAR, SlowLink
from benchmarks.tools.upstack import UpStack
from tests.live.gate import Gate
from tests.live.serving import MODELS, PATIENCE_S, clean_environment, eventually

from timebound.lab.load.attempts import Manners

pytestmark = pytest.mark.live


@pytest.mark.skipif(
    not shutil.which("redis-server") or not shutil.which("nginx", path="/usr/sbin:/usr/bin"),
    reason="nginx or redis-server is not installed",
)
def test_a_stack_answers_all_once_while_servers_die_stop_restart_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in clean_environment().items():
        monkeypatch.setenv(name, value)
    patient = Clients(Manners(timeout_s=10.0, resends=2), limit_s=5.0)
    lengths = Lengths(closed_s=0.5, overload_s=2.0, fault_s=2.0, recovery_s=4.0)
    # A Redis that is waited for: on a busy machine it may be silent for longer than the usual patience.
    with UpStack(["--store-patience", "2"]) as stack:
        figures = Rehearsal(stack, lengths, seed=1, clients=patient).all()
    none = ("unanswered", "computed_twice", "wrong", "kill_unanswered", "stop_failed", "stop_late", "scale_failed")
    assert {name: figures[name] for name in none} == dict.fromkeys(none, 0), figures


@pytest.mark.skipif(not may_make_networks(), reason="networks of its own need root and /dev/net/tun")
def test_an_answer_comes_in_time_over_a_line_that_takes_a_second(gate: Gate) -> None:
    # Given: a server half a second away that believes the stamps of who is at this end
    with ExitStack() as stack:
        near, far = stack.enter_context(Namespace("near")), stack.enter_context(Namespace("far"))
        stack.enter_context(SlowLink(near, far, round_trip_s=1.0))
        options = ["--workers", "1", "--host", FAR, "--port", "8000", "--trusted-proxies", NEAR]
        serve = [sys.executable, "-m", "timebound", "serve", str(MODELS / "waits.py"), *options]
        server = subprocess.Popen(far.inside(*serve), env=clean_environment(), stdin=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.kill)
        stack.enter_context(near.entered())
        eventually(is_ready, "a ready server")

        # When: a request has three seconds from now on, and its model does not end
        connection = HTTPConnection(FAR, 8000, timeout=PATIENCE_S)
        stack.callback(connection.close)
        connection.connect()
        began = time.monotonic()
        headers = {"X-Request-Start": f"t={time.time():.3f}", "Timebound-Timeout-Ms": "3000"}
        connection.request("POST", "/wait", json.dumps({"value": 1, "gate": str(gate.path)}), headers)
        answer = connection.getresponse().read()
        took_s = time.monotonic() - began
        gate.open()

    # Then: its refusal is here in time; by the server's own clock alone it would come a second later
    assert json.loads(answer)["code"] == "deadline_missed"
    assert took_s < 3.5


def is_ready() -> bool:
    """Whether the server at the far end is there and ready."""
    connection = HTTPConnection(FAR, 8000, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
