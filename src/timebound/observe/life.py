"""The server's life as log lines: one per change of state, none per request."""

from __future__ import annotations

import logging

from timebound.events import BatchLost, Events, WorkerDown, WorkerUp

log = logging.getLogger("timebound.server")


def log_life(events: Events) -> None:
    """Write a line when a worker comes, goes or takes a batch with it."""
    events.on(WorkerUp, _worker_up)
    events.on(WorkerDown, _worker_down)
    events.on(BatchLost, _batch_lost)


def _worker_up(event: WorkerUp) -> None:
    log.info("worker is up", extra={"worker": event.worker, "pid": event.pid, "slots": event.slots})


def _worker_down(event: WorkerDown) -> None:
    level = logging.DEBUG if event.was_asked else logging.ERROR
    log.log(level, "worker is gone", extra={"worker": event.worker, "pid": event.pid, "code": event.code})


def _batch_lost(event: BatchLost) -> None:
    log.warning("a batch was lost with its worker", extra={"model": event.model, "size": event.size})
