"""One client connection: uvicorn's HTTP/1.1 protocol plus the limits it leaves to a proxy.

uvicorn parses, and runs the app for the server's own routes. A request to a model goes straight to the intake, however
it came: alone, pipelined behind others, with a query string or with the whole address. What is added besides: a bound
on headers and on the body, checked before the body is in memory; the API key, likewise; answers a client can read even
while it is still sending; and the times (`reading_since`, `unread_since`, `idle_since`) by which `sweep` finds slow
clients and idle connections.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from timebound.admission import Client, Hold
from timebound.admission.held import SMALL
from timebound.errors import RequestError
from timebound.events import Events
from timebound.http.access import no_key
from timebound.http.bounded import AT_ONCE, MOST_ESCAPES, MOST_LINES, PIPELINED, Bounded, State
from timebound.http.flow import Flow
from timebound.http.intake import Intake
from timebound.http.routes import Route, find
from timebound.http.streamed import Chunked

_LAST_DATA = struct.Struct("@52xI")
"""Of Linux's `tcp_info`: `tcpi_last_data_recv`, the milliseconds since data came."""
_TICKS_MS = 8
"""The kernel counts in ticks, and up to so much may be none."""

_STAYS = b"connection: keep-alive\r\n"
"""What a client of HTTP/1.0 that asked for it must be told."""
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


class Turn:
    """A request to a model and its answer, in the place of uvicorn's own cycle: the same attributes, no ASGI, no task.

    uvicorn sets `message_event` when the body is whole and when the client leaves; here that event is the
    exchange itself, so `set` is where the request starts, once those before it on the connection are answered.
    """

    __slots__ = (
        "_client", "_connection", "_expects_word", "_headers", "_is_old", "_is_started", "_refusal", "_route", "_url",
        "_was_behind", "body", "disconnected", "has_turn", "hold", "keep_alive", "leave", "more_body",
        "response_complete",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        route: Route,
        client: Client | None,
        refusal: RequestError | None,
        *,
        was_behind: bool,
    ) -> None:
        self._connection = connection
        self._refusal = refusal
        self._headers, self._url = connection.headers, connection.url
        self._route = route
        self._client = client
        self.hold: Hold | None = None
        self.keep_alive = connection.parser.should_keep_alive()
        self._is_old = connection.parser.get_http_version() == "1.0"
        self.body: bytes | BytesIO = b""
        self.more_body = True
        self._was_behind = was_behind
        self._expects_word = connection.expect_100_continue
        self.has_turn = False
        self.disconnected = False
        self._is_started = False
        self.response_complete = False
        self.leave: Callable[[], None] | None = None

    response_started = False  # status, headers and body are written at once

    @property
    def message_event(self) -> Turn:
        return self

    @property
    def is_usual(self) -> bool:
        """Whether its connection goes on after it, and it was given no word between its head and its body."""
        return self.keep_alive and not self._is_old and not self._expects_word

    def set(self) -> None:
        if self.disconnected:
            if self.leave is not None and not self.response_complete:
                self.leave()
                self.leave = None
        elif not self.more_body and self.has_turn and not self._is_started:
            self._is_started = True
            self._start()

    def take_turn(self) -> None:
        """The requests before it on the connection are answered."""
        self.has_turn = True
        if self.more_body and self._expects_word:
            self._connection.transport.write(_GO_ON)
        self.set()

    def _start(self) -> None:
        if self._refusal is not None:
            self.respond(*self._connection.refused(self._refusal, self._headers, self._url))
            return
        body, self.body = self.body.getvalue() if isinstance(self.body, BytesIO) else self.body, b""
        hold, self.hold = self.hold, None  # from here on it goes with the request
        connection = self._connection
        leave = connection.intake.take(
            self._route,
            self._headers,
            body,
            self.respond,
            client=self._client,
            hold=hold,
            address=connection.address,
            unread_s=None if self._was_behind else connection.unread_s,  # it waited for those before it
        )
        self.leave = None if self.response_complete else leave

    def add(self, body: bytes) -> None:
        """More of its body: in one piece, of which thousands would cost more, and that is whole without a copy."""
        if isinstance(self.body, BytesIO):
            self.body.write(body)
        elif not self.body:
            self.body = body
        else:
            first, self.body = self.body, BytesIO()
            self.body.write(first + body)

    def let_go(self) -> None:
        """Forget what has come of a body that will not be whole."""
        self.body, self.hold = b"", None

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        if isinstance(body, Flow):
            Chunked(self._connection, self, is_old=self._is_old).begin(self._connection.head(status) + head, body)
            return
        self.leave = None  # it holds the request, and through it this: a cycle that only the collector would end
        if not self.disconnected:
            self.response_complete = True
            head = _STAYS + head if self._is_old and self.keep_alive else head
            self._connection.respond(status, head, body, keep_alive=self.keep_alive)


