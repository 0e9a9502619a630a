"""`Client`: asks from ordinary code, and from several threads at once."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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

if TYPE_CHECKING:
    import ssl

    from numpy.typing import ArrayLike, NDArray

Value = TypeVar("Value")
Now: TypeAlias = Callable[[], float]

_CHUNK = 1 << 16
_ONE_WRITE = 1 << 16
"""Bytes of a body that go out together with its head: one packet more often than two."""


class Client(Asking):
    """`Client("http://host:8000")`; of several URLs the next is asked where one fails. Close it, or use `with`."""

    def __init__(self, *urls: str, **settings: Unpack[Settings]) -> None:
        super().__init__(urls, settings)
        self._pool: Pool[_Connection] = Pool()
        self._seats = threading.Semaphore(self._connections)
        self._rest = threading.Event()  # never set: waiting for it is a pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections; those in use are closed when their answer is here."""
        self._pool.close()

    @overload
    def ask(self, model: str, item: Any, *, type: type[Value], **options: Unpack[Options]) -> Answer[Value]: ...
    @overload
    def ask(self, model: str, item: Any, **options: Unpack[Options]) -> Answer[Any]: ...
    def ask(self, model: str, item: Any, *, type: Any = Any, **options: Unpack[Options]) -> Answer[Any]:
        """A model's answer to one item: bytes as they are, anything else as JSON.

        `model` is its name, or its path if it begins with a slash. `type` is what the answer's JSON is decoded into.
        Raises a `CallFailed` that says why there is no answer; nothing takes longer than the deadline.
        """
        return self._answer(self._asked(model, item, options), as_kind(type))

    def infer(
        self, model: str, inputs: Mapping[str, ArrayLike], **options: Unpack[TensorOptions]
    ) -> Answer[dict[str, NDArray[Any]]]:
        """A model's outputs, by name, for arrays by the names of its inputs; their first dimension counts the items.

        Arrays travel in binary, by the Open Inference Protocol: see docs/client.md. The rest is as with `ask`.
        """
        return self._answer(self._inferred(model, inputs, options), outputs_in)

    @overload
    def result(self, model: str, key: str, *, type: type[Value], deadline: float | None = None) -> Answer[Value]: ...
    @overload
    def result(self, model: str, key: str, *, deadline: float | None = None) -> Answer[Any]: ...
    def result(self, model: str, key: str, *, type: Any = Any, deadline: float | None = None) -> Answer[Any]:
        """The kept answer to a key. With a `deadline` one that is still in work is waited for, else it is `Busy`."""
        return self._answer(self._sought(model, key, deadline), as_kind(type))

    def feedback(self, model: str, key: str, *, right: bool, label: str = "") -> None:
        """Say whether the answer to a key was right, for a server with a history; of a wrong one, what is right."""
        self._run(self._judged(model, key, right=right, label=label))

    def stream(self, model: str, item: Any, *, type: Any = Any, **options: Unpack[Options]) -> Iterator[Event[Any]]:
        """Each better answer of an ensemble, or each piece of an answer, as soon as it is there; the last `is_final`.

        Takes what `ask` takes. Until the first event it is sent again as by `ask`; after that a `CallFailed` ends it.
        Leave the loop, or close the generator, to leave the server.
        """
        asked = self._asked(model, item, options)
        question = msgspec.structs.replace(asked, lines=[*asked.lines, ACCEPT])
        opened: Opened = []
        try:
            reply, _, server = self._run(question, partial(self._exchange, opened=opened))
            if not opened:
                yield from read_events(reply, type)
                return
            ((connection, reader, until),) = opened
            with broken_off(server):
                while True:
                    for event in reader.take():
                        yield (said := read_event(event, type, reply))
                        if said.is_final:
                            return
                    reader.feed(connection.more(until, self._around.clock.now))
        finally:
            for connection, _, _ in opened:
                connection.close()

    def models(self) -> list[Served]:
        """What a server serves now."""
        return models_in(self._run(self._listed())[0])

    def _answer(self, question: Question, read: Read) -> Answer[Any]:
        began = self._around.clock.now()
        ended = self._run(question)
        return answered(ended, read, question.key, self._around.clock.now() - began)

    def _run(
        self, question: Question, exchange: Callable[[Attempt], Reply | Lost] | None = None
    ) -> tuple[Reply, int, str]:
        following = steps(question, self._around)
        said: Reply | Lost | None = None
        while True:
            try:
                step = following.send(said)
            except StopIteration as end:
                ended: tuple[Reply, int, str] = end.value
                return ended
            if isinstance(step, Attempt):
                said = (exchange or self._exchange)(step)
            else:
                said = None
                self._rest.wait(step.seconds)

    def _exchange(self, attempt: Attempt, opened: Opened | None = None) -> Reply | Lost:
        if not self._seats.acquire(timeout=max(0.0, attempt.until - self._around.clock.now())):
            return Lost("all connections of this client were busy", is_down=False)
        try:
            return self._sent(attempt, opened)
        finally:
            self._seats.release()

    def _sent(self, attempt: Attempt, opened: Opened | None) -> Reply | Lost:
        """One attempt; a connection that had gone stale while it was idle does not count as one.

        A connection on which events follow goes to `opened`.
        """
        address, now = attempt.address, self._around.clock.now
        while True:
            connection = self._pool.take(address, now())
            is_fresh = connection is None
            try:
                connection = connection or _connect(address, self._tls, attempt.connect_until, now)
            except OSError as error:
                return lost(error)
            reader, keeps, is_open = Reader() if opened is None else EventReader(), False, False
            try:
                reply = connection.exchange(attempt, reader, now)
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
                    self._pool.put(address, connection, now())
                elif not is_open:
                    connection.close()


