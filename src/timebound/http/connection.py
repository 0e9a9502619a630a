"""One client connection: uvicorn's HTTP/1.1 protocol plus the limits it leaves to a proxy.

uvicorn parses, keeps connections alive and runs the app. What is added here: a bound on headers and on
the body, checked before the body is in memory; answers a client can read even while it is still sending;
and the two times (`reading_since`, `unread_since`) by which `sweep` finds slow clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from timebound.http.hot import HotPath, Route
from timebound.http.problems import MEDIA, problem_body, status_of

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


class HotCycle:
    """A request on the fast path, in the place of uvicorn's own cycle: the same attributes, no ASGI, no task.

    uvicorn sets `message_event` when the body is whole and when the client leaves; here that event is the
    cycle itself, so `set` is where the request starts.
    """

    __slots__ = (
        "_connection",
        "_leave",
        "_route",
        "body",
        "disconnected",
        "is_started",
        "keep_alive",
        "more_body",
        "response_complete",
    )

    def __init__(self, connection: Connection, route: Route, *, keep_alive: bool) -> None:
        self._connection = connection
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
            leave = self._connection.hot.start(self._route, self._connection.headers, body, self.respond)
            self._leave = None if self.response_complete else leave

    def respond(self, status: int, head: bytes, body: bytes) -> None:
        self._leave = None  # it holds the request, and through it this: a cycle that only the collector would end
        if not self.disconnected:
            self.response_complete = True
            self._connection.respond(status, head, body, keep_alive=self.keep_alive)


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with limits. A refused request is answered, and the rest of what it sends is thrown away."""

    def __init__(
        self, *arguments: Any, limits: Limits, hot: HotPath, hot_routes: Mapping[bytes, Route], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.hot = hot
        self._hot_routes = hot_routes
        self._limits = limits
        self._header_bytes = 0
        self._body_bytes = 0
        self._headers_done = True
        self._owns_cycle = False
        """Whether `cycle` is of the request that is being read; else of an earlier one, if it is still open."""
        self._is_refused = False
        self._due: tuple[str, str] | None = None
        """A refusal that waits for the answers of earlier requests."""
        self._started: RequestResponseCycle | None = None
        self._unread_bytes = 0
        self.reading_since: float | None = None
        self.unread_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.reading_since = self.loop.time()
        if len(self.connections) > self._limits.max_connections:
            self.refuse("too_many_connections", f"{self._limits.max_connections} connections are open already")

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells only the latest request; of pipelined ones the one that runs and those that wait must know too.
        for cycle in [self._started, *(cycle for cycle, _ in self.pipeline)]:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._started = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        try:
            super().data_received(data)
        except httptools.HttpParserCallbackError:
            self.refuse("malformed_http", "the request target is not a valid URL")
        if not self._headers_done and not self._is_refused:
            # The parser keeps an unfinished header to itself, so what it swallowed is counted here.
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.max_header:
                self._refuse_headers()

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
        else:
            if not self._take_fast_path():
                super().on_headers_complete()
            self._owns_cycle = True

    def _take_fast_path(self) -> bool:
        """Whether this request goes straight to the hot path: a POST to a model, nothing pipelined before it."""
        route = self._hot_routes.get(self.url)
        if route is None or self.parser.get_method() != b"POST" or self.parser.should_upgrade():
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        self.cycle = cast(RequestResponseCycle, HotCycle(self, route, keep_alive=keep_alive))
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def respond(self, status: int, head: bytes, body: bytes, *, keep_alive: bool) -> None:
        """Write a whole answer of the hot path at once: one system call instead of uvicorn's two."""
        if self.transport.is_closing():
            return
        date = b"".join(b"%b: %b\r\n" % header for header in self.server_state.default_headers)
        close = b"" if keep_alive else b"connection: close\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], date, head, close, b"\r\n", body)))
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
            cycle.body.append(body)  # bounded by max_body, so reading need not pause
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self.reading_since = None
            self._owns_cycle = False
            super().on_message_complete()

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self.refuse("malformed_http", msg)

    def sweep(self, now: float) -> None:
        """Turn away a client that takes too long to send a request or to read an answer."""
        limits = self._limits
        if self.unread_since is not None:
            unread = self.transport.get_write_buffer_size()
            if unread < self._unread_bytes:  # slow, but it reads
                self.unread_since, self._unread_bytes = now, unread
            elif now - self.unread_since > limits.write_timeout:
                self.transport.abort()
                return
        if self.reading_since is None:
            return
        waited_s = now - self.reading_since
        if self._is_refused:
            if waited_s > min(_LINGER_S, limits.read_timeout):
                self.transport.abort()
        elif waited_s > limits.read_timeout:
            if self._headers_done and not self._owns_cycle:
                self.transport.abort()  # it never said a word
            else:
                self.refuse("slow_client", f"the request did not arrive within {limits.read_timeout:g} s")

    def refuse(self, code: str, detail: str) -> None:
        """Answer the request being read with a problem and take no more; earlier ones still get their answers."""
        if self._is_refused:
            return
        self._is_refused = True
        self.reading_since = self.loop.time()
        cycle = self.cycle
        is_open = cycle is not None and not cycle.response_complete
        if is_open and (self.pipeline or not self._owns_cycle):
            # Earlier requests are still computed: this one's turn to be answered comes after theirs.
            self._due = (code, detail)
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
        self._end(code, detail, is_answered=self._owns_cycle and not is_open)

    def on_response_complete(self) -> None:
        if self._due is not None and not self.pipeline:
            self._end(*self._due, is_answered=False)
        else:
            super().on_response_complete()

    def _end(self, code: str, detail: str, *, is_answered: bool) -> None:
        """Say why, unless the request had its answer before it was whole, and stop talking."""
        if self.transport.is_closing():
            return
        if not is_answered:
            self._write_problem(code, detail)
        self.flow.resume_reading()
        # Closing while bytes of the client are unread would reset the connection under the answer, so only
        # our half is closed; the other half closes when the client has read it, or in `sweep`.
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _write_problem(self, code: str, detail: str) -> None:
        body = problem_body(code, detail)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (MEDIA, len(body))
        self.transport.write(STATUS_LINE[status_of(code)] + head + body)

    def _refuse_headers(self) -> None:
        self.refuse("headers_too_large", f"request line and headers are over {self._limits.max_header} bytes")

    def _refuse_body(self) -> None:
        self.refuse("body_too_large", f"the body is over {self._limits.max_body} bytes")
