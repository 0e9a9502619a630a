"""ModelInfer and ModelStreamInfer: from a call's messages to questions, and from their replies to messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import grpc

from timebound.admission import Held, Hold, Peers
from timebound.admission.held import SMALL
from timebound.errors import Refusal, RequestError
from timebound.events import Events, TurnedAway
from timebound.http.described import Described
from timebound.http.intake import Intake
from timebound.http.routes import Route
from timebound.http.surfaces.base import Reply
from timebound.rpc.callers import Caller, Callers
from timebound.rpc.calls import Reading, broken, refuse
from timebound.rpc.reader import Named, named
from timebound.rpc.statuses import Metadata, by_number
from timebound.rpc.stream import Asked, Stream
from timebound.rpc.surface import RpcInference, refused
from timebound.rpc.together import Together
from timebound.rpc.unread import Unread
from timebound.rpc.wire import packing_of, peeked, unpacked_if_light
from timebound.types import ModelInfo

log = logging.getLogger("timebound.rpc")


class RpcRoutes:
    """Which model is asked by a name and a version; follows the catalogue."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], Route] = {}

    def add(self, info: ModelInfo) -> None:
        """Answer for this model from now on."""
        surface = RpcInference(info)
        if info.name == info.base:
            self._by_name[info.base, ""] = Route(info, surface)
        self._by_name[info.base, info.version] = Route(info, surface, is_version=True)

    def remove(self, name: str) -> None:
        """Answer no more for this model."""
        self._by_name = {asked: route for asked, route in self._by_name.items() if route.info.name != name}

    def find(self, name: Named) -> Route | None:
        """Who is asked."""
        return self._by_name.get((name.model, name.version))


class _Heard(NamedTuple):
    """A message that is here, and who sent it."""

    caller: Caller
    message: bytes
    hold: Hold | None
    is_in_stream: bool = False


class Inference:
    """Answers the two methods."""

    def __init__(
        self,
        intake: Intake,
        routes: RpcRoutes,
        described: Described,
        callers: Callers,
        reading: Reading,
        *,
        held: Held,
        peers: Peers,
        events: Events,
    ) -> None:
        self._intake = intake
        self._routes = routes
        self._described = described
        self._callers = callers
        self._reading = reading
        self._held = held
        self._peers = peers
        self._events = events
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when streams on which nothing is asked are to end."""
        self.calls = 0
        """Calls that are open."""
        self._streams = 0
        self._together = Together(intake.clock)
        self._unread = Unread(held)

    def methods(self) -> dict[str, Any]:
        """What to mount, by name. ModelInfer reads its message itself: who may not ask need not be heard out."""
        return {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self.stream),
        }

    async def infer(self, unread: Any, context: Any) -> bytes:
        """One request, one answer."""
        self.calls += 1
        asked = None
        try:
            caller = self._callers.of(context)
            with self._seat(caller.address):
                asked = Asked()
                self._gather(asked, _Heard(caller, *await self._reading.read(context)))
                status, head, body = await asked.done
            metadata = _metadata(head)
        except RequestError as error:
            self._events.emit(TurnedAway(error.code))
            await refuse(context, error)
            return b""
        finally:
            self.calls -= 1
            if asked is not None:
                asked.leave()
        if status != 200:
            await context.abort(by_number(metadata[0][1]), body.decode(), metadata[1:])
        context.set_trailing_metadata(metadata)
        if len(body) > SMALL:
            self._count(body, context)
        return body

    @contextmanager
    def _seat(self, address: str) -> Iterator[None]:
        """One of those that an address may have: gRPC shows no connections, so its open calls count as such."""
        try:
            if not self._peers.come(address):
                most = self._peers.limit
                raise Refusal(
                    f"{most} connections and calls of this address are open", code="client_busy", retry_after_s=1
                )
            yield
        finally:
            self._peers.go(address)

    def _count(self, body: bytes, context: Any) -> None:
        """Count a large answer until the client has it."""
        hold = self._held.hold()
        hold.stand_for(len(body))
        context.add_done_callback(lambda _: hold.stand_for(0))

    def _gather(self, asked: Asked, heard: _Heard) -> None:
        """Ask what a message asks, together with those that come about now; a reply comes in any case."""
        self._together.take(partial(self._ask, asked, heard))

    def _ask(self, asked: Asked, heard: _Heard, waited_s: float) -> None:
        if asked.done.done():
            return  # its caller has left
        try:
            self._take(asked, heard, waited_s)
        except RequestError as error:
            self._events.emit(TurnedAway(error.code))
            asked.respond(*refused(error))
        except Exception:
            log.exception("a call broke")
            asked.respond(*refused(broken()))

    def _take(self, asked: Asked, heard: _Heard, waited_s: float) -> None:
        caller, message = heard.caller, heard.message
        headers, beginning = caller.headers, message
        if packing := packing_of(message):
            plain = unpacked_if_light(message, packing)
            if plain is None:
                headers = [*headers, (b"content-encoding", packing.encode())]
                beginning = peeked(message, packing)
            else:
                message = beginning = plain
        asked.name = named(beginning)
        route = self._routes.find(asked.name)
        if route is None:
            raise self._unknown(asked.name, caller)
        left_s = caller.left_s()
        if left_s is not None and (not heard.is_in_stream or left_s < route.deadline_s):
            headers = [*headers, (b"timebound-timeout-ms", b"%f" % ((left_s + waited_s) * 1e3))]
        leave = self._intake.take(
            route, headers, message, asked.respond,
            client=caller.client, hold=heard.hold, age_s=waited_s, address=caller.address,
        )  # fmt: skip
        asked.may_leave(leave)

    def _unknown(self, name: Named, caller: Caller) -> RequestError:
        try:
            self._callers.count(caller)
            self._described.find(caller.client, name.model, name.version or None)
        except RequestError as error:
            return error
        return RequestError(f"Request for unknown model: '{name.model}' is not found", code="unknown_model")

    # ------------------------------------------------------------------ streams

    async def stream(self, unread: Any, context: Any) -> None:
        """Requests, and their answers in the same order; what is wrong with one is said among them."""
        self._streams += 1
        try:
            caller = self._callers.of(context)
            if self._streams > (most := self._reading.most_streams):
                raise Refusal(f"{most} streams are open", code="too_many_connections", retry_after_s=1)
            with self._seat(caller.address):
                await Stream(context, lambda message: self._heard(message, caller), self.closing).run()
        except RequestError as error:
            self._events.emit(TurnedAway(error.code))
            await refuse(context, error)
        finally:
            self._streams -= 1

    def _heard(self, message: bytes, caller: Caller) -> Asked:
        asked = Asked(self._unread)
        self.calls += 1
        try:
            hold = self._reading.hold(message)
        except RequestError as error:
            asked.respond(*refused(error))
        else:
            self._gather(asked, _Heard(caller, message, hold, is_in_stream=True))
        asked.done.add_done_callback(self._is_done)
        return asked

    def _is_done(self, done: asyncio.Future[Reply]) -> None:
        self.calls -= 1


def _metadata(head: bytes) -> Metadata:
    """A reply's head as metadata."""
    return tuple(
        (name, value) for name, _, value in (line.partition(": ") for line in head.decode().split("\r\n")[:-1])
    )