class _Connection:
    """One socket, for one call at a time."""

    def __init__(self, sock: socket.socket, way_s: float) -> None:
        self._sock = sock
        self._way_s = way_s
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Whether nothing has come since: what an idle server says is that it leaves."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._sock.close()

    def exchange(self, attempt: Attempt, reader: Reader, now: Now) -> Reply:
        """Send and read; raises `TimeoutError`, another `OSError`, or `NotHttp`."""
        sock, body, until = self._sock, attempt.question.body or b"", attempt.until
        head = attempt.head(now(), self._way_s)
        try:
            if len(body) <= _ONE_WRITE:
                head, body = head + body, b""
            sock.settimeout(_left(until, now))
            sock.sendall(head)
            if body:
                sock.settimeout(_left(until, now))
                sock.sendall(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have said why before it closed
        while True:
            data = self._received(until, now)
            if not data:
                return reader.end()
            if (reply := reader.feed(data)) is not None:
                return reply

    def more(self, until: float, now: Now) -> bytes:
        """What comes next; raises `TimeoutError`, or another `OSError` at the end."""
        if not (data := self._received(until, now)):
            raise ConnectionResetError("connection closed")
        return data

    def _received(self, until: float, now: Now) -> bytes:
        self._sock.settimeout(_left(until, now))
        return self._sock.recv(_CHUNK)


Opened: TypeAlias = list[tuple[_Connection, EventReader, float]]


def _left(until: float, now: Now) -> float:
    left = until - now()
    if left <= 0:
        raise TimeoutError
    return left


def _connect(address: Address, tls: ssl.SSLContext | None, until: float, now: Now) -> _Connection:
    """A connection to the first of a name's addresses that takes one; raises `OSError`."""
    problem: OSError = OSError("the name has no address")
    for family, kind, protocol, _, place in _resolve(address, until, now):
        sock = socket.socket(family, kind, protocol)
        try:
            began = now()
            sock.settimeout(_left(until, now))
            sock.connect(place)
            way_s = now() - began  # one round trip, as a question and its answer take
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls and tls is not None:
                sock.settimeout(_left(until, now))
                sock = tls.wrap_socket(sock, server_hostname=address.host)
            return _Connection(sock, way_s)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
    raise problem


def _resolve(address: Address, until: float, now: Now) -> Sequence[tuple[Any, ...]]:
    """A name's addresses. The system's resolver knows no timeout, so a thread waits for it in our place."""
    try:
        return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # it is a name
    found: list[Sequence[tuple[Any, ...]] | OSError] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    looker.join(_left(until, now))
    if not found:
        raise TimeoutError
    (said,) = found
    if isinstance(said, OSError):
        raise said
    return said
