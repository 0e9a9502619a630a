"""`AsyncClient`: the same as `Client`, awaited."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, overload

import msgspec

from timebound.client.address import Address
from timebound.client.answer import Answer, Read, as_kind
from timebound.client.asking import Asking, Options, Served, Settings, TensorOptions, models_in
from timebound.client.call import Attempt, Lost, Question, answered, broken_off, lost, steps
from timebound.client.events import ACCEPT, Event, EventReader, read_event, read_events
from timebound.client.message import NotHttp, Reader, Reply
from timebound.client.pool import Pool
from timebound.client.tensors import outputs_in
from timebound.clock import Clock

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Value = TypeVar("Value")

_CHUNK = 1 << 16


class AsyncClient(Asking):
    """As `Client`, for one event loop. Close it, or use `async with`."""

    def __init__(self, *urls: str, **settings: Unpack[Settings]) -> None:
        super().__init__(urls, settings)
        self._pool: Pool[_Connection] = Pool()
        self._seats = asyncio.Semaphore(self._connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close idle connections; those in use are closed when their answer is here."""
        for connection in self._pool.close():
            await connection.closed()

    @overload
    async def ask(self, model: str, item: Any, *, type: type[Value], **options: Unpack[Options]) -> Answer[Value]: ...
    @overload
    async def ask(self, model: str, item: Any, **options: Unpack[Options]) -> Answer[Any]: ...
    async def ask(self, model: str, item: Any, *, type: Any = Any, **options: Unpack[Options]) -> Answer[Any]:
        """A model's answer to one item, as `Client.ask`. Who is cancelled has left: the server sees it."""
        return await self._answer(self._asked(model, item, options), as_kind(type))

    async def infer(
        self, model: str, inputs: Mapping[str, ArrayLike], **options: Unpack[TensorOptions]
    ) -> Answer[dict[str, NDArray[Any]]]:
        """As `Client.infer`."""
        return await self._answer(self._inferred(model, inputs, options), outputs_in)

    @overload
    async def result(
        self, model: str, key: str, *, type: type[Value], deadline: float | None = None
    ) -> Answer[Value]: ...
    @overload
    async def result(self, model: str, key: str, *, deadline: float | None = None) -> Answer[Any]: ...
    async def result(self, model: str, key: str, *, type: Any = Any, deadline: float | None = None) -> Answer[Any]:
        """The kept answer to a key. With a `deadline` one that is still in work is waited for, else it is `Busy`."""
        return await self._answer(self._sought(model, key, deadline), as_kind(type))

    async def feedback(self, model: str, key: str, *, right: bool, label: str = "") -> None:
        """As `Client.feedback`."""
        await self._run(self._judged(model, key, right=right, label=label))

    async def stream(
        self, model: str, item: Any, *, type: Any = Any, **options: Unpack[Options]
    ) -> AsyncGenerator[Event[Any], None]:
        """As `Client.stream`, for `async for`. To leave before the last event, `aclose` it or cancel the task."""
        asked = self._asked(model, item, options)
        question = msgspec.structs.replace(asked, lines=[*asked.lines, ACCEPT])
        opened: Opened = []
        try:
            reply, _, server = await self._run(question, partial(self._exchange, opened=opened))
            if not opened:
                for event in read_events(reply, type):
                    yield event
                return
            ((connection, reader, until),) = opened
            with broken_off(server):
                while True:
                    for text in reader.take():
                        yield (said := read_event(text, type, reply))
                        if said.is_final:
                            return
                    async with asyncio.timeout(until - self._around.clock.now()):
                        reader.feed(await connection.more())
        finally:
            for connection, _, _ in opened:
                connection.close()

    async def models(self) -> list[Served]:
        """What a server serves now."""
        return models_in((await self._run(self._listed()))[0])

    async def _answer(self, question: Question, read: Read) -> Answer[Any]:
        began = self._around.clock.now()
        ended = await self._run(question)
        return answered(ended, read, question.key, self._around.clock.now() - began)

    async def _run(
        self, question: Question, exchange: Callable[[Attempt], Awaitable[Reply | Lost]] | None = None
    ) -> tuple[Reply, int, str]:
        following, said = steps(question, self._around), None
        while True:
            try:
                step = following.send(said)
            except StopIteration as end:
                ended: tuple[Reply, int, str] = end.value
                return ended
            said = await (
                (exchange or self._exchange)(step) if isinstance(step, Attempt) else asyncio.sleep(step.seconds)
            )

    async def _exchange(self, attempt: Attempt, opened: Opened | None = None) -> Reply | Lost:
        try:
            async with asyncio.timeout(attempt.until - self._around.clock.now()):
                await self._seats.acquire()
        except TimeoutError:
            return Lost("all connections of this client were busy", is_down=False)
        try:
            return await self._sent(attempt, opened)
        finally:
            self._seats.release()

    async def _sent(self, attempt: Attempt, opened: Opened | None) -> Reply | Lost:
        """One attempt; a connection that had gone stale while it was idle does not count as one.

        A connection on which events follow goes to `opened`.
        """
        address, clock = attempt.address, self._around.clock
        while True:
            connection = self._pool.take(address, clock.now())
            is_fresh = connection is None
            try:
                connection = connection or await _connect(address, self._tls, attempt.connect_until, clock)
            except OSError as error:
                return lost(error)
            reader, keeps, is_open = Reader() if opened is None else EventReader(), False, False
            try:
                async with asyncio.timeout(attempt.until - clock.now()):
                    reply = await connection.exchange(attempt, reader, clock.now())
                keeps = reader.stays
                if opened is not None and isinstance(reader, EventReader) and reader.goes_on:
                    is_open = True
                    opened.append((connection, reader, attempt.until))
                return reply
            except TimeoutError:
                return Lost("no answer in time", is_down=False)
            except (OSError, NotHttp) as error:
                self._pool.drop(address)
                if is_fresh or reader.has_begun:
                    return lost(error)
            finally:
                if keeps:
                    self._pool.put(address, connection, clock.now())
                elif not is_open:
                    connection.close()


