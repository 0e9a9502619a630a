"""A surface: a JSON list of bodies in, a list of answers and errors out, each item scheduled by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from timebound.body import FirstLook
from timebound.errors import RequestError
from timebound.http.problems import status_of
from timebound.http.surfaces.base import Asked, Item, Reply
from timebound.types import ModelInfo, Question, Result


class Lists:
    """POST /many/NAME."""

    def __init__(self, info: ModelInfo) -> None:
        self._shape = FirstLook(info)

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/many/{info.name}"]

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return []

    def read(self, fields: Mapping[bytes, bytes], body: bytes) -> Asked:
        bodies = [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])]
        return Asked([Item(each, *self._shape.check(each)) for each in bodies])

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        return _reply(200, [_said(result) for result in results])

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return _reply(status_of(error.code), {"error": error.code})


def _said(result: Result | RequestError) -> Any:
    if isinstance(result, RequestError):
        return {"error": result.code}
    return {"error": result.outcome.code} if result.outcome.code else msgspec.Raw(result.outcome.body)


def _reply(status: int, value: Any) -> Reply:
    body = msgspec.json.encode(value)
    return status, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body), body
