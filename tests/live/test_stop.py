"""Leaving: what was accepted is answered, nobody new comes in, nothing is left behind; or at once, if told twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, clean_environment, eventually
from tests.live.wire import Wire, get, post

pytestmark = pytest.mark.live


def is_refused(serving: Serving) -> bool:
    try:
        serving.wire().close()
    except ConnectionRefusedError:
        return True
    return False


def send_what_waits(serving: Serving, gate: Gate) -> Wire:
    wire = serving.wire()
    wire.send(post("/wait", {"value": 7, "gate": str(gate.path)}))
    eventually(lambda: serving.is_holding(running=1), "the request in the worker")
    return wire


def assert_gone(serving: Serving) -> None:
    eventually(lambda: not serving.processes_left(), "the end of every process")
    assert "Traceback" not in serving.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_accepted_request_is_answered_and_new_ones_are_refused(gate: Gate, number: signal.Signals) -> None:
    with Serving(MODELS / "waits.py", "--workers", "2") as serving, ExitStack() as stack:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers")
        # Given 40 requests in workers and in the queue, one half sent, and an idle connection
        wires = [stack.enter_context(serving.wire()) for _ in range(40)]
        for value, wire in enumerate(wires):
            wire.send(post("/wait", {"value": value, "gate": str(gate.path)}))
        half, idle = stack.enter_context(serving.wire()), stack.enter_context(serving.wire())
        request = post("/wait", {"value": 99})
        half.send(request[:-5])
        idle.send(get("/livez"))
        assert idle.read().status == 200
        eventually(lambda: serving.gauge("requests_pending") == 40, "all requests accepted")
        # When the server is told to stop
        serving.signal(number)
        serving.wait_for_line("finishing open requests")
        # Then it takes in nobody new
        eventually(lambda: is_refused(serving), "a closed port")
        assert idle.read_to_end() == b""
        half.send(request[-5:])
        refused = half.read()
        assert (refused.status, refused.json()["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        # And answers all it had accepted, then leaves
        gate.open()
        assert [wire.read().json() for wire in wires] == [{"value": value} for value in range(40)]
        assert serving.wait() == 0
        assert serving.wait_for_line("stopped")
        assert_gone(serving)


def test_an_idle_server_leaves_at_the_first_signal() -> None:
    with Serving(MODELS / "echo.py", "--workers", "2") as serving:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers")
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert_gone(serving)


def test_a_server_whose_second_worker_is_still_loading_leaves_as_quietly(tmp_path: Path) -> None:
    with Gate(tmp_path / "load_gate") as load_gate:
        load_gate.open()
        environment = {"LOAD_GATE": str(load_gate.path)}
        with Serving(MODELS / "waits.py", "--workers", "1", environment=environment) as serving:
            load_gate.shut()
            os.kill(serving.workers()[0]["pid"], signal.SIGKILL)
            eventually(lambda: [w["is_up"] for w in serving.workers()] == [False], "a worker that loads")
            serving.signal(signal.SIGTERM)
            assert serving.wait() == 0
            assert_gone(serving)


def test_ctrl_c_which_reaches_workers_too_still_lets_them_finish(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1") as serving, send_what_waits(serving, gate) as wire:
        os.killpg(serving.pid, signal.SIGINT)
        serving.wait_for_line("finishing open requests")
        gate.open()
        assert wire.read().json() == {"value": 7}
        assert serving.wait() == 0
        assert_gone(serving)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_leaves_at_once_even_with_a_stuck_model(gate: Gate, number: signal.Signals) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1") as serving, send_what_waits(serving, gate) as wire:
        serving.signal(number)
        serving.wait_for_line("finishing open requests")
        serving.signal(number)
        assert serving.wait() == 130
        assert wire.read_to_end() == b""
        assert_gone(serving)


def test_a_stuck_model_is_waited_for_no_longer_than_the_grace_time(gate: Gate) -> None:
    options = ("--workers", "1", "--grace", "0.5")
    with Serving(MODELS / "waits.py", *options) as serving, send_what_waits(serving, gate) as wire:
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 3
        assert serving.wait_for_line("the grace time is over")["unanswered"] == 1
        assert wire.read_to_end() == b""
        assert_gone(serving)


MUCH = 30_000_000
"""More than the system's own buffers take at once."""


def stop_while_much_is_unread(serving: Serving, wire: Wire) -> None:
    wire.send(post("/predictions/much", {"size": MUCH}))
    wire.take_in(1)
    eventually(lambda: serving.gauge("requests_pending") == 0, "the answer written")
    serving.signal(signal.SIGTERM)
    serving.wait_for_line("finishing open requests")


