"""The models of a scheduler: they come and go, and what was learned of their speed is kept.

A plain request enters nothing of this.
"""

from __future__ import annotations

from typing import Any

from timebound.scheduler.device import Devices
from timebound.scheduler.saved import renew_model, restore_model, save_model
from timebound.scheduler.served import Served
from timebound.scheduler.staircase import seed, seed_grid
from timebound.scheduler.survivors import Trouble
from timebound.scheduler.ticket import ModelSpec, Phase, Ticket


class Roster:
    """What a scheduler is told of models, and tells of them."""

    margin_s: float
    _devices: Devices | None
    _models: dict[str, Served]
    _servers: int
    _trouble: Trouble

    def add_model(self, spec: ModelSpec, profile: dict[str, Any] | None = None) -> None:
        """Serve this model; `profile` is its part of an earlier `profile()`. A known model keeps what it learned."""
        known = self._models.get(spec.name)
        if known is not None:
            renew_model(known, spec)
        served = known or self._models.setdefault(spec.name, Served(spec))
        if profile and known is None:
            restore_model(served, profile)
        if spec.grid_s:
            seed_grid(served.estimate, spec)
        elif spec.step_s:
            seed(served.estimate, spec)

    def remove_model(self, name: str) -> list[Ticket]:
        """Stop serving a model; its waiting tickets are returned."""
        served = self._models.pop(name)
        waiting = [e[2] for lane in served.lanes.values() for queue in lane.queues for e in queue.by_deadline]
        for ticket in waiting:
            ticket.phase, ticket.lane, ticket.place = Phase.ACCEPTED, None, None
        return waiting + self._trouble.remove_model(name)

    def observe(self, model: str, batch: int, size: float, seconds: float, member: int = 0) -> None:
        """A duration measured outside of `take`, on the same way to the worker and back."""
        self._models[model].estimate.observe(batch, size, seconds, member)

    def guess(self, model: str, seconds: float) -> None:
        """What one item took at warm-up, through all members: a first guess, without the way to the worker."""
        estimate = self._models[model].estimate
        estimate.guess(seconds / estimate.members)

    def profile(self) -> dict[str, Any]:
        """What was learned, JSON-able, by model."""
        known = {name: served for name, served in self._models.items() if served.estimate.known}
        saved = {name: {**save_model(served), "margin_s": round(self.margin_s, 5)} for name, served in known.items()}
        if (devices := self._devices) is not None:
            for name, learned in saved.items():
                learned["apart_s"] = round(devices.apart_s(name, known[name].estimate.largest_batch), 6)
        return saved

    @property
    def devices(self) -> int:
        """How many devices there are that slots share."""
        return self._servers if self._devices is not None else 0
