"""Timebound's own protocol: one item a request, its body as the model takes it; the answer is the model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timebound.body import FirstLook
from timebound.errors import RequestError
from timebound.http.problems import MEDIA, from_outcome, problem, status_of
from timebound.http.surfaces.base import Asked, Item, Reply
from timebound.http.surfaces.forms import Forms, check_encoding
from timebound.http.surfaces.progressive import EVENTS, follow
from timebound.reading import Errand
from timebound.types import Body, ModelInfo, Question, Result

_ANSWER = (
    b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\ntimebound-source: %b\r\ntimebound-batch: %d\r\n"
    b"server-timing: queue;dur=%.3f, prepare;dur=%.3f, infer;dur=%.3f, finish;dur=%.3f\r\n"
)
_GOOD = b"timebound-quality: %b\r\ntimebound-members: %d/%d\r\n"


class Native:
    """POST to the model's own path or to /predictions/NAME."""

    is_whole = True

    def __init__(self, info: ModelInfo) -> None:
        self._shape = FirstLook(info) if info.body is Body.JSON else None
        self._forms = Forms(info)
        self.methods = frozenset(method.encode() for method in info.methods)
        self.takes_query = "GET" in info.methods

    @staticmethod
    def paths(info: ModelInfo) -> list[str]:
        return info.paths

    @staticmethod
    def version_paths(info: ModelInfo) -> list[str]:
        return [info.version_path]

    def read(self, fields: Mapping[bytes, bytes], body: bytes, looked: Any = None) -> Asked:
        if b"content-encoding" in fields:
            check_encoding(fields[b"content-encoding"])
        media = fields.get(b"content-type")
        is_plain = body and (media is None or media.startswith(b"application/json"))
        asked = None if is_plain else self._forms.read(fields, body, looked)
        if asked is None:
            facts = looked or () if self._shape is None or looked is not None else self._shape.check(body)
            asked = Asked((Item(body, *facts),))
        if b"accept" in fields and EVENTS in fields[b"accept"].lower():
            follow(asked, fields[b"accept"])
        return asked

    def elsewhere(self, fields: Mapping[bytes, bytes], body: bytes, most: int) -> Errand | None:
        return self._forms.elsewhere(fields, body)

    def write(self, asked: Asked, questions: Sequence[Question], results: Sequence[Result | RequestError]) -> Reply:
        question, result = questions[0], results[0]
        if isinstance(result, RequestError):
            return self.refuse(result, question.id)
        outcome, timing = result.outcome, result.timing
        if asked.context is not None and not outcome.code and (last := asked.context.last(question, result)):
            return last  # type: ignore[no-any-return]
        if outcome.code:
            status, media, body = status_of(outcome.code), MEDIA, from_outcome(outcome, question.id)
        else:
            status, media, body = 200, outcome.media.encode(), outcome.body
        head = _ANSWER % (
            media,
            len(body),
            question.id.encode(),
            result.source.encode(),
            result.batch_size,
            result.queue_s * 1e3,
            timing.prepare_s * 1e3,
            timing.infer_s * 1e3,
            timing.finish_s * 1e3,
        )
        if not outcome.code:  # an item that failed has no answer whose quality could be told
            head += _GOOD % (result.quality.encode(), result.members, result.of_members)
            if question.wants_votes and result.votes:
                head += b"timebound-votes: %b\r\n" % result.votes.encode()
            if outcome.headers:
                head += outcome.headers.encode()
        if question.version:
            head += b"timebound-version: %b\r\n" % (result.version or question.version).encode()
        return status, head, body

    def refuse(self, error: RequestError, request_id: str) -> Reply:
        return problem(error, request_id)
