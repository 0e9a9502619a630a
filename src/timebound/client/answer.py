"""What came back, in types: an `Answer` with its value, or the error that a reply stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from timebound.client.errors import CallFailed, ModelFailed, WrongAnswer, class_of
from timebound.client.message import Reply
from timebound.types import Quality, Source

Value = TypeVar("Value")
Read: TypeAlias = Callable[[Reply], Any]
"""Makes a value of a 200; raises `ValueError` or `TypeError` if that cannot be."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds a request spent waiting in the server, and its batch in each stage of the model."""

    queue: float = 0.0
    prepare: float = 0.0
    infer: float = 0.0
    finish: float = 0.0


class Answer(msgspec.Struct, Generic[Value], frozen=True, kw_only=True):
    """A model's answer and how it came about."""

    value: Value
    """What the JSON says, as `type=` wants it; the bytes of an answer that is not JSON; of `infer` arrays by name."""
    body: bytes
    """The answer as it came."""
    media: str
    """Its content type."""
    quality: Quality
    """`full`, `partial` (some members of the ensemble) or `fallback`."""
    source: Source
    """`computed`, `joined` (another attempt's) or `stored`."""
    members: int
    of_members: int
    batch_size: int
    """How many requests were computed together; 0 for a fallback."""
    version: str
    """Which version of the model answered, where several are served."""
    votes: Any
    """What each member says by itself, if `votes=True` asked for it."""
    timings: Timings
    key: str | None
    """The key it was asked under."""
    request_id: str | None
    """What the server's log calls the request."""
    elapsed: float
    """Seconds from the call to the answer, retries and pauses included."""
    attempts: int
    """How often the request was sent."""
    server: str
    """The URL of the server that answered."""

    @property
    def batch(self) -> int:
        """The same as `batch_size`, by the name of its header."""
        return self.batch_size

    @property
    def outputs(self) -> Value:
        """The same as `value`, by the name that the answer to `infer` has for it."""
        return self.value


_FAILED = "InternalServerException"
"""TorchServe's type of what a handler raised: a 503 of it says nothing of how busy the server is."""
_TYPES = {
    "BadRequestException": "bad_input",
    "ModelNotFoundException": "unknown_model",
    "ModelVersionNotFoundException": "unknown_model",
    "RequestTimeoutException": "deadline_missed",
}
"""Codes of our own for what TorchServe has types for."""


def read_error(reply: Reply) -> CallFailed:
    """The error that a reply other than a 200 stands for, in whatever form its protocol says errors.

    Ours is problem+json; TorchServe's has `type` and `message`, the Open Inference Protocol's and KServe's `error`.
    """
    said = _texts_in(reply.body)
    texts = (said.get(name) for name in ("detail", "title", "message", "error"))
    detail = next(filter(None, texts), f"the server, or a proxy in front of it, answered {reply.status}")
    is_handlers = said.get("type") == _FAILED and reply.status >= 500
    code = "model_failed" if is_handlers else said.get("code") or _TYPES.get(said.get("type", ""))
    if reply.status == 202:
        code, detail = "running", "the result is still in work"
    if code == "unauthorized":  # the server names the header; who asks from Python writes none
        detail += "; give the client one that it knows, with api_key= or in TIMEBOUND_API_KEY"
    return (ModelFailed if is_handlers else class_of(reply.status))(
        detail,
        code=code or f"http_{reply.status}",
        field=said.get("field"),
        status=reply.status,
        retry_after=_seconds(reply.headers.get("retry-after")),
        request_id=said.get("request_id") or reply.headers.get("x-request-id"),
    )


def _texts_in(body: bytes) -> dict[str, str]:
    """The fields of a JSON object that are texts; a foreign one may have others, or numbers under the same names."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: text for name, text in said.items() if isinstance(text, str)} if isinstance(said, dict) else {}


def read_answer(
    reply: Reply, read: Read, *, key: str | None, elapsed: float, attempts: int, server: str
) -> Answer[Any]:
    """The answer in a 200; raises `WrongAnswer` if its value cannot be read so."""
    said, media = reply.headers.get, reply.headers.get("content-type", "")
    members, _, of_members = said("timebound-members", "1/1").partition("/")
    try:
        return Answer(
            value=read(reply),
            body=reply.body,
            media=media,
            quality=Quality(said("timebound-quality", "full")),
            source=Source(said("timebound-source", "computed")),
            members=int(members),
            of_members=int(of_members),
            batch_size=int(said("timebound-batch", "0")),
            version=said("timebound-version", ""),
            votes=msgspec.json.decode(said("timebound-votes", "null").encode("latin-1")),
            timings=_timings(said("server-timing", "")),
            key=key,
            request_id=said("x-request-id"),
            elapsed=elapsed,
            attempts=attempts,
            server=server,
        )
    except (ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
        wrong = WrongAnswer(f"the answer is not as expected: {error}", status=reply.status)
        wrong.request_id = said("x-request-id")
        raise wrong from None


def as_kind(kind: Any) -> Read:
    """Reads a body as a value: JSON decoded into `kind`, anything else as bytes."""

    def read(reply: Reply) -> Any:
        media = reply.headers.get("content-type", "")
        if kind is bytes or not _is_json(media):
            if kind not in (bytes, Any):
                raise ValueError(f"it is {media or 'of no content type'}, no JSON; leave type= out to get the bytes")
            return reply.body
        return msgspec.json.decode(reply.body, type=kind)

    return read


def _is_json(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _seconds(value: str | None) -> float | None:
    """Retry-After as seconds; a date, which Timebound never sends, counts as none."""
    return float(value) if value is not None and value.strip().isdecimal() else None


def _timings(value: str) -> Timings:
    """Server-Timing as seconds; entries of proxies are left out."""
    found = {}
    for entry in value.split(","):
        name, _, rest = entry.strip().partition(";dur=")
        if name in Timings.__struct_fields__ and rest:
            found[name] = float(rest) * 1e-3
    return Timings(**found)
