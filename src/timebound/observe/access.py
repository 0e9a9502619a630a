"""The access log: one line per request, written in bundles by a thread of its own, off the request's path."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from hashlib import blake2b

from timebound.events import Answered, Events, Refused
from timebound.observe.told import told_by
from timebound.types import ModelInfo

log = logging.getLogger("timebound.access")

_MAX_WAITING = 100_000


class AccessLog:
    """Collects lines while requests run; a full backlog drops lines and says how many."""

    def __init__(self, events: Events, *, keys: str = "hashed", models: Mapping[str, ModelInfo] | None = None) -> None:
        self._keys = keys
        self._models = {} if models is None else models
        self._lines: queue.SimpleQueue[Answered | Refused | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="access-log", daemon=True)
        events.on(Answered, self._put)
        events.on(Refused, self._put)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._thread.join(timeout=5)

    def _put(self, event: Answered | Refused) -> None:
        if self._lines.qsize() < _MAX_WAITING:
            self._lines.put(event)
        else:
            self._dropped += 1

    def _write(self) -> None:
        while (event := self._lines.get()) is not None:
            if self._dropped:
                log.warning("access lines dropped", extra={"count": self._dropped})
                self._dropped = 0
            log.info("request", extra=_fields(event) | self._details(event))

    def _details(self, event: Answered | Refused) -> dict[str, object]:
        """Key, batch and answer: of the answer its size, and what it says only if the model's inputs are kept too."""
        question = event.request if isinstance(event, Answered) else event.question
        found: dict[str, object] = {}
        if question is not None and question.key and self._keys != "none":
            found["key"] = question.key if self._keys == "plain" else hashed(question.key)
        run = event.run if isinstance(event, Refused) else event.result.run
        if run is not None:
            found |= {"batch_id": run.id, "slot": run.slot}
        if isinstance(event, Refused):
            return found
        outcome = event.result.outcome
        info = self._models.get(event.request.model)
        found["answer_bytes"] = len(outcome.body)
        if info is not None and info.keep_inputs and not outcome.code:
            told = told_by(outcome.body, outcome.media, info.label_field)
            found |= {"label": told.label} if told.label else {}
            found |= {"confidence": told.confidence} if told.confidence is not None else {}
        return found


def hashed(key: str) -> str:
    """A key as the log shows it: the same for equal keys. Who knows what keys look like can try them all."""
    return blake2b(key.encode(), digest_size=8).hexdigest()


def _fields(event: Answered | Refused) -> dict[str, object]:
    ms = round(event.seconds * 1e3, 2)
    if isinstance(event, Refused):
        whose = _whose(event.client, event.address)
        facts = {"model": event.model, "status": event.status, "code": event.code, "ms": ms}
        return {**whose, **facts, "request_id": event.request_id}
    request, result = event.request, event.result
    code = result.outcome.code
    return {
        **_whose(request.client, request.address),
        "model": request.model,
        "status": event.status,
        "ms": ms,
        **({"code": code} if code else {"quality": str(result.quality)}),
        "source": str(result.source),
        "batch": result.batch_size,
        "request_id": request.id,
    }


def _whose(client: str, address: str) -> dict[str, str]:
    return {name: value for name, value in (("client", client), ("address", address)) if value}
