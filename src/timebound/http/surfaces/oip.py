"""The Open Inference Protocol, version 2: tensors in, tensors out; the first dimension counts the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from timebound.errors import Refusal, RequestError
from timebound.handlers.envelope import Asked as Parcel
from timebound.handlers.envelope import pack_asked
from timebound.http.packed import packing_as
from timebound.http.problems import detail_of, headers_of, said
from timebound.http.surfaces.base import Asked, Item, Read, Reply
from timebound.reading import Errand, is_heavy
from timebound.tensors import packing
from timebound.tensors.given import Facts, Infer
from timebound.tensors.item import MEDIA
from timebound.tensors.pieces import Steps, at_once
from timebound.tensors.request import Told, has_many_values, is_laborious, read
from timebound.tensors.response import Column, in_form, of_one, outputs_of, raw_outputs, response
from timebound.types import Body, ModelInfo, Quality, Question, Result, Source

READER = "timebound.tensors.request"
_LIGHT_ELEMENTS = 16_000
"""Bytes of binary data that are walked through here, should they be BYTES: element by element."""
_LIGHT_HEAD = 4_096
"""Bytes of JSON that are read at once."""
_FEW_BYTES = 16_000
"""Bytes of JSON that are looked through for many small items; of more, `is_heavy` counts the values."""
_LIGHT_TO_PRINT = 256_000
"""Bytes whose fingerprint is made here, and of JSON the most that are looked at."""
_HEAD_SIZE = b"inference-header-content-length"
_ANSWER = (
    b"content-type: %b\r\ncontent-length: %d\r\n%bx-request-id: %b\r\n"
    b"timebound-source: %b\r\ntimebound-batch: %d\r\ntimebound-quality: %b\r\ntimebound-members: %d/%d\r\n"
    b"server-timing: queue;dur=%.3f, prepare;dur=%.3f, infer;dur=%.3f, finish;dur=%.3f\r\n"
)
_VARY = b"vary: accept-encoding\r\n"
_TAKEN_PACKED = [(b"accept-encoding", b"gzip, deflate")]
_WORST = {Quality.FALLBACK: 0, Quality.PARTIAL: 1, Quality.FULL: 2}

_as_infer = msgspec.msgpack.Decoder(Infer).decode


class OpenInference:
    """POST to /v2/models/NAME/infer."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._facts = facts_of(info)
        self._encoded_facts = msgspec.msgpack.encode(self._facts)
        self._is_by_content = info.cache == "content"

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/v2/models/{info.name}/infer"] if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [f"/v2/models/{info.base}/versions/{info.version}/infer"]

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        told = self._told(fields, most)
        if not told.encoding and not self._is_heavy(told, body):
            return None
        return Errand(READER, self._encoded_facts, msgspec.msgpack.encode(told))

    def _is_heavy(self, told: Told, body: bytes) -> bool:
        size = len(body) if told.head_size is None else min(told.head_size, len(body))
        if (told.needs_print or self._facts.key is not None) and len(body) > _LIGHT_TO_PRINT:
            return True
        if len(body) - size > _LIGHT_ELEMENTS and (size > _LIGHT_HEAD or is_laborious(body[:size])):
            return True
        if size > _LIGHT_TO_PRINT:
            return True
        if size <= _FEW_BYTES and has_many_values(body if size == len(body) else body[:size]):
            return True
        if size <= _LIGHT_HEAD:
            return False
        head = body if size == len(body) else body[:size]
        # What JSON has no numbers for is sought text by text.
        return b"NaN" in head or b"Infinity" in head or is_heavy(head, _AS_JSON, needs_print=True)

    def _told(self, fields: Mapping[bytes, bytes], most: int = 0) -> Told:
        head_size, encoding = None, ""
        if _HEAD_SIZE in fields:
            head_size = _whole_number(fields[_HEAD_SIZE])
        if b"content-encoding" in fields:
            encoding = fields[b"content-encoding"].decode("latin-1").strip().lower()
            encoding = "" if encoding == "identity" else encoding
        return Told(head_size, encoding, most, self._is_by_content or b"idempotency-key" in fields)

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Read | None = None) -> Asked:
        if looked is None:
            infer = read(self._facts, self._told(fields, len(body)), body)
        else:
            infer = _as_infer(looked.said)
        asked = Asked(items_of(self._info, infer), infer.timeout_s, infer.priority, infer)
        if b"accept-encoding" in fields:
            asked.wrap = packing_as(packing.wanted(fields[b"accept-encoding"]))
        if looked is not None:
            asked.hold = looked.hold
        return asked

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
        first = answered[0]
        version = first.version or questions[0].version or self._info.version
        try:
            if len(answered) == 1 and first.outcome.media == MEDIA and first.source is Source.COMPUTED:
                body, head_size = of_one(first.outcome.body, self._info.base, version, infer.id)
            else:
                columns = yield from columns_of(self._info, infer, answered)
                body, head_size = response(self._info.base, version, infer.id, columns)
        except RequestError as different:
            return self.refuse(different, questions[0].id)
        media, more = b"application/json", _VARY
        if head_size is not None:
            media, more = b"application/octet-stream", _VARY + b"inference-header-content-length: %d\r\n" % head_size
        return 200, answer_head(media, body, more, questions[0].id, answered), body

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return said_error(error, request_id)


