"""The protocol of TensorFlow Serving, which is KServe's first: `instances` in, `predictions` out, or by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from timebound.errors import RequestError
from timebound.http.surfaces.base import Asked, Item, Read, Reply
from timebound.http.surfaces.oip import answer_head, first_error, said_error
from timebound.reading import LIGHT, Errand
from timebound.tensors.pieces import Steps, as_base64, at_once
from timebound.tensors.request import Told
from timebound.tensors.rows import RowFacts, RowReader, Rows
from timebound.types import Body, ModelInfo, Question, Result

READER = "timebound.tensors.rows"

_OBJECT = ord("{")

_as_rows = msgspec.msgpack.Decoder(Rows).decode
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Predict:
    """POST to /v1/models/NAME:predict."""

    def __init__(self, info: ModelInfo) -> None:
        is_raw = info.body is Body.RAW
        needed = [each.name for each in info.inputs if not each.is_optional]
        lone = needed[0] if len(needed) == 1 else None
        schema = None if is_raw else info.request_schema or {}
        self._facts = RowFacts(schema, lone, info.key, info.size_field, info.key_ignore)
        self._encoded_facts = msgspec.msgpack.encode(self._facts)
        self._reader = RowReader(self._facts)
        self._is_by_content = info.cache == "content"
        self._lone_output = info.outputs[0].name if len(info.outputs) == 1 and not is_raw else None

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        if info.name != info.base:
            return []
        return [f"/v1/models/{info.name}:predict", f"/v1/models/{info.name}/versions/0:predict"]

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [f"/v1/models/{info.base}/versions/{info.version}:predict"]

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        if len(body) <= LIGHT and b"content-encoding" not in fields:
            return None
        return Errand(READER, self._encoded_facts, msgspec.msgpack.encode(self._told(fields, most)))

    def _told(self, fields: Mapping[bytes, bytes], most: int) -> Told:
        encoding = fields.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        return Told(None, encoding, most, self._is_by_content or b"idempotency-key" in fields)

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Read | None = None) -> Asked:
        rows = self._reader.read(self._told(fields, len(body)), body) if looked is None else _as_rows(looked.said)
        items = [Item(cut.body, cut.key, cut.size, cut.fingerprint) for cut in rows.items]
        return Asked(items, context=rows, hold=None if looked is None else looked.hold)

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        return at_once(self.in_steps(asked, questions, results))

    def in_steps(
        self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]
    ) -> Steps[Reply]:
        error = first_error(results)
        if error is not None:
            return self.refuse(error, questions[0].id)
        answered = [result for result in results if isinstance(result, Result)]
        answers = []
        for result in answered:
            answers.append((yield from self._answer(result)))
            yield
        rows: Rows = asked.context
        try:
            said = {"outputs": (yield from self._by_columns(answers))} if rows.is_columns else {"predictions": answers}
        except RequestError as different:
            return self.refuse(different, questions[0].id)
        body = msgspec.json.encode(said)
        return 200, answer_head(b"application/json", body, b"", questions[0].id, answered), body

    def _answer(self, result: Result) -> Steps[Any]:
        """What an item is answered; of a model with one output its bare value."""
        outcome = result.outcome
        if outcome.media != "application/json":
            return {"b64": msgspec.Raw((yield from as_base64(outcome.body)))}
        if self._lone_output is not None and outcome.body[:1] == b"{":
            fields = _fields_of(outcome.body)
            if list(fields) == [self._lone_output]:
                return fields[self._lone_output]
        return msgspec.Raw(outcome.body)

    def _by_columns(self, answers: Sequence[Any]) -> Steps[Any]:
        if not all(isinstance(answer, msgspec.Raw) and memoryview(answer)[0] == _OBJECT for answer in answers):
            return answers
        each = []
        for answer in answers:
            each.append(_fields_of(memoryview(answer)))
            yield
        if any(fields.keys() != each[0].keys() for fields in each):
            raise RequestError("the items have different outputs; send them one by one", code="model_failed")
        return {name: [fields[name] for fields in each] for name in each[0]}

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return said_error(error, request_id)
