"""What a connection does about clients that break its bounds: slow ones, greedy ones, and those it has no room for.

A request that follows the rules is read and answered without a call into this file.
"""

from __future__ import annotations

import struct
import termios
from dataclasses import dataclass
from fcntl import ioctl
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from timebound.admission import Held, Hold, Peers
from timebound.clock import Clock, MonotonicClock
from timebound.errors import Refusal, RequestError
from timebound.events import Events, TurnedAway
from timebound.http.access import Access
from timebound.http.cors import Cors, as_head
from timebound.http.intake import Intake
from timebound.http.laborious import PIECE, TURN_BYTES, TURN_S, Laborious
from timebound.http.problems import headers_of, said
from timebound.http.proxies import Proxied, Proxies, way_back_s
from timebound.http.unfinished import CROWD, Unfinished
from timebound.http.upgrade import plain_head

AT_ONCE = 2048
"""Bytes that are parsed as they come; of more, bytes that are no body are parsed in pieces, see `read_piecemeal`."""

MOST_LINES = 256
"""Header lines of a request; each costs more memory than the shortest has bytes."""

MOST_ESCAPES = 1_000
"""Of a path (`%41`): to undo them takes a millisecond."""

PIPELINED = 8
"""Requests that are read while one before them is computed; from then on the connection waits."""

