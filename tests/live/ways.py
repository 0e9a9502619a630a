"""Every way in to a model, each with the same three questions: ask, ask and leave, and who waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.live.serving import MODELS, PATIENCE_S, Serving, eventually
from tests.live.test_guest import hosted
from tests.live.wire import Wire, get, post

import timebound as tb

MAX_BODY = 2000
HTTP = (
    "plain", "pipelined", "with a query string", "with the whole address", "with escapes", "behind a proxy",
    "in chunks", "by its name", "by HTTP/1.0", "as instances",
)  # fmt: skip
CODES = {413: "body_too_large", 422: "key_reused", 500: "model_failed", 504: "deadline_missed"}
"""What a status says here, for a protocol that tells no codes."""
WAYS = (*HTTP, "as a guest", "without a port")


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

    def ask(self, body: Any, *, key: str | None = None, limit_s: float = 20.0) -> Told:
        with self._asking(body, key, limit_s) as wire:
            answer = wire.read()
        said = answer.json()
        if answer.status != 200:
            return Told(said["code"] if "code" in said else CODES[answer.status])
        if self._way == "as instances":  # where an answer with one field is that field's value
            said = {"value": said["predictions"][0]}
        return Told("", said, answer.headers["timebound-source"])

    def ask_and_leave(self, body: Any) -> None:
        with self._asking(body, None, 20.0):
            eventually(lambda: self.waiting() == 1, "it waits")

    def waiting(self) -> int:
        lines = httpx.get(f"http://127.0.0.1:{self._port}/metrics", trust_env=False).text.splitlines()
        return int(next(float(line.split()[1]) for line in lines if line.startswith("timebound_requests_pending ")))

    @contextmanager
    def _asking(self, body: Any, key: str | None, limit_s: float) -> Iterator[Wire]:
        headers = [f"Timebound-Timeout-Ms: {1e3 * limit_s:.0f}", "Content-Type: application/json"]
        headers += [f"Idempotency-Key: {self._way}-{key}"] if key is not None else []
        if self._way == "behind a proxy":
            headers += [f"X-Request-Start: t={time.time():.3f}", "X-Forwarded-For: 192.0.2.7"]
        if self._way == "as instances":
            body = {"instances": [body]}
        request = post("/wait", body, *headers)
        target = {"with a query string": b"/wait?a=1&b", "with the whole address": b"http://host:80/wait"}
        target |= {"with escapes": b"/w%61it", "by its name": b"/predictions/waits"}
        target |= {"as instances": b"/v1/models/waits:predict"}
        request = request.replace(b" /wait ", b" %b " % target.get(self._way, b"/wait"), 1)
        if self._way == "in chunks":
            request = in_chunks(request)
        elif self._way == "by HTTP/1.0":
            request = request.replace(b" HTTP/1.1", b" HTTP/1.0", 1)
        with Wire(self._port) as wire:
            wire.send(*([get("/livez")] if self._way == "pipelined" else []), request)
            if self._way == "pipelined":
                wire.read()
            yield wire


def in_chunks(request: bytes) -> bytes:
    """The same without its length, in chunks of 50 bytes."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


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


@contextmanager
def serving_all() -> Iterator[int]:
    """The port of one server for all ways by HTTP."""
    options = ("--workers", "1", "--max-body", str(MAX_BODY), "--trusted-proxies", "127.0.0.1")
    with Serving(MODELS / "waits.py", *options) as serving:
        yield serving.port


@contextmanager
def open_way(way: str, folder: Path) -> Iterator[ByHttp | ByGateway]:
    """A server of `tests/models/waits.py` that is asked this way, which is none of `HTTP`."""
    target = MODELS / "waits.py"
    if way == "as a guest":
        with hosted(folder, target, f", max_body={MAX_BODY}") as (_, port):
            eventually(lambda: _is_ready(port), "the guest is ready")
            yield ByHttp(port, way)
    else:
        with _in_a_thread(lambda: tb.Gateway(target, workers=1, profiles="none")) as (gateway, loop):
            yield ByGateway(gateway, loop)


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
