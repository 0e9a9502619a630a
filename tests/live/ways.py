"""Every way in to a model, each with the same three questions: ask, ask and leave, and who waits."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode
from zipfile import ZipFile

import grpc
import httpx
from tests.live.serving import MODELS, PATIENCE_S, Serving, eventually
from tests.live.terms import USUAL, Terms, Told
from tests.live.test_guest import hosted
from tests.live.test_tls import make as make_certificate
from tests.live.wire import Wire, get, post

import timebound as tb
from timebound.operator_socket import find
from timebound.rpc.schema import message

HTTP = (
    "plain", "pipelined", "with a query string", "with the whole address", "with escapes", "behind a proxy",
    "in chunks", "by its name", "by HTTP/1.0", "as instances", "packed", "as tensors", "as binary tensors",
    "as SageMaker asks", "in a list", "as a form", "as a form of parts", "by a version's path",
    "by the operator's socket",
)  # fmt: skip
CODES = {
    401: "unauthorized",
    413: "body_too_large",
    422: "key_reused",
    500: "model_failed",
    503: "model_failed",
    504: "deadline_missed",
}
"""What a status says here, for a protocol that tells no codes."""
SERVERS = ("by a query", "announced by a proxy", "with TLS", "as TorchServe asks")
"""Ways by HTTP that need a server of their own."""
GRPC = ("by gRPC", "by a stream of gRPC")
WAYS = (*HTTP, *SERVERS, *GRPC, "as a guest", "without a port")


KINDS = {"value": "INT64", "gate": "BYTES", "pad": "BYTES"}
"""The model's fields as tensors."""


class ByHttp:
    """Asks at a port, with the request written in one of the ways that HTTP allows."""

    def __init__(self, port: int, way: str, terms: Terms = USUAL) -> None:
        self._port = port
        self._way = way
        self.terms = terms
        self.is_by_query = way == "by a query"
        self.reads_bodies = way != "as TorchServe asks"
        """Whether bodies are read on the way in, so that two are known to say the same."""

    def ask(
        self, body: Any, *, key: str | None = None, limit_s: float = 20.0, id: str = "", is_known: bool = True
    ) -> Told:
        with self._asking(body, key, limit_s, id, is_known=is_known) as wire:
            answer = wire.read()
        said, named = answer.json(), answer.headers.get("x-request-id", "")
        if answer.status != 200:
            code = said.get("code")
            return Told(code if isinstance(code, str) else CODES[answer.status], id=named)
        if self._way == "in a list":
            (said,) = said
            if "error" in said:
                return Told(said["error"]["code"], id=named)
        elif self._way in ("as instances", "packed"):  # where an answer with one field is that field's value
            said = {"value": said["predictions"][0]}
        elif self._way.endswith("tensors"):
            said = {"value": said["outputs"][0]["data"][0]}
        return Told("", said, answer.headers["timebound-source"], answer.headers["timebound-quality"], named)

    def ask_and_leave(self, body: Any) -> None:
        with self._asking(body, None, 20.0):
            eventually(lambda: self.waiting() == 1, "it waits")

    def worker(self) -> int:
        """The one worker's process; 0 while it is not up."""
        with self._wire() as wire:
            wire.send(get("/v1/models", *self._key()))
            workers = wire.read().json()["workers"]
        return next((each["pid"] for each in workers if each["role"] == "worker" and each["is_up"]), 0)

    def waiting(self) -> int:
        with self._wire() as wire:
            wire.send(get("/metrics", *self._key()))
            lines = wire.read().body.decode().splitlines()
        return int(next(float(line.split()[1]) for line in lines if line.startswith("timebound_requests_pending ")))

    def _key(self) -> list[str]:
        return [f"X-API-Key: {self.terms.key}"] if self.terms.key else []

    @contextmanager
    def _asking(
        self, body: Any, key: str | None, limit_s: float, id: str = "", *, is_known: bool = True
    ) -> Iterator[Wire]:
        headers = [f"Timebound-Timeout-Ms: {1e3 * limit_s:.0f}", "Content-Type: application/json"]
        headers += [f"X-Request-Id: {id}"] if id else []
        headers += self._key() if is_known else []
        headers += [f"Idempotency-Key: {self._way}-{key}"] if key is not None else []
        if self._way == "behind a proxy":
            headers += [f"X-Request-Start: t={time.time():.3f}", "X-Forwarded-For: 192.0.2.7"]
        request = written(self._way, self.terms.padded(body), headers)
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
    "as binary tensors": b"/v2/models/waits/infer",
    "packed": b"/v1/models/waits:predict",
    "as SageMaker asks": b"/invocations",
    "in a list": b"/predictions/waits:batch",
    "as TorchServe asks": b"/predictions/waits",
}


