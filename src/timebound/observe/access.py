"""The access log: one line per request, written in bundles by a thread of its own, off the request's path."""

from __future__ import annotations

import logging
import queue
import threading

from timebound.events import Answered, Events, Refused

log = logging.getLogger("timebound.access")

_MAX_WAITING = 100_000


class AccessLog:
    """Collects lines while requests run; a full backlog drops lines and says how many."""

    def __init__(self, events: Events) -> None:
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
            log.info("request", extra=_fields(event))


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
