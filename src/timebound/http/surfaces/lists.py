"""Several bodies in one request: a JSON list in, a JSON list out. Each item is scheduled, and fails, by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from timebound.answer_type import is_json
from timebound.errors import RequestError
from timebound.http.problems import from_error, from_outcome, problem
from timebound.http.surfaces.base import Asked, Item, Read, Reply
from timebound.http.surfaces.oip import answer_head
from timebound.reading import LIGHT, Errand
from timebound.tensors.pieces import Steps, as_base64, at_once
from timebound.tensors.request import Told
from timebound.tensors.rows import RowFacts, RowReader, Rows
from timebound.types import Body, ModelInfo, Question, Result

READER = "timebound.tensors.rows"

_as_rows = msgspec.msgpack.Decoder(Rows).decode


class Lists:
    """POST to /predictions/NAME:batch."""

    def __init__(self, info: ModelInfo) -> None:
        schema = None if info.body is Body.RAW else info.request_schema or {}
        facts = RowFacts(schema, None, info.key, info.size_field, info.key_ignore, is_list=True)
        self._encoded_facts = msgspec.msgpack.encode(facts)
        self._reader = RowReader(facts)
        self._is_by_content = info.cache == "content"

    @staticmethod
    def is_for(info: ModelInfo) -> bool:
        return not info.is_handler

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return [f"/predictions/{info.name}:batch"] if info.name == info.base else []

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [f"{info.version_path}:batch"]

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        if len(body) <= LIGHT:
            return None
        return Errand(READER, self._encoded_facts, msgspec.msgpack.encode(self._told(fields)))

    def _told(self, fields: Mapping[bytes, bytes]) -> Told:
        return Told(needs_print=self._is_by_content or b"idempotency-key" in fields)

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Read | None = None) -> Asked:
        if b"content-encoding" in fields:
            detail = "compressed bodies are not taken; send this one as it is"
            raise RequestError(detail, code="unsupported_encoding")
        rows = self._reader.read(self._told(fields), body) if looked is None else _as_rows(looked.said)
        items = [Item(cut.body, cut.key, cut.size, cut.fingerprint) for cut in rows.items]
        return Asked(items, hold=None if looked is None else looked.hold)

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        return at_once(self.in_steps(asked, questions, results))

    def in_steps(
        self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]
    ) -> Steps[Reply]:
        request_id = questions[0].id
        answered = [result for result in results if isinstance(result, Result) and not result.outcome.code]
        if not answered and isinstance(results[0], RequestError):  # nothing of it was computed: the status says why
            return self.refuse(results[0], request_id)
        each = []
        for result in results:
            each.append((yield from _said(result, request_id)))
            yield
        body = b"[%b]" % b",".join(each)
        more = b"timebound-failed: %d\r\n" % (len(results) - len(answered))
        told = answered or [result for result in results if isinstance(result, Result)]
        return 200, answer_head(b"application/json", body, more, request_id, told), body

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return problem(error, request_id)


def _said(result: Result | RequestError, request_id: str) -> Steps[bytes]:
    """One item's answer; of one that failed its problem."""
    if isinstance(result, RequestError):
        return b'{"error":%b}' % from_error(result, request_id)
    outcome = result.outcome
    if outcome.code:
        return b'{"error":%b}' % from_outcome(outcome, request_id)
    if is_json(outcome):
        return outcome.body
    return b'{"b64":%b}' % (yield from as_base64(outcome.body))
