"""The server's life as log lines: one per change of state, none per request that went well."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import asdict

from timebound.events import Answered, BatchesShrunk, BatchLost, Events, Quarantined, WorkerDown, WorkerUp
from timebound.types import ModelInfo

log = logging.getLogger("timebound.server")


def log_life(events: Events) -> None:
    """Write a line when a worker comes, goes or takes a batch with it, and when a model failed on a request."""
    events.on_many(Answered, _answered)
    events.on(WorkerUp, lambda event: log.info("worker is up", extra=asdict(event)))
    events.on(WorkerDown, _worker_down)
    events.on(BatchLost, lambda event: log.warning("a batch was lost with its worker", extra=asdict(event)))
    events.on(BatchesShrunk, _batches_shrunk)
    events.on(Quarantined, _quarantined)


def warn_if_slow(info: ModelInfo) -> None:
    """What every client would find out one by one is said once: at warm-up this model took longer than it may."""
    if info.warm_up_s <= info.deadline_s:
        return
    what = "every answer will be its fallback" if info.has_fallback else "no answer will be in time"
    if info.members > 1:
        what = "answers will be partial at best"
    log.warning(
        "a lone request took longer than its deadline: if the machine is not busier than usual, %s; raise the deadline,"
        " or serve a smaller network", what,
        extra={"model": info.name, "took_s": round(info.warm_up_s, 4), "deadline_s": info.deadline_s},
    )  # fmt: skip


def _answered(events: Sequence[Answered]) -> None:
    for event in events:
        if event.result.outcome.code == "model_failed":  # the worker's log has the traceback
            facts = {"model": event.request.model, "request_id": event.request.id}
            log.error("a request failed in the model", extra=facts)


def _worker_down(event: WorkerDown) -> None:
    level = logging.DEBUG if event.was_asked else logging.ERROR
    log.log(level, "worker is gone", extra={"worker": event.worker, "pid": event.pid, "code": event.code})


def _batches_shrunk(event: BatchesShrunk) -> None:
    log.warning("memory is short, batches are smaller for a while", extra={"model": event.model, "most": event.limit})


def _quarantined(event: Quarantined) -> None:
    facts = {"model": event.model, "for_s": round(event.seconds), "loss": event.loss}
    log.error("a request kills its worker and is not run again", extra=facts)
