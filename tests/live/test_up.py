"""`timebound up`: nginx, Redis and several servers, started and stopped by one command."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self

import httpx
import pytest
from tests.live.serving import MODELS, PATIENCE_S, Serving, clean_environment, eventually

from timebound.cli import main
from timebound.stack.workers import children

pytestmark = pytest.mark.live


class Up:
    """A stack of two servers of `counts.py`."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self.port = port or _free_ports(4)
        self._flags = flags
        self._computed = folder / "computed"
        self._log = folder / "log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "timebound",
                    "up",
                    str(MODELS / "counts.py"),
                    "--port",
                    str(self.port),
                    *self._flags,
                ],
                env={**clean_environment(), "COMPUTED": str(self._computed)},
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_S, trust_env=False)
        eventually(lambda: self.is_ready() and self.says_up(), "nginx with a ready server behind it")
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()
        print(self._log.read_text(), file=sys.stderr)
        eventually(lambda: not self.left(), "no process that outlives the command")

    def is_ready(self) -> bool:
        assert self.process.poll() is None
        with suppress(httpx.TransportError):
            return self.http.get("/readyz").status_code == 200
        return False

    def said(self) -> str:
        return self._log.read_text()

    def says_up(self) -> bool:
        """Whether the command has seen all of it answer; what ends before that ends the command."""
        return '"message":"up"' in self._log.read_text()

    def answers_itself(self, number: int) -> bool:
        """Whether this server is ready."""
        with suppress(httpx.TransportError):
            url = f"http://127.0.0.1:{self.port + number}/readyz"
            return httpx.get(url, trust_env=False).status_code == 200
        return False

    def servers(self) -> list[int]:
        """The gateways' processes."""
        return [pid for pid in self.left() if b"serve" in _command(pid)]

    def nginx(self) -> tuple[int, set[int]] | None:
        """nginx's master, which the command started itself, and its processes; None while there is none."""
        masters = [pid for pid in children(self.process.pid) if _command(pid).startswith(b"nginx: master")]
        return (masters[0], children(masters[0])) if masters else None

    def left(self) -> list[int]:
        """Every process of the stack that lives, known by what it was told."""
        told = (str(self.port).encode(), *(str(self.port + place).encode() for place in (1, 2, 3)))
        alive = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != self.process.pid]
        return [pid for pid in alive if any(word in _command(pid) for word in told)]

    def ask(self, value: int) -> httpx.Response:
        return self.http.post("/count", json={"value": value, "id": f"up-{value}"})

    def ask_again_if_cut(self, value: int) -> httpx.Response:
        """As clients do: a reload of nginx closes idle connections."""
        with suppress(httpx.RemoteProtocolError, httpx.ReadError):
            return self.ask(value)
        body = {"value": value, "id": f"up-{value}"}
        return httpx.post(f"http://127.0.0.1:{self.port}/count", json=body, timeout=PATIENCE_S, trust_env=False)

    def computed(self) -> list[str]:
        return [line for line in self._computed.read_text().split() if line != "0"]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path) as stack:
        yield stack


def test_a_retry_that_reaches_the_other_server_gets_the_kept_answer(up: Up) -> None:
    # When: each request is asked twice, while nginx divides them among both servers
    first = [up.ask(value) for value in range(1, 21)]
    again = [up.ask(value) for value in range(1, 21)]

    # Then: all are answered, and none is computed twice
    assert {answer.status_code for answer in first + again} == {200}
    assert [answer.json() for answer in again] == [answer.json() for answer in first]
    assert {answer.headers["timebound-source"] for answer in again} == {"stored"}
    assert sorted(up.computed(), key=int) == [str(value) for value in range(1, 21)]


def test_every_request_is_answered_while_a_server_is_killed_and_it_comes_back(up: Up) -> None:
    eventually(lambda: len(up.servers()) == 2, "two servers")
    before = up.servers()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(up.ask, range(100, 500))
        os.kill(before[0], signal.SIGKILL)
        assert {answer.status_code for answer in answers} == {200}
    eventually(lambda: len(up.servers()) == 2 and before[0] not in up.servers(), "another server in its place")


def test_a_killed_nginx_leaves_nothing_behind_and_another_takes_its_place(up: Up) -> None:
    def other() -> bool:
        found = up.nginx()
        return found is not None and found[0] != master and bool(found[1]) and up.is_ready()

    master, workers = up.nginx() or (0, set())
    assert workers
    os.kill(master, signal.SIGKILL)
    eventually(other, "another nginx that answers")
    assert not [pid for pid in workers if _command(pid)]
    assert up.ask(800).status_code == 200