_AS_JSON = ModelInfo(name="", body=Body.JSON)


def facts_of(info: ModelInfo) -> Facts:
    """What must be known of a model to cut its requests."""
    key = info.key if info.key is not None and "." not in info.key else None
    outputs = [output.name for output in info.outputs]
    return Facts(info.inputs, outputs, info.body is Body.RAW, key, info.size_field, info.key_ignore)


def items_of(info: ModelInfo, infer: Infer) -> list[Item]:
    """The items of a request; a handler finds what was said besides its tensors among the headers of each."""
    if not infer.more or not info.is_handler:
        return [Item(cut.body, cut.key, cut.size, cut.fingerprint) for cut in infer.items]
    told = {name: value if isinstance(value, str) else _as_text(value) for name, value in infer.more.items()}
    return [Item(pack_asked(Parcel([], told, is_bare=True), cut.body)) for cut in infer.items]


def _as_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def columns_of(info: ModelInfo, infer: Infer, answered: Sequence[Result]) -> Steps[list[Column]]:
    """The outputs of all items; raises `RequestError` if they do not fit together."""
    if answered[0].outcome.media == MEDIA:
        columns = outputs_of([each.outcome.body for each in answered])
        if all(each.source is Source.COMPUTED for each in answered):
            return columns
        forms = {each.name: each.is_binary for each in infer.wanted}
        return (yield from in_form(columns, forms, is_binary=infer.is_binary))
    wanted = infer.wanted[0] if infer.wanted else None
    is_binary = infer.is_binary if wanted is None else wanted.is_binary
    name = info.outputs[0].name if info.outputs else "answer"
    return (yield from raw_outputs(name, [each.outcome.body for each in answered], is_binary=is_binary))


def said_error(error: RequestError, request_id: str) -> Reply:
    """An error as this protocol says it: status, header lines and body."""
    status, media, body = said(error, b"/v2")
    head = b"content-type: %b\r\ncontent-length: %d\r\n" % (media, len(body))
    more = _TAKEN_PACKED if error.code == "unsupported_encoding" else headers_of(error)
    head += b"".join(b"%b: %b\r\n" % header for header in more)
    return status, head + b"x-request-id: %b\r\n" % request_id.encode(), body


def answer_head(media: bytes, body: bytes, more: bytes, request_id: str, answered: Sequence[Result]) -> bytes:
    """The header lines of an answer to several items: they tell of the worst one."""
    worst = worst_of(answered)
    timing = worst.timing
    return _ANSWER % (
        media,
        len(body),
        more,
        request_id.encode(),
        worst.source.encode(),
        worst.batch_size,
        worst.quality.encode(),
        worst.members,
        worst.of_members,
        worst.queue_s * 1e3,
        timing.prepare_s * 1e3,
        timing.infer_s * 1e3,
        timing.finish_s * 1e3,
    )


def worst_of(answered: Sequence[Result]) -> Result:
    """The item of which least of the model is in its answer."""
    if len(answered) == 1:
        return answered[0]
    return min(answered, key=lambda each: (_WORST[each.quality], each.members))


def first_error(results: Sequence[Result | RequestError]) -> RequestError | None:
    """The error of the first item that has one; of several it says which."""
    for place, result in enumerate(results):
        error = result if isinstance(result, RequestError) else _error_of(result)
        if error is not None:
            return error if len(results) == 1 else _at(place, error)
    return None


def _error_of(result: Result) -> RequestError | None:
    outcome = result.outcome
    if not outcome.code:
        return None
    detail, field = detail_of(outcome)
    return RequestError(f"input {field!r}: {detail}" if field else detail, code=outcome.code, field=field)


def _at(place: int, error: RequestError) -> RequestError:
    """The same, saying which of the items it is about; the time to come back stays."""
    detail = f"item {place}: {error.detail}"
    if isinstance(error, Refusal):
        return Refusal(detail, code=error.code, retry_after_s=error.retry_after_s)
    return RequestError(detail, code=error.code, field=error.field)


def _whole_number(value: bytes) -> int:
    text = value.strip()
    if not text.isdigit() or len(text) > 15:
        raise RequestError(
            "Inference-Header-Content-Length must be a whole number of bytes",
            code="bad_header",
            field=_HEAD_SIZE.decode(),
        )
    return int(text)
