"""The process that reads bodies: `python -m timebound.reading.process FD`. It knows nothing but schemas."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TypeAlias

import msgspec

from timebound.body import FirstLook
from timebound.errors import RequestError
from timebound.reading.wire import HEAD, LENGTH, Facts, Known, Said, receive
from timebound.store.fingerprint import of_json
from timebound.types import ModelInfo


def main(arguments: list[str]) -> int:
    """Look at bodies until the gateway closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; when to leave is told
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock = socket.socket(fileno=int(arguments[0]))
    sock.sendall(b"!")
    known: dict[bytes, Say] = {}
    with suppress(EOFError, OSError):
        while True:
            facts_size, size, told_size, needs_print = HEAD.unpack(receive(sock, HEAD.size))
            facts, told = bytes(receive(sock, facts_size)), bytes(receive(sock, told_size))
            body = bytes(receive(sock, size))
            if facts not in known:
                known = {} if len(known) > 64 else known
                known[facts] = _open(facts)
            said = msgspec.msgpack.encode(_say(known[facts], told, body, needs_print=needs_print))
            sock.sendall(LENGTH.pack(len(said)) + said)
    return 0


Say: TypeAlias = Callable[[bytes, bytes, bool], Said]
"""Takes what is told of a body, the body, and whether a fingerprint is needed."""


def _open(facts: bytes) -> Say:
    told = msgspec.msgpack.decode(facts, type=Known | Facts)
    if isinstance(told, Known):
        reader = import_module(told.reader).open_reader(told.facts)
        return lambda more, body, _: Said(read=reader(more, body))
    info = ModelInfo(name="", request_schema=told.request_schema, key=told.key, size_field=told.size_field)
    return partial(_first_look, FirstLook(info), frozenset(told.key_ignore))


def _first_look(shape: FirstLook, ignore: frozenset[str], _: bytes, body: bytes, needs_print: bool) -> Said:
    key, size = shape.check(body)
    return Said(key, size, of_json(body, ignore) if needs_print or key else b"")


def _say(say: Say, told: bytes, body: bytes, *, needs_print: bool) -> Said:
    try:
        return say(told, body, needs_print)
    except RequestError as error:
        return Said(code=error.code, detail=error.detail, field=error.field)
    except Exception as error:  # one odd body must not cost those after it their reader
        return Said(code="bad_input", detail=f"the body cannot be read ({type(error).__name__})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
