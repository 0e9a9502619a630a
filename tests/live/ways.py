"""Every way in to a model, each with the same three questions: ask, ask and leave, and who waits."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode
from zipfile import ZipFile

import grpc
import httpx
from tests.live.serving import MODELS, PATIENCE_S, Serving, eventually
from tests.live.test_guest import hosted
from tests.live.test_tls import make as make_certificate
from tests.live.wire import Wire, get, post

import timebound as tb
from timebound.operator_socket import find
from timebound.rpc.schema import message

MAX_BODY = 2000
TOO_LARGE = MAX_BODY + 70_000
"""Beyond what a message of gRPC may have beside its body, too."""
HTTP = (
    "plain", "pipelined", "with a query string", "with the whole address", "with escapes", "behind a proxy",
    "in chunks", "by its name", "by HTTP/1.0", "as instances",
    "as tensors", "as SageMaker asks", "in a list", "as a form", "as a form of parts", "by a version's path",
    "by the operator's socket",
)  # fmt: skip
CODES = {413: "body_too_large", 422: "key_reused", 500: "model_failed", 503: "model_failed", 504: "deadline_missed"}
"""What a status says here, for a protocol that tells no codes."""
SERVERS = ("by a query", "announced by a proxy", "with TLS", "as TorchServe asks")
"""Ways by HTTP that need a server of their own."""
WAYS = (*HTTP, *SERVERS, "by gRPC", "as a guest", "without a port")


KINDS = {"value": "INT64", "gate": "BYTES"}
"""The model's fields as tensors."""


@dataclass(frozen=True)
class Told:
    """What came back: an error's code or none, the answer, and how it came about."""

    code: str
    value: Any = None
    source: str = ""


class ByHttp:
    """Asks at a port, with the request written in one of the ways that HTTP allows."""

    def __init__(self, port: int, way: str) -> None:
        self._port = port
        self._way = way
        self.is_by_query = way == "by a query"
        self.reads_bodies = way != "as TorchServe asks"
        """Whether bodies are read on the way in, so that two are known to say the same."""

    def ask(self, body: Any, *, key: str | None = None, limit_s: float = 20.0) -> Told:
        with self._asking(body, key, limit_s) as wire:
            answer = wire.read()
        said = answer.json()
        if answer.status != 200:
            code = said.get("code")
            return Told(code if isinstance(code, str) else CODES[answer.status])
        if self._way == "in a list":
            (said,) = said
            if "error" in said:
                return Told(said["error"]["code"])
        elif self._way == "as instances":  # where an answer with one field is that field's value
            said = {"value": said["predictions"][0]}
        elif self._way == "as tensors":
            said = {"value": said["outputs"][0]["data"][0]}
        return Told("", said, answer.headers["timebound-source"])

    def ask_and_leave(self, body: Any) -> None:
        with self._asking(body, None, 20.0):
            eventually(lambda: self.waiting() == 1, "it waits")

    def waiting(self) -> int:
        with self._wire() as wire:
            wire.send(get("/metrics"))
            lines = wire.read().body.decode().splitlines()
        return int(next(float(line.split()[1]) for line in lines if line.startswith("timebound_requests_pending ")))

    @contextmanager
    def _asking(self, body: Any, key: str | None, limit_s: float) -> Iterator[Wire]:
        headers = [f"Timebound-Timeout-Ms: {1e3 * limit_s:.0f}", "Content-Type: application/json"]
        headers += [f"Idempotency-Key: {self._way}-{key}"] if key is not None else []
        if self._way == "behind a proxy":
            headers += [f"X-Request-Start: t={time.time():.3f}", "X-Forwarded-For: 192.0.2.7"]
        request = written(self._way, body, headers)
        with self._wire() as wire:
            wire.send(*([get("/livez")] if self._way == "pipelined" else []), request)
            if self._way == "pipelined":
                wire.read()
            yield wire

    def _wire(self) -> Wire:
        """A connection, brought in the way's own manner."""
        wire = Wire(self._port)
        if self._way == "announced by a proxy":
            wire.send(b"PROXY TCP4 192.0.2.7 10.0.0.1 5123 80\r\n")
        elif self._way == "with TLS":
            wire.encrypt()
        elif self._way == "by the operator's socket":
            wire.move_to(find(self._port))
        return wire


TARGETS = {
    "with a query string": b"/wait?a=1&b",
    "with the whole address": b"http://host:80/wait",
    "with escapes": b"/w%61it",
    "by its name": b"/predictions/waits",
    "by a version's path": b"/predictions/waits/1",
    "as instances": b"/v1/models/waits:predict",
    "as tensors": b"/v2/models/waits/infer",
    "as SageMaker asks": b"/invocations",
    "in a list": b"/predictions/waits:batch",
    "as TorchServe asks": b"/predictions/waits",
}


def written(way: str, body: dict[str, Any], headers: list[str]) -> bytes:
    """A request with this body, as it is written by one of the ways."""
    content: Any = body
    if way == "as instances":
        content = {"instances": [body]}
    elif way == "in a list":
        content = [body]
    elif way == "as tensors":
        content = {"inputs": [{"name": n, "shape": [1], "datatype": KINDS[n], "data": [v]} for n, v in body.items()]}
    elif way == "by a query":
        return get(f"/wait?{urlencode(body)}", *headers[:1], *headers[2:])
    elif way.startswith("as a form"):
        part = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        parts = "".join("--x\r\n" + part.format(*field) for field in body.items()) + "--x--\r\n"
        media = "multipart/form-data; boundary=x" if way.endswith("parts") else "application/x-www-form-urlencoded"
        content = (parts if way.endswith("parts") else urlencode(body)).encode()
        headers = [headers[0], f"Content-Type: {media}", *headers[2:]]
    request = post("/wait", content, *headers).replace(b" /wait ", b" %b " % TARGETS.get(way, b"/wait"), 1)
    if way == "by HTTP/1.0":
        return request.replace(b" HTTP/1.1", b" HTTP/1.0", 1)
    return in_chunks(request) if way == "in chunks" else request


