"""Addresses of a stack: which ones its servers take, and that no two of them take the same."""

from __future__ import annotations

from timebound.config import Config
from timebound.errors import SetupError

_LAST_PORT = 65535


def check_places(config: Config, replicas: int) -> None:
    """Raise `SetupError` if so many servers would take an address twice, or one that there is not."""
    last = config.port + replicas
    if config.port == 0 or last > _LAST_PORT:
        raise SetupError(f"--port is {config.port}: the servers take the {replicas} ports after it")
    if config.also_at is not None and replicas > 1:
        raise SetupError(
            f"only one server can listen at {config.also_at}, and {replicas} are to have the same --also-at; leave it "
            "out, or give --replicas 1"
        )
    for number in range(1, replicas + 1):
        place = operator_address(config.operator_at, number)
        if place is not None and config.port <= place[1] <= last:
            raise SetupError(
                f"--operator-at {config.operator_at} takes a port for each server, and {place[1]} is one of those that "
                f"--port {config.port} takes; choose one well below {config.port}, or well above"
            )
        if place is not None and place[1] > _LAST_PORT:
            raise SetupError(f"--operator-at is {config.operator_at}: there is no such port for server {number}")


def operator_address(first: str | None, number: int) -> tuple[str, int] | None:
    """Host and port where a server is asked as its operator: the first has the given port, each next one more."""
    if first is None:
        return None
    host, _, port = first.rpartition(":")
    return host.strip("[]"), int(port) + number - 1 if int(port) else 0
