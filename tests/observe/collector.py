"""A collector of traces: a real OTLP receiver over HTTP, which reads what comes by OpenTelemetry's own definitions."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_IDS = ("traceId", "spanId", "parentSpanId")


class Collector:
    """Listens while it is open; `answers` are the statuses of the next answers, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.resource: dict[str, str] = {}
        self.spans: list[Span] = []
        self.messages = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def trace_of(self, request: str) -> list[Span]:
        """All spans of the trace that has a request of this id, the request's own first."""
        roots = [span for span in self.spans if facts(span).get("timebound.request_id") == request]
        return [*roots[:1], *(span for span in self.spans if roots and span.parent_span_id == roots[0].span_id)]

    def take(self, body: bytes) -> None:
        """What an answer of 200 says has been taken."""
        message = Parse(json.dumps(_as_protobuf(json.loads(body))), ExportTraceServiceRequest())
        for group in message.resource_spans:
            self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                self.spans += scope.spans

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.messages += 1
                status = collector.answers.pop(0) if collector.answers else 200
                if status == 200:
                    assert self.path == "/v1/traces"
                    assert self.headers["content-type"] == "application/json"
                    collector.headers = {name.lower(): value for name, value in self.headers.items()}
                    collector.take(gzip.decompress(body))
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def facts(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def ms(span: Span) -> float:
    """How long it took."""
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


def _as_protobuf(said: Any) -> Any:
    """OTLP's JSON has ids in hexadecimal digits, where that of protobuf has base64."""
    if isinstance(said, list):
        return [_as_protobuf(each) for each in said]
    if not isinstance(said, dict):
        return said
    return {
        name: base64.b64encode(bytes.fromhex(each)).decode() if name in _IDS else _as_protobuf(each)
        for name, each in said.items()
    }
