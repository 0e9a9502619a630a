"""Where kept results can be looked at from a terminal: in a running server, or in the Redis that servers share."""

from __future__ import annotations

import asyncio
import http.client
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import uvloop

from timebound.clock import MonotonicClock
from timebound.config import Config
from timebound.errors import RequestError, SetupError
from timebound.events import Events
from timebound.store.base import Entry, Kind, Store, Stored
from timebound.store.choice import open_store

T = TypeVar("T")

_TIMEOUT_S = 30.0
_MOST_LISTED = 10_000


class Found(msgspec.Struct, frozen=True):
    """One result."""

    body: bytes
    media: str
    quality: str
    members: str
    at: float


class Listed(msgspec.Struct, frozen=True):
    """Results, and whether these are all."""

    entries: list[Entry] = msgspec.field(name="results")
    is_complete: bool


class Shelf(Protocol):
    """Raises `RequestError` if there is no such result, nobody answers or it is refused."""

    def get(self, model: str, key: str) -> Found: ...
    def ls(self, model: str | None) -> Listed: ...
    def clear(self, model: str | None, key: str | None) -> int: ...


class InServer:
    """Asks a running server."""

    def __init__(self, url: str, token: str | None, api_key: str | None = None) -> None:
        try:
            self._parts = urlsplit(url)
            self._port = self._parts.port
        except ValueError:
            raise SetupError(f"--url {url} cannot be read; write http://host:8000") from None
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise SetupError(f"--url {url} is no address of a server; write http://host:8000")
        self._url = url
        # A client's key is shown instead of the operator's token: the two see different results by the same name.
        named = {"X-API-Key": api_key} if api_key else {"Authorization": f"Bearer {token}"} if token else {}
        if not all(value.isprintable() for value in named.values()):  # and it must not be shown in a traceback
            raise SetupError("the key or token holds a line break or the like; give it just as it was printed")
        self._headers = {name: value.encode() for name, value in named.items()}

    def get(self, model: str, key: str) -> Found:
        headers, body = self._ask("GET", model, key)
        return Found(
            body,
            headers.get("content-type", ""),
            headers.get("timebound-quality", ""),
            headers.get("timebound-members", ""),
            float(headers.get("timebound-finished-at", "0")),
        )

    def ls(self, model: str | None) -> Listed:
        return self._decoded(self._ask("GET", model)[1], Listed)

    def clear(self, model: str | None, key: str | None) -> int:
        return self._decoded(self._ask("DELETE", model, key)[1], dict[str, int])["cleared"]

    def _ask(self, method: str, *names: str | None) -> tuple[dict[str, str], bytes]:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._port, timeout=_TIMEOUT_S)
        path = "/".join(["/v1/results", *(quote(name, safe="") for name in names if name is not None)])
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RequestError(f"no server answers at {self._url}: {reason}; give its address with --url") from None
        finally:
            connection.close()
        if answer.status == 202:
            raise RequestError(f"{names[1]!r} of {names[0]!r} is in work; its result is not there yet")
        if answer.status != 200:
            raise RequestError(
                self._decoded(body, dict[str, Any]).get("detail", f"the server answered {answer.status}")
            )
        return {name.lower(): value for name, value in answer.getheaders()}, body

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError:
            raise RequestError(
                f"what answers at {self._url} is no Timebound server, or one without kept results"
            ) from None


class InRedis:
    """Asks a Redis, as one more gateway that computes nothing."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def get(self, model: str, key: str) -> Found:
        found = self._with(lambda store: store.read((model, key)))
        if isinstance(found, Stored):
            result = found.result
            members = f"{result.members}/{result.of_members}"
            return Found(result.outcome.body, result.outcome.media, result.quality.value, members, found.at)
        if found is Kind.OWNER:
            raise RequestError(f"{key!r} of {model!r} is in work; its result is not there yet")
        raise RequestError(f"no result of {model!r} is kept under the key {key!r}")

    def ls(self, model: str | None) -> Listed:
        async def listed(store: Store) -> Listed:
            entries: list[Entry] = []
            async for entry in store.entries(model):
                if len(entries) == _MOST_LISTED:
                    return Listed(entries, is_complete=False)
                entries.append(entry)
            return Listed(entries, is_complete=True)

        return self._with(listed)

    def clear(self, model: str | None, key: str | None) -> int:
        return self._with(lambda store: store.clear(model, key))

    def _with(self, ask: Callable[[Store], Awaitable[T]]) -> T:
        async def main() -> T:
            clock, loop = MonotonicClock(), asyncio.get_running_loop()
            store = open_store(self._config, clock=clock, events=Events(), loop=loop)
            try:
                await store.start()
                if store.trouble is not None:
                    raise RequestError(f"the store cannot be asked: {store.trouble}")
                return await ask(store)
            finally:
                await store.stop()

        # What a server logs about its store is told once here, as the reason.
        logging.getLogger("timebound.store").addHandler(logging.NullHandler())
        return uvloop.run(main())
