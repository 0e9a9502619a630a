"""The scheduler's share in what follows a loss: whose batch has hung, who runs again, who must run alone.

A plain request enters nothing of this.
"""

from __future__ import annotations

from timebound.scheduler.served import InFlight, Served
from timebound.scheduler.survivors import Trouble, hang_limit_s, short_of_memory
from timebound.scheduler.ticket import Batch, Ticket

MIN_RETRY_AFTER_S = 0.05  # a client that comes back sooner finds what it left


class Recovery:
    """What a scheduler can be told and asked when something was lost."""

    margin_s: float
    _models: dict[str, Served]
    _running: InFlight
    _servers: int
    _trouble: Trouble

    def queued(self, model: str | None = None) -> int:
        """How many tickets wait, for one model or for all."""
        raise NotImplementedError

    def batch_lost(self, batch: Batch, now: float, guilty: Ticket | None = None) -> None:
        """Its worker is gone. Its tickets run again as long as there is time, apart from others and in smaller parts.

        Those marked as suspects wait for `take_suspects`. One that is found `guilty` does not run again.
        """
        if batch.closed:
            return
        self._running.close(batch, now)
        served = self._models.get(batch.model, batch.served)
        self._trouble.lost(served, batch, now + self.margin_s, self._servers, guilty)

    def hang_limit_s(self, batch: Batch) -> float:
        """A batch that runs longer than this has hung."""
        return hang_limit_s(batch.served, batch)

    def short_of_memory(self, batch: Batch, items: int, now: float, *, is_certain: bool) -> int | None:
        """A batch of so many items was too large for the memory; the new limit on its model's batches, if any."""
        return short_of_memory(batch.served, items, now, is_certain=is_certain)

    @property
    def has_others(self) -> bool:
        """Whether tickets wait that are no suspects."""
        return self.queued() > len(self._trouble.suspects)

    def suspects_can_wait(self, now: float, *, is_needed: bool) -> bool:
        """Whether the suspects whose turn it is can be in time if they start a little later."""
        return self._trouble.can_wait(self._models, now + self.margin_s, MIN_RETRY_AFTER_S, is_needed=is_needed)