def test_servers_come_and_go_on_a_signal_and_no_request_fails(up: Up) -> None:
    eventually(lambda: len(up.servers()) == 2, "two servers")
    is_over = threading.Event()

    def go_on(place: int) -> list[int]:
        statuses = []
        for value in count(1000 + place, 4):
            statuses.append(up.ask_again_if_cut(value).status_code)
            if is_over.is_set():
                return statuses
        return []

    with ThreadPoolExecutor(4) as pool:
        askers = [pool.submit(go_on, place) for place in range(4)]
        try:
            up.process.send_signal(signal.SIGTTIN)
            eventually(lambda: up.answers_itself(3), "a third server")
            for left in (2, 1):
                up.process.send_signal(signal.SIGTTOU)
                eventually(lambda: len(up.servers()) == left, f"{left} servers")  # noqa: B023 - asked at once
        finally:
            is_over.set()
        assert {status for asker in askers for status in asker.result()} == {200}
    up.process.send_signal(signal.SIGTTOU)  # the last one stays
    assert up.ask(1).status_code == 200
    assert len(up.servers()) == 1


def test_each_server_has_an_operators_address_of_its_own_also_one_that_comes_later(tmp_path: Path) -> None:
    port = _free_ports(8)
    first = port + 4
    with Up(tmp_path, "--operator-at", f"127.0.0.1:{first}", port=port) as up:

        def served_at(number: int) -> int | None:
            with suppress(httpx.TransportError):
                told = httpx.get(f"http://127.0.0.1:{first + number - 1}/v1/results/counts", trust_env=False)
                return told.status_code
            return None

        eventually(lambda: [served_at(1), served_at(2), served_at(3)] == [200, 200, None], "two operators' addresses")
        up.process.send_signal(signal.SIGTTIN)
        eventually(lambda: served_at(3) == 200, "a third, of the server that came")
        pids = {
            httpx.get(f"http://127.0.0.1:{first + place}/v1/models", trust_env=False).json()["pid"]
            for place in range(3)
        }
        assert len(pids) == 3


def test_a_server_that_would_have_the_same_further_address_is_not_started(tmp_path: Path) -> None:
    port = _free_ports(5)
    with Up(tmp_path, "--also-at", f"127.0.0.1:{port + 4}", "--replicas", "1", port=port) as up:
        up.process.send_signal(signal.SIGTTIN)
        eventually(lambda: "server 2 is not started: only one server can listen at" in up.said(), "the reason")
        assert up.ask(1).status_code == 200


def test_servers_believe_their_nginx_about_when_a_request_came(up: Up) -> None:
    body, late = {"value": 700, "id": "up-700"}, {"X-Request-Start": f"t={time.time() - 1:.3f}"}
    limit = {"Timebound-Timeout-Ms": "500"}
    server = f"http://127.0.0.1:{up.port + 1}/count"
    assert httpx.post(server, json=body, headers={**limit, **late}, trust_env=False).status_code == 504
    assert up.http.post("/count", json=body, headers={**limit, **late}).status_code == 200  # nginx has its own stamp


def test_a_signal_stops_all_of_it_after_what_is_under_way(up: Up) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(up.ask, value) for value in range(600, 620)]
        eventually(answers[0].done, "the first answer")
        up.process.send_signal(signal.SIGTERM)
        accepted = [answer.result().status_code for answer in answers if answer.exception() is None]
    assert set(accepted) == {200}
    assert up.process.wait(PATIENCE_S) == 0
    assert not up.left()


def test_a_target_that_cannot_be_served_ends_the_command_with_a_reason(tmp_path: Path) -> None:
    broken = tmp_path / "app.py"
    broken.write_text(
        "import timebound as tb\n\nclass Broken(tb.Model):\n    def load(self):\n        raise OSError('no')\n"
    )
    command = [sys.executable, "-m", "timebound", "up", str(broken), "--port", str(_free_ports(3))]
    began = time.monotonic()
    told = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 2
    assert "while it started" in told.stderr
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize(("place", "whose"), [(0, "nginx"), (2, "server 2")])
def test_a_port_that_another_server_has_ends_the_command_before_anything_starts(place: int, whose: str) -> None:
    port = _free_ports(3)
    with Serving(MODELS / "echo.py", "--workers", "1", port=port + place):
        command = [sys.executable, "-m", "timebound", "up", str(MODELS / "counts.py"), "--port", str(port)]
        told = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 2
    assert f"port {port + place} is taken on 127.0.0.1, and {whose} needs it" in told.stderr
    assert "--port" in told.stderr
    assert not [word for word in ("emerg", "started", "ready", "Traceback") if word in told.stderr], told.stderr


def test_its_servers_are_reloaded_at_their_own_ports_and_its_front_says_so(
    up: Up, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIMEBOUND_ADMIN_TOKEN", raising=False)
    eventually(lambda: up.answers_itself(1) and up.answers_itself(2), "two ready servers")
    assert main(["reload", "--all", f"127.0.0.1:{up.port + 1},localhost:{up.port + 2}"]) == 0
    assert "2 of 2 reloaded" in capsys.readouterr().out
    # Whoever asks the front, or shows a token where there is none, is told what to do instead.
    assert main(["reload", "--url", f"http://127.0.0.1:{up.port}"]) == 2
    assert "kill -HUP" in capsys.readouterr().err
    assert main(["reload", "--url", f"http://127.0.0.1:{up.port + 1}", "--admin-token", "wrong"]) == 2
    assert "this server has no admin token" in capsys.readouterr().err


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses now, and that no client is given by the system."""
    while True:
        first = random.randrange(20_000, 32_000)
        if all(_is_free(first + place) for place in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
