"""What both clients make of a call's arguments: the settings of a client, and the `Question` of a call."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

import msgspec

from timebound.client.address import read_address, tls_context
from timebound.client.arguments import check_count, check_names, check_priority, check_seconds, check_texts
from timebound.client.call import Question, Surroundings, is_passing
from timebound.client.errors import CallFailed, WrongAnswer
from timebound.client.message import HEAD_SIZE, Reply, header
from timebound.client.retry import RETRIES_WITHOUT_DEADLINE, Standing
from timebound.client.tensors import packed
from timebound.clock import Clock, MonotonicClock
from timebound.errors import BadInput, SetupError
from timebound.version import VERSION

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

CONNECTIONS = 100
"""At once, of one client; a server with the usual options takes 1,024 of one address."""


class Settings(TypedDict, total=False):
    """What a client is made with, beside the servers' URLs."""

    api_key: str | None
    """Shown to the server as X-API-Key; without it TIMEBOUND_API_KEY of the environment, if that is set."""
    deadline: float | None
    """Seconds for every call that does not say otherwise; None leaves it to the model."""
    attempt_timeout: float | None
    """Seconds after which one attempt is given up for the next; None: when the deadline is there."""
    retries: int | None
    """How often to send again at most; None: as often as the deadline allows, and 3 times without one."""
    verify: bool
    """False takes any certificate, for tests."""
    ca: str | Path | None
    """A file or folder of certificates to trust in place of the system's."""
    connections: int
    """How many at once; calls beyond that wait, and their deadlines count meanwhile."""
    clock: Clock


class Wishes(TypedDict, total=False):
    """What any call to a model may say."""

    deadline: float | None
    """Seconds from now; the server is told what remains of them at each attempt."""
    key: str | None
    """Calls with the same key are one request. Left out: a fresh one. None: as the model's `key` or `cache` says."""
    version: str
    """Ask this version of the model, whatever its share."""
    priority: int
    request_id: str
    """What the server's log is to call the request."""
    headers: Mapping[str, str]
    """More headers, such as those of tracing."""


class Options(Wishes, total=False):
    """What `ask` may say."""

    votes: bool
    """Whether to be told what each member of the ensemble says by itself."""
    content_type: str


class TensorOptions(Wishes, total=False):
    """What `infer` may say."""

    outputs: Sequence[str]
    """Those that are wanted; left out: all."""
    parameters: Mapping[str, Any]
    """What the model is told besides its inputs."""


_SETTINGS = frozenset(Settings.__annotations__)
_OPTIONS = frozenset(Options.__annotations__) | {"type"}
_TENSOR_OPTIONS = frozenset(TensorOptions.__annotations__)
_TEXTS = ("key", "version", "content_type", "request_id")


class Served(msgspec.Struct, frozen=True):
    """A model as its server describes it."""

    name: str
    version: str
    state: str
    paths: list[str]
    deadline_s: float
    body: str
    """`json` or `raw`: what it takes."""
    description: str = ""
    key: str | None = None
    accepts: list[str] = []
    request_schema: dict[str, Any] | None = None
    example: Any = None
    members: int = 1
    member_names: list[str] = []
    has_fallback: bool = False


class _Models(msgspec.Struct):
    models: list[Served]