def written(way: str, body: dict[str, Any], headers: list[str]) -> bytes:
    """A request with this body, as it is written by one of the ways."""
    content: Any = body
    if way in ("as instances", "packed"):
        content = {"instances": [body]}
    elif way == "in a list":
        content = [body]
    elif way == "as tensors":
        content = {"inputs": [{"name": n, "shape": [1], "datatype": KINDS[n], "data": [v]} for n, v in body.items()]}
    elif way == "as binary tensors":
        content, head_size = in_binary(body)
        headers = [*headers, f"Inference-Header-Content-Length: {head_size}"]
    elif way == "by a query":
        return get(f"/wait?{urlencode(body)}", *headers[:1], *headers[2:])
    elif way.startswith("as a form"):
        part = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        parts = "".join("--x\r\n" + part.format(*field) for field in body.items()) + "--x--\r\n"
        media = "multipart/form-data; boundary=x" if way.endswith("parts") else "application/x-www-form-urlencoded"
        content = (parts if way.endswith("parts") else urlencode(body)).encode()
        headers = [headers[0], f"Content-Type: {media}", *headers[2:]]
    if way == "packed":
        content = gzip.compress(json.dumps(content).encode())
        headers = [*headers, "Content-Encoding: gzip"]
    request = post("/wait", content, *headers).replace(b" /wait ", b" %b " % TARGETS.get(way, b"/wait"), 1)
    if way == "by HTTP/1.0":
        return request.replace(b" HTTP/1.1", b" HTTP/1.0", 1)
    return in_chunks(request) if way == "in chunks" else request


def in_binary(body: dict[str, Any]) -> tuple[bytes, int]:
    """Tensors whose data stand behind the JSON, and the length of that."""
    raw = [
        value.to_bytes(8, "little")
        if isinstance(value, int)
        else len(value.encode()).to_bytes(4, "little") + value.encode()
        for value in body.values()
    ]
    inputs = [
        {"name": name, "shape": [1], "datatype": KINDS[name], "parameters": {"binary_data_size": len(data)}}
        for name, data in zip(body, raw, strict=True)
    ]
    head = json.dumps({"inputs": inputs}).encode()
    return head + b"".join(raw), len(head)


