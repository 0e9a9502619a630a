"""Which servers `timebound reload --all` means."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from timebound.cli import everywhere
from timebound.cli.everywhere import reload_all, servers_of
from timebound.errors import SetupError


def test_a_name_with_several_addresses_is_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, **options: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in ("10.0.0.2", "10.0.0.1", "10.0.0.2")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert list(servers_of("app:8000, https://b:8443")) == [
        ("http://app:8000", "10.0.0.1"),
        ("http://app:8000", "10.0.0.2"),
        ("https://b:8443", "10.0.0.1"),
        ("https://b:8443", "10.0.0.2"),
    ]


def test_a_server_on_this_machine_is_one_by_whatever_address() -> None:
    assert list(servers_of("localhost:8001,127.0.0.1:8002,[::1]:8003")) == [
        ("http://localhost:8001", "localhost"),
        ("http://127.0.0.1:8002", "127.0.0.1"),
        ("http://[::1]:8003", "::1"),
    ]


@pytest.mark.parametrize("addresses", ["127.0.0.1:http", "127.0.0.1:99999", "[::1", "no.such.name.invalid:8000"])
def test_what_is_no_address_is_told(addresses: str) -> None:
    with pytest.raises(SetupError, match="--all"):
        list(servers_of(addresses))


class _Reloads(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = b'{"models": ["mood"]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_a_server_that_hangs_keeps_no_other_from_being_reloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everywhere, "_ALIVE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging, HTTPServer(("127.0.0.1", 0), _Reloads) as good:
        serving = threading.Thread(target=good.serve_forever, args=(0.01,))
        serving.start()
        addresses = f"127.0.0.1:{hanging.getsockname()[1]},127.0.0.1:{good.server_port}"
        asked = threading.Thread(target=lambda: found.append(reload_all(addresses, {"Authorization": "Bearer x"})))
        found: list[int] = []
        asked.daemon = True
        asked.start()
        asked.join(20)
        good.shutdown()
        serving.join()
    assert found == [1]
    said = capsys.readouterr().out
    assert "timed out" in said
    assert "serving mood" in said
    assert "1 of 2 reloaded" in said
