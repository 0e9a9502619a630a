"""HTTPS with real certificates: renewed while requests go on, and looked over by the doctor."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import MODELS, Serving, clean_environment, eventually

from timebound.clock import ManualClock
from timebound.http.handshakes import TOLD, Failed

pytestmark = pytest.mark.live


class Https(Serving):
    """A server that speaks TLS."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


def make(folder: Path, name: str, days: int = 90) -> None:
    """Write a certificate for this name, and its key, over those that are there."""
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(["openssl", "req", "-x509", *kind, *names, *files], check=True, capture_output=True)


def names_shown(port: int, trusted: Path) -> str | None:
    """The name in the certificate that a client is shown, if it is the trusted one."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = False
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain) as secure:
                shown: dict[str, Any] = dict(secure.getpeercert() or {})
                return str(shown["subjectAltName"][0][1])
        except ssl.SSLCertVerificationError:
            return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path, "first.example")
    return tmp_path


@pytest.fixture
def serving(folder: Path) -> Iterator[Https]:
    with Https(*served(folder)) as server:
        yield server


def served(folder: Path, *options: str) -> tuple[str | Path, ...]:
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    return MODELS / "echo.py", "--workers", "1", *files, *options


def test_a_renewed_certificate_is_shown_after_a_signal_and_open_connections_go_on(serving: Https, folder: Path) -> None:
    assert names_shown(serving.port, folder / "cert.pem") == "first.example"
    assert serving.http.get("/livez").status_code == 200
    make(folder, "second.example")
    serving.signal(signal.SIGHUP)
    eventually(lambda: names_shown(serving.port, folder / "cert.pem") == "second.example", "the new certificate")
    assert serving.http.get("/livez").status_code == 200
    make(folder, "third.example")
    assert serving.operator.post("/v1/reload").status_code == 200
    assert names_shown(serving.port, folder / "cert.pem") == "third.example"


def test_a_broken_certificate_is_refused_in_a_sentence_and_the_old_one_stays(serving: Https, folder: Path) -> None:
    old = folder / "old.pem"
    old.write_bytes((folder / "cert.pem").read_bytes())
    (folder / "cert.pem").write_text("no certificate")
    answer = serving.operator.post("/v1/reload")
    assert answer.status_code >= 400
    assert "the TLS files" in answer.text
    assert names_shown(serving.port, old) == "first.example"
    # A certificate whose key is another one's
    key = (folder / "key.pem").read_bytes()
    make(folder, "second.example")
    (folder / "key.pem").write_bytes(key)
    assert "the TLS files" in serving.operator.post("/v1/reload").text
    assert names_shown(serving.port, old) == "first.example"


def test_a_pipe_as_a_renewed_certificate_is_refused_and_holds_nobody_up(serving: Https, folder: Path) -> None:
    old = (folder / "cert.pem").rename(folder / "old.pem")
    os.mkfifo(folder / "cert.pem")
    assert "is no regular file" in serving.operator.post("/v1/reload").text
    assert names_shown(serving.port, old) == "first.example"


def doctor(folder: Path) -> dict[str, str]:
    """What the doctor says of the certificate."""
    files = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"), "--port", "0")
    command = [sys.executable, "-m", "timebound.cli", "doctor", "--json", *files]
    done = subprocess.run(command, capture_output=True, env=clean_environment(), timeout=60, check=False)
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return next(each for each in found if each["check"] == "certificate")


def test_the_doctor_tells_names_and_days_and_warns_before_the_end(folder: Path) -> None:
    said = doctor(folder)
    assert (said["state"], "first.example" in said["text"]) == ("ok", True)
    make(folder, "first.example", days=5)
    said = doctor(folder)
    assert said["state"] == "warning"
    assert "renew it" in said["cure"]
    key = (folder / "key.pem").read_bytes()
    make(folder, "other.example")
    (folder / "key.pem").write_bytes(key)
    assert doctor(folder)["state"] == "problem"


@contextmanager
def half_open(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Clients that say nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(count)]


def metric(serving: Https, name: str) -> float:
    lines = [line for line in serving.http.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Https]:
    """A server with few seats for each address, and little patience."""
    folder = tmp_path_factory.mktemp("small")
    make(folder, "first.example")
    with Https(*served(folder, "--max-per-address", "20", "--read-timeout", "1")) as server:
        yield server


def test_failed_handshakes_are_counted_and_logged_in_a_line_now_and_then(small: Https) -> None:
    before = metric(small, 'timebound_turned_away_total{code="tls_handshake"}')
    for _ in range(15):
        with socket.create_connection(("127.0.0.1", small.port), 10) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            plain.settimeout(10)
            while plain.recv(100):
                pass
    assert metric(small, 'timebound_turned_away_total{code="tls_handshake"}') == before + 15
    lines = small.lines("TLS handshakes failed")
    assert [line["reason"] for line in lines[:1]] == ["http request"]
    assert len(lines) <= 2


def test_half_handshakes_take_seats_and_are_cut_in_time(small: Https) -> None:
    with half_open(small.port, 40) as silent:
        eventually(lambda: sum(map(is_cut, silent)) >= 40 - 20 - TOLD, "those beyond the seats of the address")
        eventually(lambda: all(map(is_cut, silent)), "the others, whose time is up")
    eventually(lambda: answers(small), "a seat for the next")
    assert metric(small, 'timebound_turned_away_total{code="client_busy"}') >= 1
    assert metric(small, 'timebound_turned_away_total{code="tls_handshake"}') >= 20


def answers(serving: Https) -> bool:
    try:
        return serving.http.get("/livez").status_code == 200
    except httpx.ConnectError:
        return False


def is_cut(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_server_with_half_handshakes_stops_at_once(folder: Path) -> None:
    with Https(*served(folder)) as server, half_open(server.port, 5):
        assert server.http.get("/livez").status_code == 200
        server.signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def test_failed_handshakes_are_told_at_once_and_then_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    failed = Failed(clock)
    for _ in range(1000):
        failed.note("10.0.0.1", "http request")
        clock.advance(0.03125)
    assert [record.__dict__["count"] for record in caplog.records] == [1, 320, 320, 320]