TRANSPORT = "timebound.transport"
"""In a request's scope: what its answer is written to."""

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

    def __init__(
        self,
        *,
        limits: Limits,
        held: Held,
        peers: Peers,
        access: Access | None,
        cors: Cors | None,
        proxies: Proxies | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.now = (clock or MonotonicClock()).now
        self.limits = limits
        self.held = held
        self.peers = peers
        self.access = access
        self.cors = cors
        self.proxies = proxies
        self.head = b""
        """Header lines of every answer."""
        self.cut_off = 0
        """Clients that were cut before they had read their answers."""
        self.laborious = Laborious()
        self.unfinished = Unfinished()


class Holds(Protocol):
    """A request whose body is being read."""

    hold: Hold | None


class Bounded(HttpToolsProtocol):
    """uvicorn's protocol, and a word or an end for whoever asks too much of it."""

    def __init__(self, config: Any, state: State, events: Events, intake: Intake) -> None:
        super().__init__(config, state, {})
        self._intake = intake
        self.intake: Intake | Proxied = intake
        """Where its requests go."""
        self._events = events
        self._state = state
        self._limits = state.limits
        self.url, self.headers = b"", []
        self._header_bytes = 0
        self._body_bytes = 0
        self._headers_done = True
        self._owns_cycle = False
        """Whether `cycle` is of the request that is being read; else of an earlier one, if it is still open."""
        self._length: int | None = None
        """Of the body that is being read, if its request said so."""
        self._rest = b""
        """What was read and is not parsed yet, from `_rest_at` on."""
        self._rest_at = 0
        self._file: int | None = None
        """By which more of its head is awaited, if that is not whole."""
        self._is_refused = False
        self._is_new = False
        """Whether the request being read began in this very read."""
        self._due: RequestError | None = None
        """A refusal that waits for the answers of earlier requests."""
        self._started: RequestResponseCycle | None = None
        self._unread_bytes = 0
        self.unread_hold: Hold | None = None
        self.reading_since: float | None = None
        self.unread_since: float | None = None
        self.idle_since: float | None = None
        self.address = ""
        """Where it is from; empty if that is not known."""
        self.has_seat = False
        """Whether it is counted among the connections of that address."""

    def go_on(self) -> None:
        """The last answer is read: read on, and answer what waits for that."""

    def let_go(self) -> None:
        """Forget what has come of the body that is being read."""

    def read(self, data: bytes) -> None:
        """Parse what came."""

    def read_piecemeal(self, data: bytes) -> None:
        """Parse much that came at once, in pieces: a read may hold ten thousand small requests, headers or chunks.

        As many requests are parsed as may wait, and as much of what is no body as costs the others no time that they
        notice; the rest waits, and nothing more is read. A body of known length is taken whole.
        """
        if self._rest:
            data = self._rest[self._rest_at :] + data
        self._rest, self._rest_at = data, 0
        self._read_rest()

    def _read_rest(self) -> None:
        data, at, no_body = self._rest, self._rest_at, 0
        self._rest, ends = b"", self._state.now() + TURN_S
        while at < len(data) and not self._is_refused:
            is_long = no_body > TURN_BYTES or (no_body > 0 and self._state.now() > ends)
            if len(self.pipeline) > PIPELINED or is_long:
                self._rest, self._rest_at = data, at  # no turn copies all that waits
                self.flow.pause_reading()
                if is_long:
                    self._state.laborious.wait(self)
                return
            before = self._body_bytes
            is_body = self._length is not None and self.reading_since is not None and self._headers_done
            size = max(PIECE, self._length - before) if is_body and self._length is not None else PIECE
            piece = data[at : at + size]
            self.read(piece)
            at += size
            no_body += len(piece) - (self._body_bytes - before)
            if self._is_new:
                no_body, ends = 0, self._state.now() + TURN_S
        if not self._headers_done:
            self.await_head()

    def read_on(self) -> None:
        """Parse the rest of what was read, and go on reading."""
        if self._rest and self.unread_since is None and not self.transport.is_closing():
            self.flow.resume_reading()
            self._read_rest()

    def await_first(self) -> None:
        """Wait for the first word, if it has not come."""
        if not self.url:
            self.await_head()

    def await_head(self) -> None:
        """Read on when more of the head has come, in turn with others of whom only a part has."""
        is_read = self._file is None and not self._is_refused and not self.flow.read_paused
        if is_read and self.scheme == "http":
            self._file = self._state.unfinished.wait(self)

    def hear(self) -> None:
        self._file = None
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest = b""
        if self._file is not None:
            self._state.unfinished.leave(self._file)
        super().connection_lost(exc)

    def _without_wish(self, rest: bytes) -> bytes:
        """The request that is being read once more, for a fresh parser, without its wish to upgrade; and the rest.

        The parser takes what follows such a head for another protocol: it would leave the body out, and read it as the
        next request if it came later.
        """
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

    def refused(self, error: RequestError, headers: list[tuple[bytes, bytes]], url: bytes) -> tuple[int, bytes, bytes]:
        """What a request is told that may not ask, though the connection goes on."""
        self._events.emit(TurnedAway(error.code))
        return self._problem(error, headers, url)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.reading_since = self.loop.time()
        if len(self.connections) > CROWD:
            self.loop.call_soon(self.await_first)  # it is not read yet
        most, count = self._limits.max_connections, len(self.connections)
        if count > 2 * most:
            self.cut("too_many_connections")  # so many are being told already that there is no room
        elif count > most:
            self._turn_away(
                Refusal(f"{most} connections are open already", code="too_many_connections", retry_after_s=1)
            )
        self.sit(None if self.client is None else self.client[0])

    def sit(self, address: str | None) -> None:
        """Count this connection for whoever it is from; a proxy that is believed brings requests of many."""
        self.address, proxies = address or "", self._state.proxies
        if proxies is not None and proxies.trusts(address):
            sock = self.transport.get_extra_info("socket")
            self.intake = Proxied(
                self._intake, proxies, self._state.peers, peer=self.address, back_s=lambda: way_back_s(sock)
            )
        elif address is not None:
            self.has_seat = True
            if not self._state.peers.come(address) and not self._is_refused:
                detail = f"your address has {self._state.peers.limit} connections open"
                self._turn_away(Refusal(detail, code="client_busy", retry_after_s=1))

    def pause_writing(self) -> None:
        self._watch_reading(self.loop.time())
        self.unread_hold = self._state.held.hold()
        self.unread_hold.stand_for(self.transport.get_write_buffer_size())
        super().pause_writing()

    def _watch_reading(self, now: float) -> None:
        self.unread_since, self._unread_bytes = now, self.unread()

    def unread(self) -> int:
        """The bytes of answers that have not reached the client, here or in the system.

        The system takes many at once: by what waits here alone, a slow but steady reader seems to pause for seconds.
        """
        sock = self.transport.get_extra_info("socket")
        try:
            (sent,) = struct.unpack("i", ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
        except (OSError, AttributeError):
            sent = 0  # it is closed
        return int(self.transport.get_write_buffer_size() + sent)

    def resume_writing(self) -> None:
        self.unread_since = self.unread_hold = None
        super().resume_writing()
        running = self._started
        if (running is None or running.response_complete) and not self._is_refused:
            self.go_on()

    def send_400_response(self, msg: str) -> None:
        self.refuse("malformed_http", msg)

    def sweep(self, now: float) -> None:
        """Turn away a client that takes too long to send a request or to read an answer."""
        if self.unread_since is None and self.transport.is_closing():
            self._watch_reading(now)  # its last answer, however small, may not wait for ever
        if self.unread_since is not None and not self._is_read(now, self.unread_since):
            return
        if self.idle_since is not None and now - self.idle_since > self.timeout_keep_alive:
            self.transport.close()
        if self.reading_since is None:
            return
        is_laborious = bool(self._rest) and len(self.pipeline) <= PIPELINED  # that is its own doing
        if self._due is not None or (self.flow.read_paused and not self._is_refused and not is_laborious):
            self.reading_since = now  # nothing is read from it now, or it still gets answers to earlier requests
        waited_s, longest_s = now - self.reading_since, self._limits.read_timeout
        if self._is_refused:
            if waited_s > min(_LINGER_S, longest_s):
                self.transport.abort()
        elif waited_s > longest_s:
            if self._headers_done and not self._owns_cycle:
                self.cut("silent")  # it never said a word
            else:
                self.refuse("slow_client", f"the request did not arrive within {longest_s:g} s")

    def _is_read(self, now: float, since: float) -> bool:
        """Whether a client whose answers wait to be read goes on reading them; it is cut if it does not."""
        unread = self.unread()
        if unread < self._unread_bytes:  # slow, but it reads
            self.unread_since, self._unread_bytes = now, unread
            if self.unread_hold is not None:
                self.unread_hold.stand_for(self.transport.get_write_buffer_size())
        elif now - since > self._limits.write_timeout:
            self.cut("slow_reader")
            return False
        elif self._state.held.is_over and now - since > _PATIENCE_S:
            self.cut("memory_full")
            return False
        return True

    def _to_app(self) -> None:
        """Have uvicorn run the app; it makes a scope first, which requests to models do without."""
        url, headers, expects_word = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects_word
        self.headers += headers
        super().on_headers_complete()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]

    def refuse(self, code: str, detail: str) -> None:
        """Answer the request being read with a problem and take no more; earlier ones still get their answers."""
        self._turn_away(RequestError(detail, code=code))

    def cut(self, code: str) -> None:
        """End the connection without a word."""
        self._events.emit(TurnedAway(code))
        self._state.cut_off += self.unread() > 0
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
        status, head, body = self._problem(error, self.headers, self.url)
        head += b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], self._state.head, head, body)))

    def _problem(self, error: RequestError, headers: list[tuple[bytes, bytes]], url: bytes) -> tuple[int, bytes, bytes]:
        status, media, body = said(error, url)
        head = b"content-type: %b\r\ncontent-length: %d\r\n" % (media, len(body)) + as_head(headers_of(error))
        if self._state.cors is not None and headers:
            head += as_head(self._state.cors.lines(headers))
        return status, head, body

    def _refuse_headers(self) -> None:
        self.refuse(
            "headers_too_large",
            f"request line and headers are over {self._limits.max_header} bytes or {MOST_LINES} lines",
        )

    def _refuse_path(self) -> bool:
        """Refuse a path with too many escapes; False if they are in the query, which is left to whom it is for."""
        if self.url.partition(b"?")[0].count(b"%") <= MOST_ESCAPES:
            return False
        self.refuse("headers_too_large", f"the path has over {MOST_ESCAPES} escapes such as %41")
        return True

    def _refuse_body(self) -> None:
        self.refuse("body_too_large", f"the body is over {self._limits.max_body} bytes")

    def _refuse_memory(self) -> None:
        detail = "too many large bodies are in memory now; send this one again a little later"
        self._turn_away(Refusal(detail, code="memory_full", retry_after_s=1))