class Connection(Bounded):
    """HTTP/1.1 with limits. A refused request is answered, and the rest of what it sends is thrown away."""

    def __init__(
        self, config: Any, state: State, *, intake: Intake, routes: Mapping[bytes, Route], events: Events
    ) -> None:
        super().__init__(config, state, events, intake)
        self._routes = routes
        self._again, self._again_bytes = b"", -1
        """The head of the request that was parsed last, and its length with its body."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self.has_seat:
            self._state.peers.go(self.address)
        self.unread_hold = None
        # uvicorn tells only the latest request; of pipelined ones the one that runs and those that wait must know too.
        for cycle in [self._started, *(cycle for cycle, _ in self.pipeline)]:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self.let_go()
        # A cycle knows its connection, which knows it. The collector that would end both comes late, and then takes
        # many at once.
        self.cycle = self._started = None  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._started = cycle
        if isinstance(exchange := cast(object, cycle), Turn):
            self.loop.call_soon(exchange.take_turn)  # not now: an answer that is there at once would end in here again
        else:
            super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if len(data) == self._again_bytes and data.startswith(self._again) and self._is_taken_again(data):
            return
        if len(data) > AT_ONCE or self._rest:
            self.read_piecemeal(data)
            return
        is_whole = self.reading_since is None
        self.read(data)
        if not self._headers_done:
            self.await_head()
        turn, length = cast(object, self.cycle), self._length
        if is_whole and self.reading_since is None and length is not None and isinstance(turn, Turn) and turn.is_usual:
            head = len(data) - length
            if data.find(b"\r\n\r\n") == head - 4:  # else there was more in it than one request
                self._again, self._again_bytes = data[:head], len(data)

    def _is_taken_again(self, data: bytes) -> bool:
        """Take a request that begins, byte for byte, as the one before it: its head need not be parsed once more."""
        if self.reading_since is not None or self.unread_since is not None or self._rest or self._is_refused:
            return False
        if not self.cycle.response_complete or not self._take(self._length):
            return False
        self.idle_since = None
        turn = cast(Turn, cast(object, self.cycle))
        turn.body, turn.more_body = data[len(self._again) :], False
        turn.set()
        return True

    def read(self, data: bytes) -> None:
        if self._is_refused:
            return
        self.idle_since, body_bytes, self._is_new = None, self._body_bytes, False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.read(self._without_wish(data[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self.send_400_response("this is not a valid HTTP request")
        if self.reading_since is None or self._is_refused:
            return
        if self._body_bytes == body_bytes and not self._is_new:
            # The parser keeps an unfinished header to itself, as the lines before a chunk and after the last one: what
            # it swallowed is counted here, until more of the body comes.
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.max_header or len(self.headers) > MOST_LINES:
                self._refuse_headers()

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        if self._is_refused:
            return
        self.reading_since, self.idle_since = self.loop.time(), None
        self._headers_done = self._owns_cycle = False
        self._is_new, self._again_bytes = True, -1
        self._header_bytes = self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers_done:
            return  # behind the body: who sends it is no longer asked
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return  # the rest of what came in one read with a refused request
        self._headers_done, self._header_bytes = True, 0
        size, length, hosts = len(self.url), None, 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length = int(value)
            elif name == b"host":
                hosts += 1
        self._length = length
        if size > self._limits.max_header or len(self.headers) > MOST_LINES:
            self._refuse_headers()
        elif length is not None and length > self._limits.max_body:
            self._refuse_body()
        elif hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            self.refuse("malformed_http", f"the request has {hosts or 'no'} Host headers; send one")
        elif self.parser.should_upgrade() or (self.url.count(b"%") > MOST_ESCAPES and self._refuse_path()):
            return  # read again, see `_without_wish`; or refused
        elif length is not None and length > SMALL and not self._state.held.has_room(length):
            self._refuse_memory()
        else:
            if not self._take(length):
                self._to_app()
            self._owns_cycle = not self._is_refused

    def _take(self, length: int | None) -> bool:
        """Whether this request is for a model: then it waits for its turn on this connection."""
        route = self._routes.get(self.url) or find(self._routes, self.url, self.headers)
        if route is None or ((method := self.parser.get_method()) != b"POST" and method not in route.methods):
            return False
        client = refusal = None
        if self._state.access is not None:
            client = self._state.access.find(self.headers)
            if client is None:
                refusal = no_key()
                if length is None or length > SMALL:  # not worth reading
                    self._turn_away(refusal)
                    return True
        is_behind = self.unread_since is not None or (self.cycle is not None and not self.cycle.response_complete)
        exchange = Turn(self, route, client, refusal, was_behind=is_behind)
        self.cycle = cast(RequestResponseCycle, exchange)
        if is_behind:
            self.pipeline.appendleft((self.cycle, self.app))
            if len(self.pipeline) > PIPELINED:  # else whoever leaves is heard
                self.flow.pause_reading()
        else:
            self._started = self.cycle
            exchange.take_turn()
        return True

    def unread_s(self) -> float:
        """How long what was read last had been here."""
        return unread_s(self.transport.get_extra_info("socket"))

    def let_go(self) -> None:
        if isinstance(reading := cast(object, self.cycle), Turn):
            reading.let_go()

    def head(self, status: int) -> bytes:
        """How an answer with this status begins."""
        return STATUS_LINE[status] + self._state.head

    def respond(self, status: int, head: bytes, body: bytes, *, keep_alive: bool) -> None:
        """Write a whole answer of a model at once: one system call instead of uvicorn's two."""
        if self.transport.is_closing():
            return
        close = b"" if keep_alive else b"connection: close\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], self._state.head, head, close, b"\r\n", body)))
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._body_bytes += len(body)
        self._header_bytes = 0
        if self._body_bytes > self._limits.max_body:
            self._refuse_body()
        elif isinstance(cycle := cast(object, self.cycle), Turn):
            # Bounded by max_body and by what is held for all, so reading need not pause.
            if (self._body_bytes > SMALL or self.pipeline) and not self._hold(cycle):
                self._refuse_memory()
            else:
                cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused and not self.parser.should_upgrade():
            self.reading_since = None
            self._owns_cycle = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._due is not None and not self.pipeline:
            self._end(self._due, is_answered=False)
        elif self.unread_since is not None:
            self.flow.pause_reading()  # who does not read its answers gets no more of them, and may not ask for more
        elif not self.transport.is_closing():
            self.go_on()

    def go_on(self) -> None:
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.idle_since = self.loop.time()
        if self._rest:
            self.read_on()


def unread_s(sock: socket.socket | None) -> float:
    """How long the last bytes that a client sent have been here, if that is more than a few milliseconds; else 0."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0.0
    asked = socket.socket(
        sock.family, sock.type, sock.proto, sock.fileno()
    )  # uvloop's would be copied, and closed again
    try:
        milliseconds: int = _LAST_DATA.unpack(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size))[0]
    finally:
        asked.detach()
    return milliseconds * 1e-3 if milliseconds > _TICKS_MS else 0.0
