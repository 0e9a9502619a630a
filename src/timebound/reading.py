"""Looks at heavy bodies elsewhere: what JSON says of its key and size, and any body's fingerprint.

A protocol that makes several items of a body has a reader of its own, a module that is named to the process.

To read ten megabytes of JSON takes 10 ms and more, and msgspec keeps the interpreter lock meanwhile: a thread would
hold up everybody's answers just as the event loop would. So a thread hands such a body to a process of its own, started
when the first one comes, as `python -m timebound.reading FD`; it knows nothing but schemas. A hash lets go of the lock,
and is made in the thread itself.
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
from queue import SimpleQueue
from typing import Any, TypeAlias

import msgspec

from timebound.body import FirstLook
from timebound.errors import RequestError
from timebound.store.fingerprint import has_tiny_numbers, of_bytes, of_json
from timebound.types import Body, ModelInfo
from timebound.workers.spawn import spawn

log = logging.getLogger("timebound.reading")

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


class Reading:
    """Hands bodies to the process, one after the other; what it says comes back on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count()
        self._asked: dict[int, Done] = {}  # only the loop's thread changes it, and only there are its objects let go
        self._bodies: SimpleQueue[tuple[int, bytes, bytes, bytes, bool] | None] = SimpleQueue()
        self._is_started = self._is_closed = False
        self._pid = 0
        self._sock: socket.socket | None = None

    def __len__(self) -> int:
        """How many bodies are being looked at, or wait for it."""
        return len(self._asked)

    def look(self, info: ModelInfo, body: bytes, done: Done, *, needs_print: bool) -> Callable[[], None]:
        """Have a body looked at, then `done` called, once. Call what is returned when nobody wants to know any more."""
        facts = b""
        if info.body is Body.JSON:
            facts = msgspec.msgpack.encode(_Facts(info.request_schema, info.key, info.size_field, info.key_ignore))
        return self._hand_over(facts, b"", body, done, needs_print=needs_print)

    def read(self, errand: Errand, body: bytes, done: Done) -> Callable[[], None]:
        """The same by a reader of the protocol's own."""
        facts = msgspec.msgpack.encode(_Known(errand.reader, errand.facts))
        return self._hand_over(facts, errand.told, body, done, needs_print=False)

    def _hand_over(
        self, facts: bytes, told: bytes, body: bytes, done: Done, *, needs_print: bool
    ) -> Callable[[], None]:
        number = next(self._numbers)
        self._asked[number] = done
        self._bodies.put((number, facts, told, body, needs_print))
        if not self._is_started:
            self._is_started = True
            start_new_thread(self._work, ())
        return partial(self._forget, number)

    def _forget(self, number: int) -> None:
        self._asked.pop(number, None)

    async def looked(self, info: ModelInfo, body: bytes, *, needs_print: bool) -> Looked:
        """The same for who can wait; raises what is wrong with the body."""
        found: asyncio.Future[Any] = self._loop.create_future()
        forget = self.look(info, body, found.set_result, needs_print=needs_print)
        try:
            looked: Looked | RequestError = await found
        finally:
            forget()
        if isinstance(looked, RequestError):
            raise looked
        return looked

    def close(self) -> None:
        """Look at nothing any more, and let the process go."""
        self._is_closed = True
        self._asked.clear()
        self._bodies.put(None)
        if (sock := self._sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------------ in its thread

    def _work(self) -> None:
        while (job := self._bodies.get()) is not None and not self._is_closed:
            number, facts, told, body, needs_print = job
            job = None
            if number in self._asked:
                looked = (
                    self._look(facts, told, body, needs_print=needs_print) if facts else (None, 1.0, of_bytes(body))
                )
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._tell, number, looked)
        self._end()

    def _tell(self, number: int, looked: Looked | bytes | RequestError) -> None:
        if (done := self._asked.pop(number, None)) is not None:
            done(looked)

    def _look(self, facts: bytes, told: bytes, body: bytes, *, needs_print: bool) -> Looked | bytes | RequestError:
        for _ in range(2):  # the process may have been killed since it was last asked
            try:
                sock = self._sock or self._start()
                sock.sendall(_HEAD.pack(len(facts), len(body), len(told), needs_print) + facts + told)
                sock.sendall(body)
                said = msgspec.msgpack.decode(_read(sock, _LENGTH.unpack(_read(sock, _LENGTH.size))[0]), type=_Said)
            except TimeoutError:
                self._end()
                return RequestError("the body takes too long to read", code="bad_input")
            except (OSError, EOFError, msgspec.DecodeError) as error:
                if self._is_closed:
                    break
                log.warning("the process that reads large bodies was lost: %s", error or type(error).__name__)
                self._end()
            else:
                return RequestError(said.detail, code=said.code, field=said.field) if said.code else _found(said)
        return RequestError("large bodies cannot be read now", code="not_ready")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(10.0)  # until it has answered once: a busy machine takes long to start it
            number = theirs.fileno()
            self._pid = spawn(
                [sys.executable, "-m", "timebound.reading", str(number)], dict(os.environ), {number: number}
            )
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER))
        self._sock = ours
        _read(ours, 1)
        ours.settimeout(LIMIT_S)
        return ours

    def _end(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0


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