class Asking:
    """A client without its connections."""

    def __init__(self, urls: tuple[str, ...], settings: Settings) -> None:
        check_names(type(self).__name__, settings, _SETTINGS, {"ask": _OPTIONS, "infer": _TENSOR_OPTIONS})
        if not urls:
            raise SetupError('a client needs the address of a server: Client("http://host:8000")')
        addresses = list({(address := read_address(url)).url: address for url in urls}.values())
        clock = settings.get("clock") or MonotonicClock()
        self._around = Surroundings(addresses, Standing(len(addresses)), clock, random.random)
        self._deadline = settings.get("deadline")
        self._attempt_s = settings.get("attempt_timeout")
        self._retries = settings.get("retries")
        self._connections = settings.get("connections", CONNECTIONS)
        self._tls: ssl.SSLContext | None = None
        if any(address.is_tls for address in addresses):
            self._tls = tls_context(verify=settings.get("verify", True), ca=settings.get("ca"))
        self._lines = [header("user-agent", f"timebound/{VERSION}")]
        key = settings.get("api_key") or os.environ.get("TIMEBOUND_API_KEY")
        if key:
            if not isinstance(key, str) or not key.isprintable():  # and it must not be shown in a traceback
                raise SetupError("the API key is no text, or holds a line break; give it just as it was printed")
            self._lines.append(header("x-api-key", key))
        for name, seconds in (("deadline", self._deadline), ("attempt_timeout", self._attempt_s)):
            check_seconds(name, seconds)
        if self._retries is not None:
            check_count("retries", self._retries, 0)
        check_count("connections", self._connections, 1)

    def _asked(self, model: str, item: Any, options: Options) -> Question:
        """The question to a model, by its name or by a path of its own."""
        check_names("ask", options, _OPTIONS, {type(self).__name__: _SETTINGS, "infer": _TENSOR_OPTIONS})
        is_bytes = isinstance(item, bytes | bytearray | memoryview)
        media = options.get("content_type") or ("application/octet-stream" if is_bytes else "application/json")
        lines = [header("content-type", media)]
        if options.get("votes"):
            lines.append(header("timebound-details", "votes"))
        version = options.get("version", "")
        if version and model.startswith("/"):
            raise BadInput("version= goes with a model's name, not with a path")
        check_texts(options, _TEXTS)
        path = _path("predictions", model, *([version] if version else [])) if model[:1] != "/" else _own_path(model)
        return self._wished(path, lines, bytes(item) if is_bytes else encode(item), options)

    def _inferred(self, model: str, inputs: Mapping[str, Any], options: TensorOptions) -> Question:
        """The question to a model in tensors, by its name."""
        check_names("infer", options, _TENSOR_OPTIONS, {type(self).__name__: _SETTINGS, "ask": _OPTIONS})
        check_texts(options, _TEXTS)
        head_size, body = packed(inputs, options.get("outputs"), options.get("parameters"))
        lines = [header("content-type", "application/octet-stream"), header(HEAD_SIZE, str(head_size))]
        version = options.get("version", "")
        path = _path("v2", "models", model, *(["versions", version] if version else []), "infer")
        return self._wished(path, lines, body, options)

    def _wished(self, path: str, lines: list[bytes], body: bytes, options: Wishes) -> Question:
        """The question with what the call says besides its body."""
        key = options["key"] if "key" in options else os.urandom(16).hex()
        if key is not None:
            if not key or key != key.strip():
                raise BadInput("the key is empty, or begins or ends with a space")
            lines.append(header("idempotency-key", key))
        if (priority := options.get("priority")) is not None:
            check_priority(priority)
        if priority:
            lines.append(header("timebound-priority", f"{priority:d}"))
        if options.get("request_id"):
            lines.append(header("x-request-id", options["request_id"]))
        lines += [header(_name(name), value) for name, value in options.get("headers", {}).items()]
        return self._question("POST", path, lines, options.get("deadline", self._deadline), body=body, key=key)

    def _sought(self, model: str, key: str, deadline: float | None) -> Question:
        """The question for a kept result. With a deadline, one that is still in work is waited for."""
        check_texts({"key": key}, ("key",))
        is_waited_for = deadline is not None

        def can_retry(error: CallFailed) -> bool:
            return is_passing(error) or (error.status == 202 and is_waited_for)

        question = self._question("GET", _path("v1", "results", model, key), [], deadline, key=key)
        return msgspec.structs.replace(question, can_retry=can_retry, is_sought=True)

    def _judged(self, model: str, key: str, *, right: bool, label: str) -> Question:
        """The word about the answer to a key; said twice it is the same."""
        check_texts({"key": key, "label": label or "-"}, ("key", "label"))
        if right and label:
            raise BadInput("a right answer needs no label; give one with right=False")
        said = msgspec.json.encode({"verdict": "right" if right else "wrong", "label": label})
        path = _path("v1", "feedback", model, key)
        question = self._question("POST", path, [header("content-type", "application/json")], None, body=said, key=key)
        return msgspec.structs.replace(question, good=202)

    def _listed(self) -> Question:
        return self._question("GET", "/v1/models", [], None)

    def _question(
        self,
        method: str,
        path: str,
        lines: list[bytes],
        deadline: float | None,
        *,
        body: bytes | None = None,
        key: str | None = None,
    ) -> Question:
        check_seconds("deadline", deadline)
        retries = RETRIES_WITHOUT_DEADLINE if self._retries is None and deadline is None else self._retries
        return Question(
            method=method,
            path=path,
            lines=self._lines + lines,
            body=body,
            key=key,
            seconds=deadline,
            attempt_s=self._attempt_s,
            retries=retries,
        )


def encode(item: Any) -> bytes:
    """An item as JSON: arrays as nested lists, bytes in a field as base64, dataclasses and Structs as objects."""
    try:
        return msgspec.json.encode(item, enc_hook=_as_list)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the item cannot be sent as JSON: {error}") from None


def models_in(reply: Reply) -> list[Served]:
    """What /v1/models says."""
    try:
        return msgspec.json.decode(reply.body, type=_Models).models
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WrongAnswer(f"/v1/models is not as Timebound says it: {error}", status=reply.status) from None


def _as_list(thing: Any) -> Any:
    # numpy's arrays and numbers, and torch's: known by what they can do, so that neither need be imported.
    if hasattr(thing, "tolist"):
        return thing.tolist()
    raise TypeError(f"{type(thing).__name__} is not JSON; give numbers, texts, lists, dictionaries, arrays or bytes")


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="@") for part in parts)


def _own_path(path: str) -> str:
    return quote(path, safe="/@%")


def _name(name: str) -> str:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise BadInput(f"{name!r} is no name of a header")
    return name
