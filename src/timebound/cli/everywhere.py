"""`timebound reload --all`: the same asked of several servers, one after the other, and what each said."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from timebound.cli.running import LOCAL_NAMES, Running
from timebound.errors import RequestError, SetupError

_PATIENCE_S = 600.0
"""A server answers when its new models are loaded and warm."""
_ALIVE_S = 10.0
"""For one to say that it lives; who hangs must not keep the others from being reloaded."""


def reload_all(addresses: str, headers: Mapping[str, str]) -> int:
    """Reload every server, also after one that failed; 1 if any did."""
    failed = 0
    servers = list(servers_of(addresses))  # a name that means nothing is told before anything is done
    for url, address in servers:
        name = f"{url} ({address})" if address not in url else url
        try:
            Running(url, headers, _ALIVE_S, at=address).ask("GET", "/livez")
            answer = Running(url, headers, _PATIENCE_S, at=address).ask("POST", "/v1/reload")
            said = "serving " + ", ".join(msgspec.json.decode(answer.body)["models"]) if answer.status == 200 else ""
            reason = answer.detail if not said else ""
        except RequestError as error:
            said, reason = "", str(error)
        failed += not said
        print(f"{name}: {said or f'not reloaded: {reason}'}", flush=True)
    print(f"{len(servers) - failed} of {len(servers)} reloaded")
    return 1 if failed else 0


def servers_of(addresses: str) -> Iterator[tuple[str, str]]:
    """Each server's URL and the address to reach it at; a name that leads to several is several servers."""
    for text in filter(None, (part.strip() for part in addresses.split(","))):
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except ValueError:
            raise SetupError(f"--all: {text} is no address; write host:8000, several separated by commas") from None
        except OSError as error:
            raise SetupError(f"--all: {text} leads nowhere: {error.strerror}") from None
        # Of this machine there is one server to a port, by whichever of its addresses it is reached.
        here = parts.hostname if parts.hostname in LOCAL_NAMES else None
        for address in [here] if here else sorted({str(each[4][0]) for each in found}):
            yield url, address
