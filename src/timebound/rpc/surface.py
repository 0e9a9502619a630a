"""The Open Inference Protocol over gRPC as a surface: a ModelInferRequest in, a ModelInferResponse out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from timebound.errors import RequestError
from timebound.http.problems import status_of
from timebound.http.surfaces.base import Asked, Read, Reply
from timebound.http.surfaces.oip import columns_of, facts_of, first_error, items_of, worst_of
from timebound.reading import Errand
from timebound.rpc import reader
from timebound.rpc.statuses import said
from timebound.rpc.wire import LENGTH, field, varint
from timebound.tensors.given import Infer
from timebound.tensors.item import Data
from timebound.tensors.pieces import Steps, at_once
from timebound.tensors.request import Told
from timebound.tensors.response import Column
from timebound.types import ModelInfo, Question, Result

READER = "timebound.rpc.reader"
_LIGHT_TO_PRINT = 256_000
"""Bytes whose fingerprint is made on the event loop."""
_RAW = varint(6 << 3 | LENGTH)
"""The tag of `raw_output_contents`."""

_as_infer = msgspec.msgpack.Decoder(Infer).decode


class RpcInference:
    """Reads and writes what a model is asked by ModelInfer and ModelStreamInfer.

    Of a reply the status is that of HTTP, for metrics and logs. The head is metadata, and the body of an error the text
    that goes along with its status.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._facts = facts_of(info)
        self._encoded_facts = msgspec.msgpack.encode(self._facts)
        self._is_by_content = info.cache == "content"

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return []

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        told = self._told(fields, most)
        is_printed = told.needs_print or self._facts.key is not None
        is_heavy = bool(told.encoding) or (is_printed and len(body) > _LIGHT_TO_PRINT) or reader.is_heavy(body)
        return Errand(READER, self._encoded_facts, msgspec.msgpack.encode(told)) if is_heavy else None

    def _told(self, fields: Mapping[bytes, bytes], most: int = 0) -> Told:
        packing = fields.get(b"content-encoding", b"").decode()
        return Told(None, packing, most, self._is_by_content or b"idempotency-key" in fields)

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Read | None = None) -> Asked:
        infer = reader.read(self._facts, self._told(fields), body) if looked is None else _as_infer(looked.said)
        hold = None if looked is None else looked.hold
        return Asked(items_of(self._info, infer), infer.timeout_s, infer.priority, infer, hold=hold)

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        return at_once(self.in_steps(asked, questions, results))

    def in_steps(
        self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]
    ) -> Steps[Reply]:
        infer: Infer = asked.context
        error = first_error(results)
        if error is not None:
            return self.refuse(error, questions[0].id)
        answered = [result for result in results if isinstance(result, Result)]
        try:
            columns = yield from columns_of(self._info, infer, answered)
            _check_binary(columns)
        except RequestError as different:
            return self.refuse(different, questions[0].id)
        worst = worst_of(answered)
        version = worst.version or questions[0].version or self._info.version
        how = worst.quality.value, worst.source.value, f"{worst.members}/{worst.of_members}"
        head = b"x-request-id: %b\r\n" % questions[0].id.encode()
        return 200, head, response(_model(self._info.base, version), infer.id, _how(*how), columns)

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return refused(error, request_id)


def _check_binary(columns: Sequence[Column]) -> None:
    """Raise `RequestError` for a kept answer that is long text: it is read at once, and there is no time for that."""
    for part, _ in columns:
        if part.is_text:
            detail = f"output {part.name!r} was kept as JSON for a request over HTTP and is too long to be sent by gRPC"
            raise RequestError(f"{detail}; ask again over HTTP, or under a new key", code="key_reused")


def refused(error: RequestError, request_id: str = "") -> Reply:
    """The reply to a request that is not let in; its head begins with the number of the status."""
    status, text, metadata = said(error, request_id)
    head = "".join(f"{name}: {value}\r\n" for name, value in (("status", str(status.value[0])), *metadata))
    return status_of(error.code), head.encode(), text.encode()


def response(model: bytes, request_id: str, how: bytes, columns: Sequence[Column]) -> bytes:
    """A ModelInferResponse; the data of its outputs is copied once."""
    parts: list[Data] = [model]
    if request_id:
        parts.append(field(3, request_id.encode()))
    parts.append(how)
    parts += [_output(part.name, part.datatype, (len(column), *part.shape)) for part, column in columns]
    for _, column in columns:
        parts += (_RAW, varint(sum(map(len, column))), *column)
    return b"".join(parts)


@lru_cache(256)
def _model(name: str, version: str) -> bytes:
    return field(1, name.encode()) + field(2, version.encode())


@lru_cache(256)
def _how(quality: str, source: str, members: str) -> bytes:
    """How much of the model is in an answer, as parameters: not all clients show their callers metadata."""
    said = {"timebound_quality": quality, "timebound_source": source, "timebound_members": members}
    return b"".join(field(4, field(1, k.encode()) + field(2, field(3, v.encode()))) for k, v in said.items())


@lru_cache(1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    tensor = field(1, name.encode()) + field(2, datatype.encode()) + field(3, b"".join(map(varint, shape)))
    return field(5, tensor)
