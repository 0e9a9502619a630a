"""Looks at heavy bodies elsewhere: what JSON says of its key and size, and any body's fingerprint.

A protocol that makes several items of a body has a reader of its own, a module that is named to the process.

To read ten megabytes of JSON takes 10 ms and more, and msgspec keeps the interpreter lock meanwhile: a thread would
hold up everybody's answers just as the event loop would. So a thread hands such a body to a process of its own, started
when the first one comes, as `python -m timebound.reading FD`; it knows nothing but schemas. A hash lets go of the lock,
and is made in the thread itself. Whose body is next, `turns.py` says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import count
from math import inf
from typing import Any, TypeAlias

import msgspec

from timebound.body import FirstLook
from timebound.clock import MonotonicClock
from timebound.errors import DeadlineMissed, Refusal, RequestError
from timebound.store.fingerprint import has_tiny_numbers, of_bytes, of_json
from timebound.turns import Turns
from timebound.types import Body, ModelInfo
from timebound.workers.spawn import spawn

log = logging.getLogger("timebound.reading")
_CLOCK = MonotonicClock()

LIGHT = 1_500
"""Bytes of a body that nobody need look at before it is read: it takes less than a millisecond whatever is in it."""
_LIGHT_TO_PRINT, _LIGHT_TO_SEE, _LIGHT_TEXT = 16_000, 64_000, 256_000
"""The same if it holds no numbers that take long: with a fingerprint to make; without; and if it has few values."""
_FEW_VALUES = 500
LIMIT_S = 1.0
"""A body that takes longer is made to take long."""
_NICER = 5
"""Below the gateway, above the workers, which wait for it."""

Looked: TypeAlias = tuple[str | None, float, bytes]
"""A body's key and size as `FirstLook` finds them, and its fingerprint; empty if none was needed."""
Done: TypeAlias = Callable[[Looked | bytes | RequestError], None]
"""Gets what was found; of a reader, what that says."""

_HEAD = struct.Struct("<IQI?")  # bytes of the facts, of what comes before the body and of it, and if a print is needed


class _Facts(msgspec.Struct, frozen=True, tag="look"):
    """What must be known of a model to look at a body."""

    request_schema: dict[str, object] | None
    key: str | None
    size_field: str | None
    key_ignore: list[str]


class Errand(msgspec.Struct, frozen=True):
    """What a reader is to do. Its module has `open_reader(facts)`: a function of what is told and a body."""

    reader: str
    facts: bytes
    told: bytes


class _Known(msgspec.Struct, frozen=True, tag="read"):
    """A reader, and the model it reads for."""

    reader: str
    facts: bytes


class _Said(msgspec.Struct, frozen=True):
    key: str | None = None
    size: float = 1.0
    fingerprint: bytes = b""
    code: str = ""
    """Why it is refused, if it is."""
    detail: str = ""
    field: str | None = None
    read: bytes | None = None
    """What a reader says."""


def is_heavy(body: bytes, info: ModelInfo, *, needs_print: bool) -> bool:
    """Whether reading this body might cost the event loop more than a millisecond."""
    size = len(body)
    if info.body is not Body.JSON:
        return needs_print and size > _LIGHT_TEXT
    if size > _LIGHT_TEXT or has_tiny_numbers(body):
        return True
    if size <= (_LIGHT_TO_PRINT if needs_print or info.key else _LIGHT_TO_SEE):
        return False
    at = 0
    for _ in range(_FEW_VALUES):  # a picture in a text has few commas, and a search for one takes a microsecond
        at = body.find(b",", at) + 1
        if not at:
            return False
    return True


class _Job(msgspec.Struct, eq=False):
    """A body to be looked at, and what must be known for it."""

    facts: bytes
    told: bytes
    body: bytes
    needs_print: bool


