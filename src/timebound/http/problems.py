"""Errors as clients see them: one table from code to status, and the problem+json body."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from timebound.errors import Refusal, RequestError
from timebound.types import Outcome

MEDIA = b"application/problem+json"

STATUSES: dict[str, tuple[int, str]] = {
    "malformed_http": (400, "Malformed HTTP"),
    "malformed_json": (400, "Malformed JSON"),
    "empty_body": (400, "Empty body"),
    "bad_header": (400, "Bad header"),
    "unauthorized": (401, "Not authorized"),
    "forbidden": (403, "Not allowed"),
    "not_found": (404, "Not found"),
    "unknown_model": (404, "Unknown model"),
    "no_result": (404, "No result"),
    "method_not_allowed": (405, "Method not allowed"),
    "slow_client": (408, "Request took too long to arrive"),
    "reload_failed": (409, "Reload failed"),
    "body_too_large": (413, "Body too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "unsupported_encoding": (415, "Unsupported encoding"),
    "bad_input": (422, "Bad input"),
    "key_reused": (422, "Key reused with another body"),
    "too_long": (422, "Too long for the model"),
    "too_much_history": (422, "Too much is asked of the history"),
    "queue_full": (429, "Too many requests"),
    "deadline_unreachable": (429, "The deadline cannot be met"),
    "overloaded": (429, "Too many requests"),
    "too_late": (429, "Too many requests"),
    "rate_limited": (429, "Too many requests"),
    "client_busy": (429, "Too much at once"),
    "headers_too_large": (431, "Headers too large"),
    "internal": (500, "Internal error"),
    "model_failed": (500, "The model failed"),
    "crashes_worker": (500, "The request crashes its worker"),
    "not_ready": (503, "Not ready"),
    "store_unavailable": (503, "Store not available"),
    "draining": (503, "Shutting down"),
    "too_many_watchers": (503, "Too many pages watch"),
    "too_many_connections": (503, "Too many connections"),
    "memory_full": (503, "Too much in memory"),
    "deadline_missed": (504, "Deadline missed"),
}

OLD_CODES = {
    "hopeless": "deadline_unreachable",
    "displaced": "overloaded",
    "poison": "crashes_worker",
}
"""Codes that were renamed, and their new names. Bodies carry both until the next release; then this table goes away."""

_WAS = {new: old for old, new in OLD_CODES.items()}


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem+json body (RFC 9457); `code` is stable, `detail` is for people, `field` is the part at fault.

    `old_code` is what `code` was called in the release before.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    request_id: str | None = None
    old_code: str | None = None


def status_of(code: str) -> int:
    """The HTTP status of an error code."""
    return STATUSES.get(OLD_CODES.get(code, code), STATUSES["internal"])[0]


def problem_body(code: str, detail: str, *, field: str | None = None, request_id: str | None = None) -> bytes:
    """The problem+json body for an error; one that still has its old code gets the new one."""
    code = OLD_CODES.get(code, code)
    status, title = STATUSES.get(code, STATUSES["internal"])
    return msgspec.json.encode(
        Problem(f"urn:timebound:{code}", title, status, detail, code, field, request_id, _WAS.get(code))
    )


def from_error(error: RequestError, request_id: str | None = None) -> bytes:
    """The problem+json body for an error raised in the gateway."""
    return problem_body(error.code, error.detail, field=error.field, request_id=request_id)


def from_outcome(outcome: Outcome, request_id: str | None = None) -> bytes:
    """The problem+json body for an item's error that a worker reported."""
    detail, field = detail_of(outcome)
    return problem_body(outcome.code, detail, field=field, request_id=request_id)


def detail_of(outcome: Outcome) -> tuple[str, str | None]:
    """What a worker says of an item's error, and the field at fault."""
    facts: dict[str, Any] = msgspec.json.decode(outcome.body)
    return facts["detail"], facts["field"]


_TENSOR_PATH = re.compile(rb"/v2(?:/|$)|/v1/models/[^/]+(?:/versions/[^/]+)?:(?:predict|classify|regress|explain)")
"""Where other protocols than our own are spoken: their clients know errors of one form only."""


def is_foreign(path: bytes) -> bool:
    """Whether this path is of a protocol that says errors as `{"error": "..."}`."""
    return _TENSOR_PATH.match(path) is not None


def said(error: RequestError, path: bytes, request_id: str | None = None) -> tuple[int, bytes, bytes]:
    """Status, media type and body of an error, in the words of the protocol that this path belongs to."""
    if not is_foreign(path):
        return status_of(error.code), MEDIA, from_error(error, request_id)
    # Input that is wrong is a bad request there.
    status = 400 if error.code == "bad_input" else status_of(error.code)
    is_named = error.field is None or error.field in error.detail or error.code == "bad_header"
    detail = error.detail if is_named else f"{error.field}: {error.detail}"  # there is no other place to say it
    return status, b"application/json", msgspec.json.encode({"error": detail})


def headers_of(error: RequestError) -> list[tuple[bytes, bytes]]:
    """What an error says in headers: when asking again may help, how to show who one is, what encodings are taken."""
    if isinstance(error, Refusal) and error.retry_after_s is not None:
        return [(b"retry-after", b"%d" % max(1, -int(-error.retry_after_s // 1)))]
    return _HEADERS.get(error.code, [])


def problem(error: RequestError, request_id: str | None = None) -> tuple[int, bytes, bytes]:
    """An error as status, header lines and problem+json body."""
    body = from_error(error, request_id)
    head = b"content-type: %b\r\ncontent-length: %d\r\n" % (MEDIA, len(body))
    head += b"".join(b"%b: %b\r\n" % header for header in headers_of(error))
    if request_id is not None:
        head += b"x-request-id: %b\r\n" % request_id.encode()
    return status_of(error.code), head, body


_HEADERS = {
    "unauthorized": [(b"www-authenticate", b'Bearer realm="timebound"')],
    "unsupported_encoding": [(b"accept-encoding", b"identity")],
}