def in_chunks(request: bytes) -> bytes:
    """The same without its length, in chunks of 50 bytes."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


class ByGrpc:
    """Asks with tensors by gRPC."""

    def __init__(self, serving: Serving) -> None:
        address = str(serving.wait_for_line("listening for gRPC")["at"]).partition("://")[2]
        self._channel = grpc.insecure_channel(address)
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        self.waiting = ByHttp(serving.port, "by gRPC").waiting

    def ask(self, body: Any, *, key: str | None = None, limit_s: float = 20.0) -> Told:
        try:
            said = self._asking(body, key, limit_s).result()
        except grpc.RpcError as error:
            told: Any = error
            # A message that is far too large is refused by the library, which knows no codes.
            is_too_large = "Received message larger than max" in told.details()
            return Told("body_too_large" if is_too_large else dict(told.trailing_metadata())["timebound-code"])
        answer = message("inference.ModelInferResponse").FromString(said)
        value = int.from_bytes(answer.raw_output_contents[0], "little")
        return Told("", {"value": value}, answer.parameters["timebound_source"].string_param)

    def ask_and_leave(self, body: Any) -> None:
        asked = self._asking(body, None, 20.0)
        eventually(lambda: self.waiting() == 1, "it waits")
        asked.cancel()

    def close(self) -> None:
        self._channel.close()

    def _asking(self, body: Any, key: str | None, limit_s: float) -> Any:
        request = message("inference.ModelInferRequest")(model_name="waits")
        for name, value in body.items():
            tensor = request.inputs.add(name=name, datatype=KINDS[name], shape=[1])
            if isinstance(value, int):
                tensor.contents.int64_contents.append(value)
            else:
                tensor.contents.bytes_contents.append(value.encode())
        metadata = [("timebound-timeout-ms", f"{1e3 * limit_s:.0f}")]
        metadata += [("idempotency-key", f"grpc-{key}")] if key is not None else []
        return self._infer.future(request.SerializeToString(), metadata=metadata, timeout=PATIENCE_S)


class ByGateway:
    """Asks a gateway in this process."""

    def __init__(self, gateway: tb.Gateway, loop: asyncio.AbstractEventLoop) -> None:
        self._gateway = gateway
        self._loop = loop

    def ask(self, body: Any, *, key: str | None = None, limit_s: float = 20.0) -> Told:
        asked = asyncio.run_coroutine_threadsafe(self._ask(body, key, limit_s), self._loop)
        return asked.result(PATIENCE_S)

    async def _ask(self, body: Any, key: str | None, limit_s: float) -> Told:
        try:
            answer = await self._gateway.ask("waits", body, key=key, deadline=limit_s)
        except tb.RequestError as error:
            return Told(error.code)
        return Told("", answer.value, str(answer.source))

    def ask_and_leave(self, body: Any) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._ask(body, None, 20.0), self._loop)
        eventually(lambda: self.waiting() == 1, "it waits")
        asked.cancel()

    def waiting(self) -> int:
        return self._gateway.requests.waiting


Way: TypeAlias = ByHttp | ByGrpc | ByGateway


@contextmanager
def serving_all() -> Iterator[Serving]:
    """One server for all ways by HTTP and gRPC."""
    options = ("--workers", "1", "--max-body", str(MAX_BODY), "--trusted-proxies", "127.0.0.1", "--grpc-port", "0")
    with Serving(MODELS / "waits.py", *options) as serving:
        yield serving


@contextmanager
def open_way(way: str, folder: Path) -> Iterator[Way]:
    """A server of its own of `tests/models/waits.py`, asked as a guest or without a port."""
    target = MODELS / "waits.py"
    if way in SERVERS:
        with Serving(*_own_server(way, folder), environment={"TAKES_QUERIES": ""} if "query" in way else {}) as serving:
            yield ByHttp(serving.port, way)
    elif way == "as a guest":
        with hosted(folder, target, f", max_body={MAX_BODY}") as (_, port):
            eventually(lambda: _is_ready(port), "the guest is ready")
            yield ByHttp(port, way)
    else:
        with _in_a_thread(lambda: tb.Gateway(target, workers=1, profiles="none")) as (gateway, loop):
            yield ByGateway(gateway, loop)


def _own_server(way: str, folder: Path) -> list[str | Path]:
    options: list[str | Path] = ["--workers", "1", "--max-body", str(MAX_BODY)]
    if way == "by a query":
        return [MODELS / "waits.py", *options]
    if way == "announced by a proxy":
        return [MODELS / "waits.py", *options, "--trusted-proxies", "127.0.0.1", "--proxy-protocol"]
    if way == "with TLS":
        make_certificate(folder, "localhost")
        return [MODELS / "waits.py", *options, "--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem"]
    archive = folder / "waits.mar"
    said = {"model": {"modelName": "waits", "modelVersion": "1", "handler": "waits_handler.py:handle"}}
    with ZipFile(archive, "w") as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps({"archiverVersion": "0.12", "runtime": "python", **said}))
        file.write(MODELS / "handlers" / "waits" / "waits_handler.py", "waits_handler.py")
    return [archive, *options]


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def _in_a_thread(make: Callable[[], tb.Gateway]) -> Iterator[tuple[tb.Gateway, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tb.Gateway:
        return await make().__aenter__()

    try:
        gateway = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
        yield gateway, loop
        asyncio.run_coroutine_threadsafe(gateway.__aexit__(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