class Reading:
    """Hands bodies to processes, senders in turn; what these say comes back on the event loop.

    There is one process. Once a sender's bodies take long there is a second one, for everybody else's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count()
        self._asked: dict[int, Done] = {}  # only the loop's thread changes it, and only there are its objects let go
        self._turns: Turns[_Job] = Turns(_CLOCK.now)
        self._readers: list[_Reader] = []
        self._is_closed = False

    def __len__(self) -> int:
        """How many bodies are being looked at, or wait for it."""
        return len(self._asked)

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return [reader.pid for reader in self._readers if reader.pid]

    def look(
        self, info: ModelInfo, body: bytes, done: Done, *, needs_print: bool, sender: str = "", until: float = inf
    ) -> Callable[[], None]:
        """Have a body looked at, then `done` called, once. Call what is returned when nobody wants to know any more.

        What cannot be in time, `until` on the monotonic clock, is not looked at. Raises `Refusal` if too many wait.
        """
        facts = b""
        if info.body is Body.JSON:
            facts = msgspec.msgpack.encode(_Facts(info.request_schema, info.key, info.size_field, info.key_ignore))
        return self._hand_over(_Job(facts, b"", body, needs_print), done, sender, until)

    def read(
        self, errand: Errand, body: bytes, done: Done, *, sender: str = "", until: float = inf
    ) -> Callable[[], None]:
        """The same by a reader of the protocol's own."""
        facts = msgspec.msgpack.encode(_Known(errand.reader, errand.facts))
        return self._hand_over(_Job(facts, errand.told, body, needs_print=False), done, sender, until)

    def _hand_over(self, job: _Job, done: Done, sender: str, until: float) -> Callable[[], None]:
        number = next(self._numbers)
        if not self._turns.put(number, job, sender, until):
            detail = "too many large bodies wait to be read; send this one again a little later"
            raise Refusal(detail, code="overloaded", retry_after_s=1)
        self._asked[number] = done
        if not self._readers:
            self._start_reader(is_for_quick=False)
        return partial(self._forget, number)

    def _start_reader(self, *, is_for_quick: bool) -> None:
        if not self._is_closed and len(self._readers) == is_for_quick:
            self._readers.append(reader := _Reader())
            start_new_thread(self._work, (reader, is_for_quick))

    def _forget(self, number: int) -> None:
        self._turns.drop(number)
        self._asked.pop(number, None)

    async def looked(
        self, info: ModelInfo, body: bytes, *, needs_print: bool, sender: str = "", until: float = inf
    ) -> Looked:
        """The same for who can wait; raises what is wrong with the body."""
        found: asyncio.Future[Any] = self._loop.create_future()
        forget = self.look(info, body, found.set_result, needs_print=needs_print, sender=sender, until=until)
        try:
            looked: Looked | RequestError = await found
        finally:
            forget()
        if isinstance(looked, RequestError):
            raise looked
        return looked

    def close(self) -> None:
        """Look at nothing any more, and let the processes go."""
        self._is_closed = True
        self._asked.clear()
        self._turns.close()
        for reader in self._readers:
            reader.close()

    def _tell(self, number: int, looked: Looked | bytes | RequestError) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done(looked)

    # ------------------------------------------------------------------ in a reader's thread

    def _work(self, reader: _Reader, is_for_quick: bool) -> None:
        while (turn := self._turns.take(is_for_quick=is_for_quick)) is not None:
            number, sender, job = turn
            looked: Looked | bytes | RequestError = DeadlineMissed("the deadline would come while the body was read")
            takes_long = False
            if job is not None:
                began = _CLOCK.now()
                looked = reader.look(job) if job.facts else (None, 1.0, of_bytes(job.body))
                takes_long = self._turns.took(sender, _CLOCK.now() - began)
            turn = job = None
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._tell, number, looked)
                if takes_long:
                    self._loop.call_soon_threadsafe(partial(self._start_reader, is_for_quick=True))
        reader.end()