def in_chunks(request: bytes) -> bytes:
    """The same without its length, in chunks of 50 bytes."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


class ByGrpc:
    """Asks with tensors by gRPC."""

    def __init__(self, serving: Serving, terms: Terms = USUAL) -> None:
        address = str(serving.wait_for_line("listening for gRPC")["at"]).partition("://")[2]
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        self.terms = terms
        beside = ByHttp(serving.port, "plain", terms)
        self.waiting, self.worker = beside.waiting, beside.worker

    def ask(
        self, body: Any, *, key: str | None = None, limit_s: float = 20.0, id: str = "", is_known: bool = True
    ) -> Told:
        asked = self._infer.future(self._message(body), **self._told(key, limit_s, id, is_known=is_known))
        try:
            answer = message("inference.ModelInferResponse").FromString(asked.result())
        except grpc.RpcError as error:
            return self._refused(error)
        return self._answered(answer, dict(asked.trailing_metadata()).get("x-request-id", ""))

    def ask_and_leave(self, body: Any) -> None:
        asked = self._infer.future(self._message(body), **self._told(None, 20.0))
        eventually(lambda: self.waiting() == 1, "it waits")
        asked.cancel()

    def close(self) -> None:
        self._channel.close()

    def _answered(self, answer: Any, id: str) -> Told:
        value = int.from_bytes(answer.raw_output_contents[0], "little", signed=True)
        source, quality = (answer.parameters[f"timebound_{what}"].string_param for what in ("source", "quality"))
        return Told("", {"value": value}, source, quality, id)

    def _refused(self, error: Any) -> Told:
        # A message that is far too large is refused by the library, which knows no codes.
        if "Received message larger than max" in error.details():
            return Told("body_too_large")
        told = dict(error.trailing_metadata())
        return Told(told["timebound-code"], id=told.get("x-request-id", ""))

    def _told(self, key: str | None, limit_s: float, id: str = "", *, is_known: bool = True) -> dict[str, Any]:
        metadata = [("timebound-timeout-ms", f"{1e3 * limit_s:.0f}")]
        metadata += [("idempotency-key", f"{type(self).__name__}-{key}")] if key is not None else []
        metadata += [("x-request-id", id)] if id else []
        metadata += [("x-api-key", self.terms.key)] if is_known and self.terms.key else []
        return {"metadata": metadata, "timeout": PATIENCE_S}

    def _message(self, body: Any) -> bytes:
        request = message("inference.ModelInferRequest")(model_name="waits")
        for name, value in self.terms.padded(body).items():
            tensor = request.inputs.add(name=name, datatype=KINDS[name], shape=[1])
            if isinstance(value, int):
                tensor.contents.int64_contents.append(value)
            else:
                tensor.contents.bytes_contents.append(value.encode())
        data: bytes = request.SerializeToString()
        return data


class ByStream(ByGrpc):
    """Asks in a stream of its own."""

    def __init__(self, serving: Serving, terms: Terms = USUAL) -> None:
        super().__init__(serving, terms)
        self._stream = self._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")

    def ask(
        self, body: Any, *, key: str | None = None, limit_s: float = 20.0, id: str = "", is_known: bool = True
    ) -> Told:
        asked = self._stream(iter([self._message(body)]), **self._told(key, limit_s, id, is_known=is_known))
        try:
            said = message("inference.ModelStreamInferResponse").FromString(next(asked))
        except grpc.RpcError as error:
            return self._refused(error)
        if said.error_message:  # in a stream there are words and no codes
            return Told(next(code for part, code in WORDS.items() if part in said.error_message))
        return self._answered(said.infer_response, "")

    def ask_and_leave(self, body: Any) -> None:
        asked = self._stream(iter([self._message(body)]), **self._told(None, 20.0))
        eventually(lambda: self.waiting() == 1, "it waits")
        asked.cancel()


WORDS = {
    "deadline": "deadline_missed",
    "another body": "key_reused",
    "failed on this item": "model_failed",
    "is over": "body_too_large",
}
"""What an error in a stream says, by a part of its words."""


class ByGateway:
    """Asks a gateway in this process."""

    def __init__(self, gateway: tb.Gateway, loop: asyncio.AbstractEventLoop, terms: Terms = USUAL) -> None:
        self._gateway = gateway
        self._loop = loop
        self.terms = terms

    def ask(
        self, body: Any, *, key: str | None = None, limit_s: float = 20.0, id: str = "", is_known: bool = True
    ) -> Told:
        asked = asyncio.run_coroutine_threadsafe(self._ask(body, key, limit_s), self._loop)
        return asked.result(PATIENCE_S)

    async def _ask(self, body: Any, key: str | None, limit_s: float) -> Told:
        try:
            answer = await self._gateway.ask("waits", self.terms.padded(body), key=key, deadline=limit_s)
        except tb.RequestError as error:
            return Told(error.code)
        return Told("", answer.value, str(answer.source), str(answer.quality))

    def ask_and_leave(self, body: Any) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._ask(body, None, 20.0), self._loop)
        eventually(lambda: self.waiting() == 1, "it waits")
        asked.cancel()

    def worker(self) -> int:
        """The one worker's process; 0 while it is not up."""
        workers = self._gateway.status()["workers"]
        return next((each["pid"] for each in workers if each["role"] == "worker" and each["is_up"]), 0)

    def waiting(self) -> int:
        return self._gateway.requests.waiting


Way: TypeAlias = ByHttp | ByGrpc | ByGateway


@contextmanager
def serving_all(folder: Path, terms: Terms = USUAL) -> Iterator[Serving]:
    """One server for all ways by HTTP and gRPC."""
    options = (*terms.flags(folder), "--trusted-proxies", "127.0.0.1", "--grpc-port", "0")
    with Serving(terms.target, *options) as serving:
        yield serving


@contextmanager
def way_to(way: str, serving: Serving, folder: Path, terms: Terms = USUAL) -> Iterator[Way]:
    """One way in, to the server of all or to one of its own."""
    if way in HTTP:
        yield ByHttp(serving.port, way, terms)
    elif way in GRPC:
        with closing((ByGrpc if way == "by gRPC" else ByStream)(serving, terms)) as by_grpc:
            yield by_grpc
    elif way in SERVERS:
        environment = {"TAKES_QUERIES": ""} if "query" in way else {}
        with Serving(*_own_server(way, folder, terms), environment=environment) as own:
            yield ByHttp(own.port, way, terms)
    elif way == "as a guest":
        options = "".join(f", {name}={value!r}" for name, value in terms.options(folder).items())
        with hosted(folder, terms.target, options) as (_, port):
            eventually(lambda: _is_ready(port), "the guest is ready")
            yield ByHttp(port, way, terms)
    else:
        with _in_a_thread(lambda: tb.Gateway(terms.target, workers=1, profiles="none")) as (gateway, loop):
            yield ByGateway(gateway, loop, terms)


def _own_server(way: str, folder: Path, terms: Terms) -> list[str | Path]:
    options: list[str | Path] = [*terms.flags(folder)]
    if way == "by a query":
        return [terms.target, *options]
    if way == "announced by a proxy":
        return [terms.target, *options, "--trusted-proxies", "127.0.0.1", "--proxy-protocol"]
    if way == "with TLS":
        make_certificate(folder, "localhost")
        return [terms.target, *options, "--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem"]
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
