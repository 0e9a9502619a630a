"""One client connection: uvicorn's HTTP/1.1 protocol plus the limits it leaves to a proxy.

uvicorn parses, keeps connections alive and runs the app. What is added here: a bound on headers and on
the body, checked before the body is in memory; the API key, likewise; answers a client can read even while it
is still sending; and the two times (`reading_since`, `unread_since`) by which `sweep` finds slow clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from timebound.admission import Client, Held, Hold, Peers
from timebound.admission.held import SMALL
from timebound.errors import Refusal, RequestError
from timebound.events import Events, TurnedAway
from timebound.http.access import Access, no_key
from timebound.http.arrival import unread_s
from timebound.http.cors import Cors, as_head
from timebound.http.hot import HotPath, Route
from timebound.http.problems import MEDIA, from_error, headers_of, status_of
from timebound.http.upgrade import plain_head

_PATIENCE_S = 0.5
"""How long an answer may lie unread while there is too much in memory."""

_LINGER_S = 5.0
"""How long a refused client may go on sending before it is cut; so long it has to read why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one connection may do; the same for all connections of a listener."""

    max_body: int
    max_header: int
    max_connections: int
    read_timeout: float
    write_timeout: float


class State(ServerState):
    """What all connections of a listener share."""

    def __init__(self, *, limits: Limits, held: Held, peers: Peers, access: Access | None, cors: Cors | None) -> None:
        super().__init__()
        self.limits = limits
        self.held = held
        self.peers = peers
        self.access = access
        self.cors = cors
        self.head = b""
        """Header lines of every answer."""


class HotCycle:
    """A request on the fast path, in the place of uvicorn's own cycle: the same attributes, no ASGI, no task.

    uvicorn sets `message_event` when the body is whole and when the client leaves; here that event is the
    cycle itself, so `set` is where the request starts.
    """

    __slots__ = (
        "_client",
        "_connection",
        "_leave",
        "_route",
        "body",
        "disconnected",
        "hold",
        "is_started",
        "keep_alive",
        "more_body",
        "response_complete",
    )

    def __init__(self, connection: Connection, route: Route, client: Client | None, *, keep_alive: bool) -> None:
        self._connection = connection
        self._client = client
        self.hold: Hold | None = None
        self._route = route
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.more_body = True
        self.disconnected = False
        self.is_started = False
        self.response_complete = False
        self._leave: Callable[[], None] | None = None

    response_started = False  # status, headers and body are written at once

    @property
    def message_event(self) -> HotCycle:
        return self

    def set(self) -> None:
        if self.disconnected:
            if self._leave is not None and not self.response_complete:
                self._leave()
                self._leave = None
        elif not self.more_body and not self.is_started:
            self.is_started = True
            body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
            self.body = []
            hold, self.hold = self.hold, None  # from here on it goes with the request
            connection = self._connection
            leave = connection.hot.start(
                self._route,
                connection.headers,
                body,
                self.respond,
                client=self._client,
                hold=hold,
                unread_s=connection.unread_s,
            )
            self._leave = None if self.response_complete else leave

    def let_go(self) -> None:
        """Forget what has come of a body that will not be whole."""
        self.body, self.hold = [], None

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        self._leave = None  # it holds the request, and through it this: a cycle that only the collector would end
        if not self.disconnected:
            self.response_complete = True
            self._connection.respond(status, head, body, keep_alive=self.keep_alive)


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with limits. A refused request is answered, and the rest of what it sends is thrown away."""

    def __init__(
        self, config: Any, state: State, *, hot: HotPath, hot_routes: Mapping[bytes, Route], events: Events
    ) -> None:
        super().__init__(config, state, {})
        self.hot = hot
        self._hot_routes = hot_routes
        self._events = events
        self._state = state
        self._limits = state.limits
        self._header_bytes = 0
        self._body_bytes = 0
        self._headers_done = True
        self._owns_cycle = False
        """Whether `cycle` is of the request that is being read; else of an earlier one, if it is still open."""
        self._is_refused = False
        self._due: RequestError | None = None
        """A refusal that waits for the answers of earlier requests."""
        self._started: RequestResponseCycle | None = None
        self._unread_bytes = 0
        self._unread_hold: Hold | None = None
        self.reading_since: float | None = None
        self.unread_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.reading_since = self.loop.time()
        most, count = self._limits.max_connections, len(self.connections)
        has_seat = self.client is None or self._state.peers.come(self.client[0])
        if count > 2 * most:
            self._cut("too_many_connections")  # so many are being told already that there is no room
        elif count > most:
            self._turn_away(
                Refusal(f"{most} connections are open already", code="too_many_connections", retry_after_s=1)
            )
        elif not has_seat:
            most = self._state.peers.limit
            self._turn_away(Refusal(f"your address has {most} connections open", code="client_busy", retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            self._state.peers.go(self.client[0])
        self._unread_hold = None
        # uvicorn tells only the latest request; of pipelined ones the one that runs and those that wait must know too.
        for cycle in [self._started, *(cycle for cycle, _ in self.pipeline)]:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        if isinstance(reading := cast(object, self.cycle), HotCycle):
            reading.let_go()
        # A cycle knows its connection, which knows it. The collector that would end both comes late, and then takes
        # many at once.
        self.cycle = self._started = None  # type: ignore[assignment]
        self._unset_keepalive_if_required()  # uvicorn leaves the timer running if the client reset the connection

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._started = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("this is not a valid HTTP request")
        if not self._headers_done and not self._is_refused:
            # The parser keeps an unfinished header to itself, so what it swallowed is counted here.
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.max_header:
                self._refuse_headers()

    def _feed(self, data: bytes) -> None:
        """Parse what came. A wish to upgrade is not granted: what asks for it is read again without the wish.

        The parser takes what follows such a head for another protocol: it would leave the body out, and read it as the
        next request if it came later.
        """
        while not self._is_refused:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                method = self.parser.get_method()
                if method == b"CONNECT":
                    self.refuse("malformed_http", "CONNECT is not taken here")
                    return
                head = plain_head(method, self.url, self.parser.get_http_version(), self.headers)
                data = head + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._is_refused:
            return
        self.reading_since = self.loop.time()
        self._headers_done = self._owns_cycle = False
        self._header_bytes = self._body_bytes = 0

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return  # the rest of what came in one read with a refused request
        self._headers_done = True
        size = len(self.url)
        length = None
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            if name == b"content-length":
                length = int(value)
        if size > self._limits.max_header:
            self._refuse_headers()
        elif length is not None and length > self._limits.max_body:
            self._refuse_body()
        elif self.parser.should_upgrade():
            return  # read again, see `_feed`
        elif length is not None and length > SMALL and not self._state.held.has_room(length):
            self._refuse_memory()
        else:
            if not self._take_fast_path():
                super().on_headers_complete()
            self._owns_cycle = not self._is_refused

    def unread_s(self) -> float:
        """How long what was read last had been here."""
        return unread_s(self.transport.get_extra_info("socket"))

    def _take_fast_path(self) -> bool:
        """Whether this request goes straight to the hot path: a POST to a model, nothing pipelined before it."""
        route = self._hot_routes.get(self.url)
        if route is None or self.parser.get_method() != b"POST":
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        client = None
        if self._state.access is not None:
            client = self._state.access.find(self.headers)
            if client is None:
                self._turn_away(no_key())
                return True
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        self.cycle = cast(RequestResponseCycle, HotCycle(self, route, client, keep_alive=keep_alive))
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def respond(self, status: int, head: bytes, body: bytes, *, keep_alive: bool) -> None:
        """Write a whole answer of the hot path at once: one system call instead of uvicorn's two."""
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
        if self._body_bytes > self._limits.max_body:
            self._refuse_body()
        elif isinstance(cycle := cast(object, self.cycle), HotCycle):
            # Bounded by max_body and by what is held for all, so reading need not pause.
            if self._body_bytes > SMALL and not self._hold(cycle):
                self._refuse_memory()
            else:
                cycle.body.append(body)
        else:
            super().on_body(body)

    def _hold(self, cycle: HotCycle) -> bool:
        """Count what has come of this body; False if there is no room for it."""
        if cycle.hold is None:
            cycle.hold = self._state.held.hold()
        return cycle.hold.reach(self._body_bytes)

    def on_message_complete(self) -> None:
        if not self._is_refused and not self.parser.should_upgrade():
            self.reading_since = None
            self._owns_cycle = False
            super().on_message_complete()

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_hold = self._state.held.hold()
        self._unread_hold.stand_for(self._unread_bytes)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = self._unread_hold = None
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        self.refuse("malformed_http", msg)

    def sweep(self, now: float) -> None:
        """Turn away a client that takes too long to send a request or to read an answer."""
        limits = self._limits
        if self.unread_since is not None:
            unread = self.transport.get_write_buffer_size()
            if unread < self._unread_bytes:  # slow, but it reads
                self.unread_since, self._unread_bytes = now, unread
                if self._unread_hold is not None:
                    self._unread_hold.stand_for(unread)
            elif now - self.unread_since > limits.write_timeout:
                self._cut("slow_reader")
                return
            elif self._state.held.is_over and now - self.unread_since > _PATIENCE_S:
                self._cut("memory_full")
                return
        if self.reading_since is None:
            return
        waited_s = now - self.reading_since
        if self._is_refused:
            if waited_s > min(_LINGER_S, limits.read_timeout):
                self.transport.abort()
        elif waited_s > limits.read_timeout:
            if self._headers_done and not self._owns_cycle:
                self._cut("silent")  # it never said a word
            else:
                self.refuse("slow_client", f"the request did not arrive within {limits.read_timeout:g} s")

    def refuse(self, code: str, detail: str) -> None:
        """Answer the request being read with a problem and take no more; earlier ones still get their answers."""
        self._turn_away(RequestError(detail, code=code))

    def _cut(self, code: str) -> None:
        """End the connection without a word."""
        self._events.emit(TurnedAway(code))
        self.transport.abort()

    def _turn_away(self, error: RequestError) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        self._events.emit(TurnedAway(error.code))
        self.reading_since = self.loop.time()
        cycle = self.cycle
        is_open = cycle is not None and not cycle.response_complete
        if is_open and (self.pipeline or not self._owns_cycle):
            # Earlier requests are still computed: this one's turn to be answered comes after theirs.
            self._due = error
            if self._owns_cycle:
                self.pipeline.popleft()
            return
        if is_open:
            if cycle.response_started:
                self.transport.abort()
                return
            # The app is still reading this body: for it, the client has left.
            cycle.disconnected = True
            cycle.message_event.set()
            if isinstance(reading := cast(object, cycle), HotCycle):
                reading.let_go()  # the client may linger, what it sent need not
        self._end(error, is_answered=self._owns_cycle and not is_open)

    def on_response_complete(self) -> None:
        if self._due is not None and not self.pipeline:
            self._end(self._due, is_answered=False)
            return
        super().on_response_complete()
        if self.unread_since is not None:
            self.flow.pause_reading()  # who does not read its answers may not ask for more of them

    def _end(self, error: RequestError, *, is_answered: bool) -> None:
        """Say why, unless the request had its answer before it was whole, and stop talking."""
        if self.transport.is_closing():
            return
        if not is_answered:
            self._write_problem(error)
        self.flow.resume_reading()
        # Closing while bytes of the client are unread would reset the connection under the answer, so only
        # our half is closed; the other half closes when the client has read it, or in `sweep`.
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _write_problem(self, error: RequestError) -> None:
        body = from_error(error)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n" % (MEDIA, len(body))
        head += as_head(headers_of(error))
        if self._state.cors is not None and self.headers:
            head += as_head(self._state.cors.lines(self.headers))
        self.transport.write(b"".join((STATUS_LINE[status_of(error.code)], self._state.head, head, b"\r\n", body)))

    def _refuse_headers(self) -> None:
        self.refuse("headers_too_large", f"request line and headers are over {self._limits.max_header} bytes")

    def _refuse_body(self) -> None:
        self.refuse("body_too_large", f"the body is over {self._limits.max_body} bytes")

    def _refuse_memory(self) -> None:
        detail = "too many large bodies are in memory now; send this one again a little later"
        self._turn_away(Refusal(detail, code="memory_full", retry_after_s=1))
