"""The models that requests are accepted for, as the catalogue tells; those that went may still have a batch running."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from timebound.requests.request import Request
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch, ModelSpec
from timebound.types import ModelInfo

log = logging.getLogger("timebound.requests")

_MOST_GONE = 64
"""Names that are no longer served and whose successors are known: for requests that were on their way at that time."""


class Models:
    """Tells the scheduler which models there are, and requests which one has taken over theirs."""

    def __init__(self, scheduler: Scheduler, profiles: MutableMapping[str, Any], max_queue: int) -> None:
        self._scheduler = scheduler
        self._profiles = profiles
        self._max_queue = max_queue
        self._successors: dict[str, str | None] = {}
        self.infos: dict[str, ModelInfo] = {}

    def add(self, info: ModelInfo) -> None:
        """Serve this model; one that is known keeps what was learned of it."""
        is_new, profile = info.name not in self.infos, self._profiles.get(info.name)
        if profile is not None and profile.get("made_on", info.made_on) != info.made_on:
            log.info("the saved profile is of another device, engine or version", extra={"model": info.name})
            profile = {"lengths": profile.get("lengths", {})}
        self.infos[info.name] = info
        self._successors.pop(info.name, None)
        has_sizes = bool(info.size_field) or info.has_size
        spec = ModelSpec(
            info.name,
            info.deadline_s,
            info.members,
            info.max_batch,
            is_parallel=info.is_parallel,
            max_queue=self._max_queue,
            batch_sizes=tuple(info.batch_sizes),
            # Those of inputs of different sizes depend on them, and are learned unless they were measured at several.
            step_s=() if has_sizes else tuple(map(tuple, info.step_s)),
            grid_s=tuple((size, tuple(map(tuple, steps))) for size, steps in info.grid_s),
            together_s=() if has_sizes else tuple(info.together_s),
        )
        self._scheduler.add_model(spec, profile)
        if (
            is_new
            and not (profile and profile.get("cells"))
            and info.warm_up_s > 0
            and not (spec.step_s or spec.grid_s)
        ):
            self._scheduler.guess(info.name, info.warm_up_s)

    def learned(self) -> dict[str, Any]:
        """What is known of each model's speed, and on what it was learned."""
        known = self._scheduler.profile()
        return {
            name: {**what, "made_on": self.infos[name].made_on} for name, what in known.items() if name in self.infos
        }

    def remove(self, name: str, successor: str | None) -> list[Request]:
        """Serve it no more; what waited for it is out of the queue, and asks its successor now if there is one.

        What was learned of it is forgotten: another model may have this name one day.
        """
        del self.infos[name]
        self._profiles.pop(name, None)
        self._successors[name] = successor
        if len(self._successors) > _MOST_GONE:
            del self._successors[next(iter(self._successors))]
        requests = [request for request in self._scheduler.remove_model(name) if isinstance(request, Request)]
        if successor is not None:
            for request in requests:
                request.model, request.info = successor, self.infos[successor]
        return requests

    def redirect(self, request: Request) -> bool:
        """Its model is no longer served: let it ask the one that took over, if there is one."""
        successor = self._successors.get(request.model)
        if successor not in self.infos:
            return False
        request.model, request.info = successor, self.infos[successor]
        return True

    def hand_over(self, batch: Batch) -> None:
        """A batch of a version that is no longer served was lost: its requests go to the version that took over."""
        successor = self._successors.get(batch.model)
        if batch.model not in self.infos and successor in self.infos:
            batch.model = successor
            for request in batch.tickets:
                assert isinstance(request, Request)
                self.redirect(request)
