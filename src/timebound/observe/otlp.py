"""Spans on the wire: OTLP over HTTP, as JSON, to an OpenTelemetry collector or whatever else takes it."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from timebound.version import VERSION

_PATH = "/v1/traces"
_AGAIN = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE,
          HTTPStatus.GATEWAY_TIMEOUT)  # fmt: skip
"""Answers after which the same may be sent once more."""
SERVER, INTERNAL, ERROR = 2, 1, 2

Value = str | int | float | bool


class NotTaken(Exception):
    """The collector has not taken spans; `is_final` if it will not take the same ones later either."""

    def __init__(self, said: str, *, is_final: bool) -> None:
        super().__init__(said)
        self.is_final = is_final


class Span(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A piece of time, as OTLP's JSON has it."""

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    parent_span_id: str = ""
    trace_state: str = ""
    attributes: list[dict[str, Any]] = []
    status: dict[str, Any] = {}


def attributes(named: Mapping[str, Value | None]) -> list[dict[str, Any]]:
    """As OTLP writes them, without those that are None or empty."""
    return [{"key": name, "value": _value(value)} for name, value in named.items() if value not in (None, "")]


def _value(value: Value | None) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": value}


class Collector:
    """Where spans go. Calls wait for the network, so they belong in a thread."""

    def __init__(self, url: str, headers: str, service: str) -> None:
        url = url.rstrip("/")
        self.url = url if url.endswith(_PATH) else url + _PATH
        self._headers = {"content-type": "application/json", "content-encoding": "gzip"}
        self._headers |= dict(pair.split("=", 1) for pair in headers.split(",") if pair)
        self._resource = attributes({
            "service.name": service, "service.version": VERSION, "host.name": socket.gethostname(),
        })  # fmt: skip
        # It stands beside the server: what a proxy is set for is the outside world.
        self._open = build_opener(ProxyHandler({})).open

    def send(self, spans: Sequence[Span], timeout_s: float) -> None:
        """Raises `NotTaken`."""
        scope = {"scope": {"name": "timebound", "version": VERSION}, "spans": spans}
        message = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        body = gzip.compress(msgspec.json.encode(message), compresslevel=1)
        asked = Request(self.url, data=body, headers=self._headers, method="POST")
        try:
            with self._open(asked, timeout=timeout_s):
                pass  # its status says all; what follows may be without end
        except HTTPError as error:
            with error:
                raise NotTaken(f"it answered {error.code}", is_final=error.code not in _AGAIN) from None
        except ValueError as error:  # a header that cannot be sent
            raise NotTaken(str(error), is_final=True) from None
        except (OSError, HTTPException) as error:
            cause = getattr(error, "reason", error)  # urllib wraps it
            why = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            raise NotTaken(why, is_final=False) from None