class _Connection:
    """One stream, for one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._way_s = way_s
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.transport.abort()  # at once: there is nothing left to send

    async def closed(self) -> None:
        """Wait until it is."""
        with suppress(OSError):
            await self._writer.wait_closed()

    async def exchange(self, attempt: Attempt, reader: Reader, now: float) -> Reply:
        """Send and read; raises `OSError` or `NotHttp`."""
        self._writer.write(attempt.head(now, self._way_s))
        if attempt.question.body:
            self._writer.write(attempt.question.body)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have said why before it closed
            await self._writer.drain()
        while data := await self._reader.read(_CHUNK):
            if (reply := reader.feed(data)) is not None:
                return reply
        return reader.end()

    async def more(self) -> bytes:
        """What comes next; raises `OSError` at the end."""
        if not (data := await self._reader.read(_CHUNK)):
            raise ConnectionResetError("connection closed")
        return data


Opened: TypeAlias = list[tuple[_Connection, EventReader, float]]


async def _connect(address: Address, tls: ssl.SSLContext | None, until: float, clock: Clock) -> _Connection:
    """A connection to the first of a name's addresses that takes one; raises `OSError`."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError("the name has no address")
    async with asyncio.timeout(until - clock.now()):
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                began = clock.now()
                await loop.sock_connect(sock, place)
                way_s = clock.now() - began  # one round trip, as a question and its answer take
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                name = address.host if address.is_tls else None
                streams = await asyncio.open_connection(sock=sock, ssl=tls if name else None, server_hostname=name)
                return _Connection(*streams, way_s)
            except OSError as error:
                sock.close()
                problem = error
            except BaseException:
                sock.close()
                raise
    raise problem
