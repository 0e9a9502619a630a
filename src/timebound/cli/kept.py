"""Where kept results can be looked at from a terminal: in a running server, or in the Redis that servers share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import uvloop

from timebound.cli.running import Answer, Running
from timebound.clock import MonotonicClock
from timebound.config import Config
from timebound.errors import RequestError
from timebound.events import Events
from timebound.store.base import Entry, Kind, Store, Stored, open_store

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


class InServer:
    """Asks a running server."""

    def __init__(self, url: str, token: str | None, api_key: str | None = None) -> None:
        # A client's key is shown instead of the operator's token: the two see different results by the same name.
        named = {"X-API-Key": api_key} if api_key else {"Authorization": f"Bearer {token}"} if token else {}
        self._server = Running(url, named, _TIMEOUT_S)

    def get(self, model: str, key: str) -> Found:
        answer = self._ask("GET", model, key)
        headers = answer.headers
        return Found(
            answer.body,
            headers.get("content-type", ""),
            headers.get("timebound-quality", ""),
            headers.get("timebound-members", ""),
            float(headers.get("timebound-finished-at", "0")),
        )

    def ls(self, model: str | None) -> Listed:
        return self._decoded(self._ask("GET", model), Listed)

    def clear(self, model: str | None, key: str | None) -> int:
        return self._decoded(self._ask("DELETE", model, key), dict[str, int])["cleared"]

    def _ask(self, method: str, *names: str | None) -> Answer:
        path = "/".join(["/v1/results", *(quote(name, safe="") for name in names if name is not None)])
        answer = self._server.ask(method, path)
        if answer.status == 202:
            raise RequestError(f"{names[1]!r} of {names[0]!r} is in work; its result is not there yet")
        if answer.status != 200:
            self._decoded(answer, dict[str, Any])  # raises if what answers is no server of ours
            raise RequestError(answer.detail)
        return answer

    def _decoded(self, answer: Answer, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.DecodeError:
            raise RequestError(
                f"what answers at {self._server.url} is no Timebound server, or one without kept results"
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


Shelf = InServer | InRedis
"""Raises `RequestError` if there is no such result, nobody answers or it is refused."""
