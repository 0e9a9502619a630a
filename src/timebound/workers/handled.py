"""Runs batches of a model archive: what its handler raises and returns, told as its own server would tell it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from timebound.clock import Clock
from timebound.errors import RequestError, text_of
from timebound.handlers.envelope import SAID, Said, pack_said
from timebound.handlers.model import Handler, HandlerModel
from timebound.handlers.rows import Row, answer_of
from timebound.types import Outcome
from timebound.workers.failures import failure, is_for_want_of_memory, item_failure
from timebound.workers.runner import CAUGHT, Runner

log = logging.getLogger("timebound.worker")

_NO_OUTPUTS, _TOO_FEW = "Invalid model predict output", "number of batch response mismatched"
_NO_FORM = "Unsupported model output data type."
_STATUSES = range(200, 600)
"""Below are those that announce an answer: a client would go on waiting for it."""
_BARE = (204, 205, 304)
"""These have no body: what is sent all the same would be read as the beginning of the next answer."""
_MOST_HEADERS = 64
_SET_BY_US = {"content-length", "transfer-encoding", "connection", "content-type"}


class WrongOutput(ValueError):
    """What a handler returned is not one output for each request."""


class HandlerRunner(Runner):
    """Runs batches of one model archive; from one thread."""

    def __init__(self, model: HandlerModel, clock: Clock) -> None:
        super().__init__(model, clock)
        self.handler: Handler = model.net

    def decode(self, body: bytes | memoryview) -> Any:
        return Row(body)

    def infer(self, items: Sequence[Any]) -> list[Any]:
        outputs = self.model.infer(items)
        if not isinstance(outputs, list):
            raise WrongOutput(_NO_OUTPUTS)
        if len(outputs) != len(items):
            raise WrongOutput(_TOO_FEW)
        return outputs

    def encode(self, answer: Any, body: bytes | memoryview = b"") -> Outcome:
        made, media = answer_of(answer)
        return Outcome(made, media=media)

    def finish(self, request: Any, output: Any, body: bytes | memoryview = b"") -> Outcome:
        if isinstance(output, CAUGHT):
            return self._failure(output, "handle", body)
        try:
            return _told(request, *answer_of(output))
        except (TypeError, ValueError, RecursionError):
            log.exception("%s: an output has no form that can be sent", self.name)
            return failure("model_failed", _NO_FORM, status=503)
        except CAUGHT as error:
            return self._failure(error, "finish", body)

    def _failure(self, error: BaseException, stage: str, body: bytes | memoryview) -> Outcome:
        if isinstance(error, RequestError):
            return item_failure(self.name, error, stage, body)
        # By its name: there is one in each of the packages that handlers import.
        if type(error).__name__ == "PredictionException":
            log.error("%s: prediction error", self.name, exc_info=error)
            status = getattr(error, "error_code", 500)
            status = int(status) if status in _STATUSES and status not in _BARE else 500
            code = "bad_input" if 400 <= status < 500 else "model_failed"
            return failure(code, text_of(getattr(error, "message", error)), status=status)
        if isinstance(error, WrongOutput):
            log.error("%s: %s", self.name, error)
            return failure("model_failed", str(error), status=503)
        if is_for_want_of_memory(error) or "CUDA" in text_of(error):
            log.error("%s: out of memory", self.name, exc_info=error)
            return failure("model_failed", "Out of resources", status=507)
        log.error("%s: the handler failed", self.name, exc_info=error)
        return failure("model_failed", "Prediction failed", status=503)


def _told(row: Row, body: bytes, media: str) -> Outcome:
    """An answer with the status and the headers that the handler set for it."""
    status, _ = (row.request.get_response_status_code(), None)
    status = int(status) if status in _STATUSES else 500
    headers = {str(name).lower(): str(value) for name, value in row.request.get_response_headers().items()}
    media = headers.get("content-type") or media
    kept = [(name, value) for name, value in headers.items() if name not in _SET_BY_US and _is_header(name, value)]
    if not _is_header("content-type", media):
        media = "application/octet-stream"
    if not row.is_enveloped or (status == 200 and not kept):
        return Outcome(body, media=media)
    return Outcome(pack_said(Said(status, media, kept[:_MOST_HEADERS]), b"" if status in _BARE else body), media=SAID)


def _is_header(name: str, value: str) -> bool:
    """Whether this may be sent: a line break in a value would be a header, or an answer, of its own."""
    is_name = name.replace("-", "").replace("_", "").isalnum() and name.isascii() and len(name) < 128
    return is_name and value.isprintable() and value.isascii() and len(value) < 4_096
