"""Ctrl-C, which reaches every process of the server, at any moment of its start: it leaves, and shows no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.live.serving import PATIENCE_S, Serving, clean_environment, eventually
from tests.live.stages import Stages

from timebound.stack.workers import children

pytestmark = pytest.mark.live

APP = """
import timebound as tb

class Plain(tb.Model):
    class Request(tb.Struct):
        n: int
    def infer(self, batch):
        return [0] * len(batch)
    def fallback(self, request):
        return 0
"""

# What the `timebound` script does, and a point when the first import begins: before, it is the interpreter that is
# interrupted, and not we.
START = """
import os, sys
from timebound.cli import process
def told(event, arguments):
    if event == "import" and arguments[0] == "timebound.cli.command":
        os.write(1, b".")
sys.addaudithook(told)
raise SystemExit(process())
"""

DELAYS_S = [place * 0.05 for place in range(12)] + [0.6 + place * 0.1 for place in range(15)]


def interrupted(file: Path, delay_s: float) -> tuple[int, str]:
    """Exit code and words of a server that was interrupted so long after its first instruction."""
    server = subprocess.Popen(
        [sys.executable, "-c", START, "serve", str(file), "--port", "0", "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.read(1) == b"."
        threading.Event().wait(delay_s)  # the passing of time is what is tested
        os.killpg(server.pid, signal.SIGINT)
        _, said = server.communicate(timeout=PATIENCE_S)
        return server.returncode, said.decode()
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


@pytest.mark.parametrize("delay_s", DELAYS_S)
def test_no_traceback_however_long_after_its_start_a_server_is_interrupted(tmp_path: Path, delay_s: float) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    code, said = interrupted(file, delay_s)
    assert code in (-signal.SIGINT, 130, 0), said
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="a first process of its own needs root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_process_of_a_container_leaves_while_it_imports(tmp_path: Path, number: signal.Signals) -> None:
    """The system keeps from it every signal that it does not handle: the engine would wait, and kill it at last."""
    file = tmp_path / "app.py"
    file.write_text(APP)
    serve = [sys.executable, "-c", START, "serve", str(file), "--port", "0", "--workers", "1"]
    alone = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", *serve]
    with subprocess.Popen(alone, stdout=subprocess.PIPE, env=clean_environment()) as container:
        try:
            assert container.stdout is not None
            assert container.stdout.read(1) == b"."
            (first,) = children(container.pid)
            os.kill(first, number)
            assert container.wait(PATIENCE_S) == 128 + number
        finally:
            container.kill()


def test_a_worker_that_has_just_been_started_does_not_hear_it(tmp_path: Path) -> None:
    """Workers are told when to leave; a signal to all of them in their first milliseconds must not end one."""
    stages = Stages(tmp_path)
    with stages.serve(until_ready=False) as serving:
        for _ in range(200):  # from before the first worker's interpreter is there until it has loaded
            for pid in serving.processes_left():
                if pid != serving.pid:
                    os.kill(pid, signal.SIGINT)
                    os.kill(pid, signal.SIGTERM)
            threading.Event().wait(0.005)
        eventually(serving.is_ready, "a server that has heard nothing of it")
        assert "Traceback" not in serving.said


def test_a_worker_s_own_processes_are_not_held_back(tmp_path: Path) -> None:
    """What a model starts must be open to SIGTERM: the mask of the first milliseconds is not passed on."""
    file = tmp_path / "app.py"
    status = "open('/proc/self/status').read().split('SigBlk:')[1].split()[0]"
    file.write_text(APP.replace("return [0] *", f"return [{status}] *"))
    with Serving(file, "--workers", "1") as serving:
        answer = serving.http.post("/predictions/plain", json={"n": 1}).json()
        assert int(answer, 16) & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)) == 0
