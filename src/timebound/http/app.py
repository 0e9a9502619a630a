"""The ASGI app: the server's own routes, and models for callers that speak ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httptools
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from timebound.admission import Held, Hold, Peers
from timebound.admission.held import SMALL
from timebound.errors import Refusal, RequestError
from timebound.http.access import CLIENT, Access
from timebound.http.control import Control
from timebound.http.cors import Cors, as_head
from timebound.http.flow import Flow
from timebound.http.history import HistoryRoutes
from timebound.http.intake import Intake
from timebound.http.live import LiveRoutes
from timebound.http.management import Management
from timebound.http.missing import INVOCATIONS, Missing, Shown, named_in
from timebound.http.oip import OpenInferenceRoutes
from timebound.http.own_routes import OwnRoutes
from timebound.http.problems import headers_of, said
from timebound.http.proxies import Proxied, Proxies
from timebound.http.results import Results
from timebound.http.routes import Route as ModelRoute
from timebound.http.routes import Routes, find
from timebound.http.short import shortened
from timebound.http.streamed import Relayed

_SAFE = [(b"x-content-type-options", b"nosniff")]
_ID = b"\r\nx-request-id: "


class App:
    """What a listener runs, or another ASGI server; models are asked at their routes."""

    def __init__(
        self,
        intake: Intake,
        routes: Routes,
        served: Shown,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
        results: Results,
        control: Control,
        live: LiveRoutes | None = None,
        management: Management | None = None,
        history: HistoryRoutes | None = None,
        open_inference: OpenInferenceRoutes | None = None,
        access: Access | None = None,
        cors: Cors | None = None,
        held: Held | None = None,
        proxies: Proxies | None = None,
        peers: Peers | None = None,
        max_body: int = 10_000_000,
    ) -> None:
        self._intake = intake
        self._routes = routes.by_path
        self._access = access
        self._cors = cors
        self._held = held
        self._proxies = proxies
        self._peers = peers or Peers(1)
        self._max_body = max_body
        self.is_watching = True
        """Whether it listens for clients that leave; an ASGI server that cancels instead saves it that."""
        self.unseen_s = 0.0
        """What a host takes of each limit, before a request is seen here and after it was answered."""
        self.says_ids = True
        """Whether answers say their `X-Request-Id`; a host that writes it in each itself saves them that."""
        families = (results, control, live, management, history, open_inference)
        further = [each for family in families if family is not None for each in family.routes()]
        takes_feedback = history is not None and history.is_kept
        self._missing = Missing(served, access)
        own = OwnRoutes(served, access, metrics, further, missing=self._missing, takes_feedback=takes_feedback)
        self.own = own.app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"].encode())
        if route is None or route.takes_target:
            route = self._find(scope)
        asked = self._cors.preflight(scope["headers"]) if self._cors and scope["method"] == "OPTIONS" else None
        if asked is not None:
            await _respond(send, 204, as_head(asked), b"")
        elif route is not None and (scope["method"] == "POST" or scope["method"].encode() in route.methods):
            await self._answer(route, scope, receive, send)
        else:
            await self._answer_cold(route, scope, receive, self._with_headers(scope, send))

    def _find(self, scope: Scope) -> ModelRoute | None:
        url = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope.get("query_string")
        headers = list(scope["headers"])
        if scope["path"].rstrip("/") == INVOCATIONS and (named := named_in(query or b"")) is not None:
            url = f"/models/{quote(named)}/invoke".encode()
        try:
            route = find(self._routes, url + b"?" + query if query else url, headers)
        except httptools.HttpParserError:
            return None
        if route is not None:
            scope["headers"] = headers
        return route

    async def _answer_cold(self, route: ModelRoute | None, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._access is not None:
                scope[CLIENT] = self._access.let_in(scope)
        except RequestError as error:
            await self._missing.problem(error, scope["path"])(scope, receive, send)
            return
        if route is not None and self._missing.shows(scope, route.model):
            await self._missing.wrong_method(scope["path"], route)(scope, receive, send)
        else:
            await self.own(scope, shortened(receive), send)

    async def _answer(self, route: ModelRoute, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to a model by ASGI: the same way in, the same bounds, and a client that leaves has left."""
        try:
            client = self._access.client(scope) if self._access is not None else None
            body, hold = await self._read(scope, receive)
        except ClientDisconnect:
            return
        except RequestError as error:
            status, media, said_body = said(error, scope["path"].encode())
            head = b"content-type: %b\r\ncontent-length: %d\r\n" % (media, len(said_body))
            await _respond(send, status, head + as_head(headers_of(error)), said_body)
            return
        done: asyncio.Future[tuple[int, bytes, bytes]] = asyncio.get_running_loop().create_future()
        relayed: Relayed | None = None

        def respond(status: int, head: bytes, body: bytes) -> None:
            nonlocal relayed
            if isinstance(body, Flow):
                relayed = Relayed()
                body.open(relayed)
            if not done.done():  # the caller may have been cancelled
                done.set_result((status, head, body))

        intake, address = self._way_in(scope)
        leave = intake.take(
            route, scope["headers"], body, respond, client=client, hold=hold, address=address, age_s=self.unseen_s
        )
        if not done.done():
            try:
                await (_first(done, _disconnected(receive)) if self.is_watching else done)
            finally:  # also for a caller who is cancelled
                if leave is not None and (not done.done() or done.cancelled()):
                    leave()
        if done.done():
            status, head, whole = done.result()
            if not self.says_ids:
                head = _without_id(head)
            if relayed is not None:
                await self._relay(send, receive, relayed, (status, head), leave)
            else:
                await _respond(send, status, head, whole)

    async def _relay(
        self,
        send: Send,
        receive: Receive,
        relayed: Relayed,
        start: tuple[int, bytes],
        leave: Callable[[], None] | None,
    ) -> None:
        """Send an answer as its pieces come; a client that leaves meanwhile, or lags behind, has left."""
        await send(_start_of(*start))
        sending = asyncio.ensure_future(relayed.send_all(send))
        try:
            await (_first(sending, _disconnected(receive)) if self.is_watching else sending)
        finally:
            sending.cancel()
            if leave is not None and not relayed.is_over:
                leave()

    def _way_in(self, scope: Scope) -> tuple[Intake | Proxied, str]:
        """Where a request goes, and the address of who brings it."""
        peer = scope.get("client")
        address = None if peer is None else str(peer[0])
        if self._proxies is not None and self._proxies.trusts(address):
            return Proxied(self._intake, self._proxies, self._peers, peer=address or ""), ""
        return self._intake, address or ""

    async def _read(self, scope: Scope, receive: Receive) -> tuple[bytes, Hold | None]:
        """The whole body, and what stands for its memory if that is worth counting."""
        for name, told in scope["headers"]:
            if name == b"content-length" and told.isdigit():
                self._check_size(int(told))
        parts: list[bytes] = []
        size, has_more, hold = 0, True, None
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part: bytes = message.get("body", b"")
            has_more = message.get("more_body", False)
            parts.append(part)
            size += len(part)
            self._check_size(size)
            if size > SMALL and self._held is not None:
                hold = hold or self._held.hold()
                if not hold.reach(size):
                    raise Refusal("too many large bodies are in memory now", code="memory_full", retry_after_s=1)
        return b"".join(parts), hold

    def _check_size(self, size: int) -> None:
        if size > self._max_body:
            raise RequestError(f"the body is over {self._max_body} bytes", code="body_too_large")

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        """The same `send`, adding what every answer of the server's own routes says."""
        more = [*_SAFE, *(self._cors.lines(scope["headers"]) if self._cors is not None else [])]

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(line for line in more if line[0] not in known)]
            await send(message)

        return send_with


async def _first(done: asyncio.Future[Any], left: Coroutine[Any, Any, None]) -> None:
    """Wait for an answer, or for the client to leave."""
    watch = asyncio.ensure_future(left)
    try:
        await asyncio.wait((done, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    with suppress(Exception):  # a host that cannot be asked any more has lost its client too
        while (await receive())["type"] != "http.disconnect":
            pass


async def _respond(send: Send, status: int, head: bytes, body: bytes) -> None:
    await send(_start_of(status, head))
    await send({"type": "http.response.body", "body": body})


def _start_of(status: int, head: bytes) -> Message:
    headers: list[Any] = [line.split(b": ", 1) for line in head.split(b"\r\n")[:-1]]  # each line has its end
    headers += _SAFE
    return {"type": "http.response.start", "status": status, "headers": headers}


def _without_id(head: bytes) -> bytes:
    start = head.find(_ID)
    return head if start < 0 else head[:start] + head[head.index(b"\r\n", start + 2) :]
