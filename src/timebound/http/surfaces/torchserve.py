"""TorchServe's protocol, which was MMS's: any body to a model archive's handler, and what that answers, as it is.

The gateway looks at no body; `handlers/rows.py` reads it in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from timebound.errors import RequestError
from timebound.handlers.envelope import SAID, Asked, open_said, pack_asked
from timebound.handlers.registry import VERSION
from timebound.http.problems import detail_of, headers_of, status_of
from timebound.http.surfaces.base import Asked as Taken
from timebound.http.surfaces.base import Item, Reply
from timebound.http.surfaces.oip import answer_head
from timebound.http.target import query_of, rest_of
from timebound.reading import Looked
from timebound.store.fingerprint import of_bytes
from timebound.types import ModelInfo, Outcome, Question, Result

_TYPES = {
    "unknown_model": "ModelNotFoundException",
    "not_found": "ResourceNotFoundException",
    "method_not_allowed": "MethodNotAllowedException",
    "forbidden": "InvalidKeyException",
    "unauthorized": "InvalidKeyException",
    "reload_failed": "ConflictStatusException",
    "body_too_large": "RequestEntityTooLargeException",
    "deadline_missed": "RequestTimeoutException",
}


class TorchServe:
    """Any of GET, POST and PUT to /predictions/NAME, with whatever follows the version; and to KServe's first path."""

    is_whole = True
    methods = frozenset((b"GET", b"PUT"))
    takes_rest = True
    """What follows the version in the path is the handler's own, as `url_path`."""
    more: ClassVar[Mapping[str, str]] = {"explain": "False"}
    """Headers that the path stands for."""
    takes_query = False

    def __init__(self, info: ModelInfo) -> None:
        self._is_by_content = info.cache == "content"

    @staticmethod
    def is_for(info: ModelInfo) -> bool:
        return info.is_handler

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/predictions/{info.name}", f"/v1/models/{info.name}:predict"] if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [info.version_path, f"/v1/models/{info.base}/versions/{info.version}:predict"]

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Looked | None = None) -> Taken:
        query = query_of(fields) if self.takes_query else b""
        more = {**self.more, "url_path": rest_of(fields)} if self.takes_rest else dict(self.more)
        item = pack_asked(Asked(list(fields.items()), more, query), body)
        print_ = b""
        if self._is_by_content or b"idempotency-key" in fields:
            # Of what the client asks, not of how: a retry has another date and other traces in its headers.
            print_ = looked[2] if looked is not None else of_bytes(body)
            print_ = of_bytes(b"\0".join((print_, fields.get(b"content-type", b""), repr(more).encode(), query)))
        return Taken((Item(item, None, 1.0, print_),))

    def write(self, asked: Taken, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        result, request_id = results[0], questions[0].id
        if isinstance(result, RequestError):
            return self.refuse(result, request_id)
        outcome = result.outcome
        if outcome.code:
            status, kind, detail = _failed(outcome)
            body = _body(status, kind, detail)
            return status, _head(b"application/json", body, b"", request_id), body
        status, media, more, body = 200, outcome.media, b"", outcome.body
        if media == SAID:
            said, body = open_said(body)
            status, media = said.status, said.media
            more = b"".join(f"{name}: {value}\r\n".encode() for name, value in said.headers)
        return status, answer_head(media.encode(), body, more, request_id, [result]), body

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        status, media, body = said_error(error)
        head = b"".join(b"%b: %b\r\n" % header for header in headers_of(error))
        return status, _head(media, body, head, request_id), body


class Explanations(TorchServe):
    """The same to /explanations/NAME: the handler is asked why."""

    more: ClassVar[Mapping[str, str]] = {"explain": "True"}

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        own = [f"/explanations/{info.name}", f"/v1/models/{info.name}:explain"]
        return own if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [f"/explanations/{info.base}/{info.version}"]


class Invocations(TorchServe):
    """The paths of SageMaker and of MMS's first release: what the query says are fields too."""

    lone_path = "/invocations"
    takes_rest, takes_query = False, True
    more: ClassVar[Mapping[str, str]] = {}

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/models/{info.name}/invoke", f"/{info.name}/predict"] if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [f"/{info.base}/{info.version}/predict"]


def said_error(error: RequestError) -> tuple[int, bytes, bytes]:
    """Status, media type and body of an error, as TorchServe's clients know them."""
    status = 400 if error.code == "bad_input" else status_of(error.code)
    kind = "BadRequestException" if status < 500 else "InternalServerException"
    if status in (429, 503):
        kind = "ServiceUnavailableException"
    kind = _TYPES.get(error.code, kind)
    if error.code == "unknown_model" and error.field == VERSION:
        kind = "ModelVersionNotFoundException"
    return status, b"application/json", _body(status, kind, error.detail)


def _failed(outcome: Outcome) -> tuple[int, str, str]:
    """Status, type and text of what the worker says of a failure."""
    detail, _ = detail_of(outcome)
    told: dict[str, Any] = msgspec.json.decode(outcome.body)
    if "status" in told:  # what comes from a handler has one type
        return told["status"], "InternalServerException", detail
    status = 400 if outcome.code == "bad_input" else status_of(outcome.code)
    return status, "BadRequestException" if status < 500 else "InternalServerException", detail


def _body(status: int, kind: str, detail: str) -> bytes:
    told = {"code": status, "type": kind, "message": detail}
    return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


def _head(media: bytes, body: bytes, more: bytes, request_id: str) -> bytes:
    return b"content-type: %b\r\ncontent-length: %d\r\n%bx-request-id: %b\r\n" % (
        media, len(body), more, request_id.encode()
    )  # fmt: skip