class _Reader:
    """One process and its socket; but for `close` all of it happens in one thread."""

    def __init__(self) -> None:
        self.pid = 0
        self._sock: socket.socket | None = None
        self._is_closed = False

    def look(self, job: _Job) -> Looked | bytes | RequestError:
        """What the process says of a body."""
        for _ in range(2):  # the process may have been killed since it was last asked
            try:
                sock = self._sock or self._start()
                head = _HEAD.pack(len(job.facts), len(job.body), len(job.told), job.needs_print)
                sock.sendall(head + job.facts + job.told)
                sock.sendall(job.body)
                said = msgspec.msgpack.decode(_read(sock, _LENGTH.unpack(_read(sock, _LENGTH.size))[0]), type=_Said)
            except TimeoutError:
                self.end()
                return RequestError("the body takes too long to read", code="bad_input")
            except (OSError, EOFError, msgspec.DecodeError) as error:
                if self._is_closed:
                    break
                log.warning("the process that reads large bodies was lost: %s", error or type(error).__name__)
                self.end()
            else:
                return RequestError(said.detail, code=said.code, field=said.field) if said.code else _found(said)
        return RequestError("large bodies cannot be read now", code="not_ready")

    def close(self) -> None:
        """Whoever waits for what it says waits no more."""
        self._is_closed = True
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(10.0)  # until it has answered once: a busy machine takes long to start it
            number = theirs.fileno()
            self.pid = spawn(
                [sys.executable, "-m", "timebound.reading", str(number)], dict(os.environ), {number: number}
            )
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))
        self._sock = ours
        _read(ours, 1)
        ours.settimeout(LIMIT_S)
        return ours

    def end(self) -> None:
        """Let the process go."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self.pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def _found(said: _Said) -> Looked | bytes:
    return said.read if said.read is not None else (said.key, said.size, said.fingerprint)


# ---------------------------------------------------------------------- the process

_LENGTH = struct.Struct("<I")


def main(arguments: list[str]) -> int:
    """Look at bodies until the gateway closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; when to leave is told
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(arguments[0]))
    sock.sendall(b"!")
    known: dict[bytes, Say] = {}
    with suppress(EOFError, OSError):
        while True:
            facts_size, size, told_size, needs_print = _HEAD.unpack(_read(sock, _HEAD.size))
            facts, told = bytes(_read(sock, facts_size)), bytes(_read(sock, told_size))
            body = bytes(_read(sock, size))
            if facts not in known:
                known = {} if len(known) > 64 else known
                known[facts] = _open(facts)
            said = msgspec.msgpack.encode(_say(known[facts], told, body, needs_print=needs_print))
            sock.sendall(_LENGTH.pack(len(said)) + said)
    return 0


Say: TypeAlias = Callable[[bytes, bytes, bool], _Said]
"""Takes what is told of a body, the body, and whether a fingerprint is needed."""


def _open(facts: bytes) -> Say:
    told = msgspec.msgpack.decode(facts, type=_Known | _Facts)
    if isinstance(told, _Known):
        reader = import_module(told.reader).open_reader(told.facts)
        return lambda more, body, _: _Said(read=reader(more, body))
    info = ModelInfo(name="", request_schema=told.request_schema, key=told.key, size_field=told.size_field)
    return partial(_first_look, FirstLook(info), frozenset(told.key_ignore))


def _first_look(shape: FirstLook, ignore: frozenset[str], _: bytes, body: bytes, needs_print: bool) -> _Said:
    key, size = shape.check(body)
    return _Said(key, size, of_json(body, ignore) if needs_print or key else b"")


def _say(say: Say, told: bytes, body: bytes, *, needs_print: bool) -> _Said:
    try:
        return say(told, body, needs_print)
    except RequestError as error:
        return _Said(code=error.code, detail=error.detail, field=error.field)
    except Exception as error:  # one odd body must not cost those after it their reader
        return _Said(code="bad_input", detail=f"the body cannot be read ({type(error).__name__})")


def _read(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        received = sock.recv_into(view[filled:])
        if not received:
            raise EOFError
        filled += received
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
