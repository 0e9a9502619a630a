"""What a connection does about clients that break its bounds: slow ones, greedy ones, and those it has no room for.

A request that follows the rules is read and answered without a call into this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from timebound.admission import Held, Hold, Peers
from timebound.errors import Refusal, RequestError
from timebound.events import Events, TurnedAway
from timebound.http.access import Access
from timebound.http.cors import Cors, as_head
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


class Holds(Protocol):
    """A request whose body is being read."""

    hold: Hold | None


class Bounded(HttpToolsProtocol):
    """uvicorn's protocol, and a word or an end for whoever asks too much of it."""

    def __init__(self, config: Any, state: State, events: Events) -> None:
        super().__init__(config, state, {})
        self._events = events
        self._state = state
        self._limits = state.limits
        self._header_bytes = 0
        self._body_bytes = 0
        self._headers_done = True
        self._owns_cycle = False
        """Whether `cycle` is of the request that is being read; else of an earlier one, if it is still open."""
        self._is_refused = False
        self._is_new = False
        """Whether the request being read began in this very read."""
        self._due: RequestError | None = None
        """A refusal that waits for the answers of earlier requests."""
        self._started: RequestResponseCycle | None = None
        self._unread_bytes = 0
        self._unread_hold: Hold | None = None
        self.reading_since: float | None = None
        self.unread_since: float | None = None
        self.idle_since: float | None = None

    def go_on(self) -> None:
        """The last answer is read: read on, and answer what waits for that."""

    def let_go(self) -> None:
        """Forget what has come of the body that is being read."""

    def _without_wish(self, rest: bytes) -> bytes:
        """The request that is being read once more, for a fresh parser, without its wish to upgrade; and the rest."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse("malformed_http", "CONNECT is not taken here")
            return b""
        head = plain_head(method, self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return head + rest

    def _hold(self, cycle: Holds) -> bool:
        """Count what has come of this body; False if there is no room for it."""
        if cycle.hold is None:
            cycle.hold = self._state.held.hold()
        return cycle.hold.reach(self._body_bytes)

    def refused(self, error: RequestError, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes, bytes]:
        """What a request is told that may not ask, though the connection goes on."""
        self._events.emit(TurnedAway(error.code))
        return self._problem(error, headers)

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

    def pause_writing(self) -> None:
        self.unread_since = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_hold = self._state.held.hold()
        self._unread_hold.stand_for(self._unread_bytes)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread_since = self._unread_hold = None
        super().resume_writing()
        running = self._started
        if (running is None or running.response_complete) and not self._is_refused:
            self.go_on()

    def send_400_response(self, msg: str) -> None:
        self.refuse("malformed_http", msg)

    def sweep(self, now: float) -> None:
        """Turn away a client that takes too long to send a request or to read an answer."""
        if self.unread_since is not None and not self._is_read(now, self.unread_since):
            return
        if self.idle_since is not None and now - self.idle_since > self.timeout_keep_alive:
            self.transport.close()
        if self.reading_since is None:
            return
        if self._due is not None or (self.flow.read_paused and not self._is_refused):
            self.reading_since = now  # nothing is read from it now, or it still gets answers to earlier requests
        waited_s, longest_s = now - self.reading_since, self._limits.read_timeout
        if self._is_refused:
            if waited_s > min(_LINGER_S, longest_s):
                self.transport.abort()
        elif waited_s > longest_s:
            if self._headers_done and not self._owns_cycle:
                self._cut("silent")  # it never said a word
            else:
                self.refuse("slow_client", f"the request did not arrive within {longest_s:g} s")

    def _is_read(self, now: float, since: float) -> bool:
        """Whether a client whose answers wait to be read goes on reading them; it is cut if it does not."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread_bytes:  # slow, but it reads
            self.unread_since, self._unread_bytes = now, unread
            if self._unread_hold is not None:
                self._unread_hold.stand_for(unread)
        elif now - since > self._limits.write_timeout:
            self._cut("slow_reader")
            return False
        elif self._state.held.is_over and now - since > _PATIENCE_S:
            self._cut("memory_full")
            return False
        return True

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
            self.let_go()  # the client may linger, what it sent need not
        self._end(error, is_answered=self._owns_cycle and not is_open)

    def _end(self, error: RequestError, *, is_answered: bool) -> None:
        """Say why, unless the request had its answer before it was whole, and stop talking."""
        self._due = None
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
        status, head, body = self._problem(error, self.headers)
        head += b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], self._state.head, head, body)))

    def _problem(self, error: RequestError, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes, bytes]:
        body = from_error(error)
        head = b"content-type: %b\r\ncontent-length: %d\r\n" % (MEDIA, len(body)) + as_head(headers_of(error))
        if self._state.cors is not None and headers:
            head += as_head(self._state.cors.lines(headers))
        return status_of(error.code), head, body

    def _refuse_headers(self) -> None:
        self.refuse("headers_too_large", f"request line and headers are over {self._limits.max_header} bytes")

    def _refuse_body(self) -> None:
        self.refuse("body_too_large", f"the body is over {self._limits.max_body} bytes")

    def _refuse_memory(self) -> None:
        detail = "too many large bodies are in memory now; send this one again a little later"
        self._turn_away(Refusal(detail, code="memory_full", retry_after_s=1))
