"""A request whose head is that of the one before it, byte for byte, is not parsed again, and answered as if it were."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
import uvloop

from timebound.admission import Held, Peers
from timebound.clock import MonotonicClock
from timebound.events import Events
from timebound.http.bounded import Limits, State
from timebound.http.connection import Connection
from timebound.http.intake import Intake
from timebound.http.routes import Routes
from timebound.types import Body, Deliver, ModelInfo, Outcome, Question, Result

INFO = ModelInfo(name="m", deadline_s=1.0, body=Body.RAW)
LIMITS = Limits(max_body=1_000, max_header=1_000, max_connections=100, read_timeout=5.0, write_timeout=5.0)
HEAD = "POST /predictions/m HTTP/1.1\r\nhost: h\r\n"


async def _elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Wire(asyncio.Transport):
    """The server's end of a connection without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5000) if name in ("peername", "sockname") else default

    def write(self, data: Any) -> None:
        self.written += b"" if self._is_closing else bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class CountingParser:
    """A parser that knows how often it was asked."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.reads = 0

    def feed_data(self, data: bytes) -> None:
        self.reads += 1
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class Server:
    """One connection to a model that answers with what it was sent; at once, or a turn later."""

    def __init__(self, *, is_quick: bool = True) -> None:
        self._is_quick = is_quick
        self.routes = Routes()
        self.routes.add(INFO)
        requests = SimpleNamespace(submit=self._submit, gone=lambda attempt, address: None)
        intake = Intake(requests, clock=MonotonicClock(), events=Events(), cap_s=60.0)
        state = State(limits=LIMITS, held=Held(10_000_000), peers=Peers(100), access=None, cors=None)
        config = uvicorn.Config(
            _elsewhere, http=Connection, ws="none", lifespan="off", log_config=None, access_log=False
        )
        config.load()
        self.wire = Wire()
        self.connection = Connection(config, state, intake=intake, routes=self.routes.by_path, events=Events())
        self.connection.connection_made(self.wire)
        self.parser = CountingParser(self.connection.parser)
        self.connection.parser = cast(Any, self.parser)

    def _submit(self, question: Question, deliver: Deliver) -> None:
        result = Result(Outcome(question.body + b"!"))
        if self._is_quick:
            deliver(result)
        else:
            asyncio.get_running_loop().call_soon(deliver, result)

    async def send(self, data: bytes) -> None:
        if not self.wire.is_closing():
            self.connection.data_received(data)

    async def bodies(self) -> list[bytes]:
        """Status and body of every answer so far."""
        for _ in range(50):
            await asyncio.sleep(0)
        found, rest = [], self.wire.written
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100"):
                continue  # said only where the body is not there yet
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            status, body, rest = head[9:12], rest[:length], rest[length:]
            found.append(status + b" " + (body if status == b"200" else b""))
        return found


def post(body: str, *lines: str, head: str = HEAD) -> bytes:
    return (
        f"{head}{''.join(line + chr(13) + chr(10) for line in lines)}content-length: {len(body)}\r\n\r\n{body}".encode()
    )


def test_the_head_of_a_request_like_the_one_before_is_not_parsed_again() -> None:
    async def run() -> None:
        server = Server()
        for number in range(10, 20):
            await server.send(post(str(number)))
        assert await server.bodies() == [b"200 %d!" % number for number in range(10, 20)]
        assert server.parser.reads == 2  # the first has no other before it on its connection
        await server.send(post("a longer one"))
        await server.send(post("20"))
        assert (await server.bodies())[-2:] == [b"200 a longer one!", b"200 20!"]
        assert server.parser.reads == 4

    uvloop.run(run())


def test_a_model_that_is_gone_is_not_answered_for_because_it_was_asked_before() -> None:
    async def run() -> None:
        server = Server()
        for _ in range(3):
            await server.send(post("aa"))
        server.routes.remove("m")
        await server.send(post("aa"))
        assert await server.bodies() == [b"200 aa!"] * 3 + [b"404 "]

    uvloop.run(run())


PIECES = (
    post("aa"), post("bb"), post("aaa"), post("aa", "x-other: 1"), post("aa", "Expect: 100-continue"),
    post("aa", head=HEAD.replace("/m", "/none")), post(""), post("aa") + post("bb"), post("aa") + b"\r\n",
    b"\r\n" + post("aa"), post("aa", "upgrade: other", "connection: upgrade"), post("aa", "connection: keep-alive"),
    HEAD.encode() + b"transfer-encoding: chunked\r\n\r\n2\r\naa\r\n0\r\n\r\n",
    post("aa")[:-1], b"a", post("aa")[:20], post("aa")[20:], b"GET /livez HTTP/1.1\r\nhost: h\r\n\r\n",
)  # fmt: skip
ENDS = (
    post("aa", "connection: close"), post("aa", head=HEAD.replace("1.1", "1.0")), b"nonsense\r\n\r\n",
    post("a" * 1_001), post("aa", "host: again"),
)  # fmt: skip


def test_whatever_comes_is_answered_as_if_every_byte_of_it_had_been_parsed() -> None:
    async def run() -> None:
        rng, repeated = random.Random(19), 0
        for turn in range(600):
            pieces = [piece for _ in range(6) for piece in [rng.choice(PIECES)] * rng.choice((1, 1, 2, 4))]
            pieces.append(rng.choice(ENDS))
            in_pieces, by_byte = Server(is_quick=turn % 2 == 0), Server()
            for piece in pieces:
                await in_pieces.send(piece)
                if rng.random() < 0.8:
                    await in_pieces.bodies()
            for byte in b"".join(pieces):
                await by_byte.send(bytes([byte]))
                await asyncio.sleep(0)
            assert await in_pieces.bodies() == await by_byte.bodies(), pieces
            repeated += in_pieces.parser.reads < len(pieces)
        assert repeated > 200

    uvloop.run(run())