def test_who_goes_on_reading_is_waited_for_up_to_the_grace_time() -> None:
    options = ("--workers", "1", "--grace", "30")
    with Serving(MODELS / "answers_much.py", *options) as serving, serving.wire() as wire:
        stop_while_much_is_unread(serving, wire)
        slow_until = time.monotonic() + 4  # time has to pass: a server that did not wait would be gone by then
        while time.monotonic() < slow_until:
            wire.take_in(50_000)
            time.sleep(0.05)
        answer = wire.read()
        assert (len(answer.body), answer.is_whole) == (MUCH, True)
        assert serving.wait() == 0
        assert_gone(serving)


@pytest.mark.parametrize("options", [("--grace", "1.5"), ("--grace", "30", "--write-timeout", "0.5")])
def test_who_does_not_read_is_cut_and_the_log_and_the_exit_code_say_so(options: tuple[str, ...]) -> None:
    with Serving(MODELS / "answers_much.py", "--workers", "1", *options) as serving, serving.wire() as wire:
        stop_while_much_is_unread(serving, wire)
        assert serving.wait() == 3
        assert serving.wait_for_line("clients were cut off")["clients"] == 1
        assert serving.wait_for_line("stopped")["cut_off"] == 1
        assert_gone(serving)


def start_that_does_not_end(gate: Gate) -> Serving:
    return Serving(MODELS / "waits.py", environment={"LOAD_GATE": str(gate.path)}, until_ready=False)


def test_a_server_that_is_still_loading_can_be_stopped(gate: Gate) -> None:
    with start_that_does_not_end(gate) as serving:
        eventually(lambda: len(serving.processes_left()) == 2, "the gateway and its first worker")
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert_gone(serving)


def test_a_server_that_is_still_loading_leaves_at_once_if_told_twice(gate: Gate) -> None:
    with start_that_does_not_end(gate) as serving:
        eventually(lambda: len(serving.processes_left()) == 2, "the gateway and its first worker")
        serving.signal(signal.SIGTERM)
        serving.wait_for_line("finishing open requests")
        serving.signal(signal.SIGTERM)
        assert serving.wait() in (0, 130)  # it may have left before it was told again
        assert_gone(serving)


def test_signals_to_a_server_that_has_stopped_do_not_change_how_it_leaves() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        serving.signal(signal.SIGTERM)
        serving.wait_for_line("stopped")
        while serving.process.poll() is None:
            serving.process.send_signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert_gone(serving)


def test_a_reload_that_comes_before_the_server_listens_for_it_does_not_end_it() -> None:
    program = dedent("""
        import os, signal, sys
        from timebound.cli import main, serve
        from timebound.errors import SetupError

        def check_target(target):
            os.kill(os.getpid(), signal.SIGHUP)
            raise SetupError("still here")

        serve.check_target = check_target
        sys.exit(main(["serve", "app.py"]))
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "still here" in done.stderr) == (2, True)


def test_workers_leave_when_the_gateway_is_killed(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "2") as serving, send_what_waits(serving, gate):
        serving.signal(signal.SIGKILL)
        eventually(lambda: not serving.processes_left(), "the end of every worker, also of the busy one")


def test_with_a_delay_it_is_not_ready_and_still_serves(gate: Gate) -> None:
    with Serving(MODELS / "waits.py", "--workers", "1", "--drain-delay", "600") as serving:
        serving.signal(signal.SIGTERM)
        eventually(lambda: not serving.is_ready(), "readiness to turn false")
        assert serving.http.get("/readyz").json()["reason"] == "draining"
        with serving.wire() as wire:  # a new connection too
            wire.send(post("/wait", {"value": 5}))
            assert wire.read().status == 200
        assert serving.process.poll() is None
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 130


def test_after_the_delay_it_leaves() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1", "--drain-delay", "0.3") as serving:
        serving.signal(signal.SIGTERM)
        assert serving.wait() == 0


def test_a_gateway_that_lets_others_go_first_says_so() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1") as serving:
        is_nice = os.nice(0) > 0
        assert bool(serving.lines("the gateway runs at a nice value above 0")) == is_nice
    command = ["nice", "-n", "3", sys.executable, "-m", "timebound", "serve", str(MODELS / "echo.py"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_environment()) as process:
        assert process.stderr is not None
        assert any("nice value above 0" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGTERM)
        process.communicate()
