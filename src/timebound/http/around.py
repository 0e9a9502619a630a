"""What goes around every request to a model: its place in a trace, and header lines that its answer gets besides."""

from __future__ import annotations

import random
import re

from timebound.config import Config
from timebound.http.cors import Cors
from timebound.http.flow import Respond
from timebound.http.intake import Around, Fields
from timebound.types import Trace

_PARENT, _STATE = TRACED = b"traceparent", b"tracestate"
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LONGEST = 512
"""Bytes of either header; the rest of a longer one is not looked at."""
_SAMPLED = 1


class Tracing:
    """Chooses the requests that are traced: this share of them, and those whose caller traces them."""

    def __init__(self, share: float) -> None:
        self._share = share

    def begin(self, fields: Fields) -> Trace | None:
        """A request's place in its caller's trace, or in a new one; None if it has none and is not chosen."""
        given = fields.get(_PARENT)
        caller = None if given is None else _read(given)
        if caller is not None:
            trace_id, parent, flags = caller
            return Trace(trace_id, parent, new_id(64), bool(flags & _SAMPLED), _state(fields.get(_STATE, b"")))
        if random.random() >= self._share:
            return None
        return Trace(new_id(128), "", new_id(64), True)


def tracing_of(config: Config) -> Tracing | None:
    """None if no collector gets any."""
    return None if config.traces is None else Tracing(config.trace_sample)


def around(cors: Cors | None, tracing: Tracing | None) -> Around | None:
    """Both, or what there is of them; None if there is neither."""

    def wrap(fields: Fields, respond: Respond) -> tuple[Respond, Trace | None]:
        if cors is not None:
            respond = cors.adding(respond, fields.items())
        trace = None if tracing is None else tracing.begin(fields)
        return (respond, None) if trace is None else (_telling(trace, respond), trace)

    return None if cors is None and tracing is None else wrap


def _telling(trace: Trace, respond: Respond) -> Respond:
    line = f"traceparent: 00-{trace.trace_id}-{trace.span}-{int(trace.is_sampled):02x}\r\n".encode()
    return lambda status, head, body: respond(status, head + line, body)


def new_id(bits: int) -> str:
    """In hexadecimal digits; never all zeros, which stand for none."""
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def _read(given: bytes) -> tuple[str, str, int] | None:
    """Trace, span and flags; None if it is not what it should be, and then a trace begins here."""
    found = _FORM.fullmatch(given.strip()) if len(given) <= _LONGEST else None
    if found is None:
        return None
    version, trace_id, span, flags, more = found.groups()
    is_whole = version != b"ff" and (version != b"00" or more is None)
    if not is_whole or not trace_id.strip(b"0") or not span.strip(b"0"):
        return None
    return trace_id.decode(), span.decode(), int(flags, 16)


def _state(given: bytes) -> str:
    return given.decode() if len(given) <= _LONGEST and given.isascii() else ""
