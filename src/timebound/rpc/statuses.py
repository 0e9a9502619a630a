"""Errors as gRPC clients see them: one table from code to status, and what goes along as metadata."""

from __future__ import annotations

from grpc import StatusCode

from timebound.errors import Refusal, RequestError
from timebound.http.problems import OLD_CODES

Metadata = tuple[tuple[str, str], ...]

STATUSES: dict[str, StatusCode] = {
    "malformed_http": StatusCode.INVALID_ARGUMENT,
    "malformed_json": StatusCode.INVALID_ARGUMENT,
    "empty_body": StatusCode.INVALID_ARGUMENT,
    "bad_header": StatusCode.INVALID_ARGUMENT,
    "bad_input": StatusCode.INVALID_ARGUMENT,
    "too_long": StatusCode.INVALID_ARGUMENT,
    "unsupported_media_type": StatusCode.INVALID_ARGUMENT,
    "unsupported_encoding": StatusCode.UNIMPLEMENTED,
    "method_not_allowed": StatusCode.UNIMPLEMENTED,
    "unauthorized": StatusCode.UNAUTHENTICATED,
    "forbidden": StatusCode.PERMISSION_DENIED,
    "not_found": StatusCode.NOT_FOUND,
    "unknown_model": StatusCode.NOT_FOUND,
    "no_result": StatusCode.NOT_FOUND,
    "key_reused": StatusCode.FAILED_PRECONDITION,
    "reload_failed": StatusCode.FAILED_PRECONDITION,
    "body_too_large": StatusCode.RESOURCE_EXHAUSTED,
    "headers_too_large": StatusCode.RESOURCE_EXHAUSTED,
    "queue_full": StatusCode.RESOURCE_EXHAUSTED,
    "deadline_unreachable": StatusCode.RESOURCE_EXHAUSTED,
    "overloaded": StatusCode.RESOURCE_EXHAUSTED,
    "too_late": StatusCode.RESOURCE_EXHAUSTED,
    "rate_limited": StatusCode.RESOURCE_EXHAUSTED,
    "client_busy": StatusCode.RESOURCE_EXHAUSTED,
    "too_many_connections": StatusCode.RESOURCE_EXHAUSTED,
    "memory_full": StatusCode.RESOURCE_EXHAUSTED,
    "internal": StatusCode.INTERNAL,
    "model_failed": StatusCode.INTERNAL,
    "crashes_worker": StatusCode.INTERNAL,
    "not_ready": StatusCode.UNAVAILABLE,
    "store_unavailable": StatusCode.UNAVAILABLE,
    "draining": StatusCode.UNAVAILABLE,
    "slow_client": StatusCode.DEADLINE_EXCEEDED,
    "deadline_missed": StatusCode.DEADLINE_EXCEEDED,
}

_BY_NUMBER = {status.value[0]: status for status in StatusCode}
_MOST_DETAIL = 500
"""Characters of an error's text: it travels in a header, and clients take eight thousand bytes of those."""
_USUAL_PAUSE_S = 1.0
_RETRIED = (StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE)
_FINAL = ("body_too_large", "headers_too_large")


def status_of(code: str) -> StatusCode:
    """The status of an error code."""
    return STATUSES.get(OLD_CODES.get(code, code), StatusCode.INTERNAL)


def by_number(number: str) -> StatusCode:
    """The status of this number."""
    return _BY_NUMBER[int(number)]


def said(error: RequestError, request_id: str = "") -> tuple[StatusCode, str, Metadata]:
    """Status, text and metadata of an error.

    `grpc-retry-pushback-ms` says when to try again, to clients that are set up to do so; a negative one says not to.
    """
    status = status_of(error.code)
    metadata = [("timebound-code", OLD_CODES.get(error.code, error.code))]
    if request_id:
        metadata.append(("x-request-id", request_id))
    if status in _RETRIED:
        metadata.append(("grpc-retry-pushback-ms", str(_pause_ms(error))))
    detail = error.detail
    return status, detail if len(detail) <= _MOST_DETAIL else detail[: _MOST_DETAIL - 3] + "...", tuple(metadata)


def _pause_ms(error: RequestError) -> int:
    if error.code in _FINAL:
        return -1
    pause_s = error.retry_after_s if isinstance(error, Refusal) else None
    return max(1, round(1e3 * (_USUAL_PAUSE_S if pause_s is None else pause_s)))
