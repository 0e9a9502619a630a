"""Which servers `timebound reload --all` means."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from timebound.cli.everywhere import servers_of
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
