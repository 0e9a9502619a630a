"""The scheduler: tickets in, batches out. It owns the queues and the estimates; it never waits and reads no clock."""

from __future__ import annotations

from math import inf
from typing import Any

from timebound.scheduler.backlog import displace
from timebound.scheduler.firsts import cut_to_known
from timebound.scheduler.policy import DeadlineFirst, Plan, Policy, View
from timebound.scheduler.queue import Lane
from timebound.scheduler.saved import renew_model, restore_model, save_model
from timebound.scheduler.served import InFlight, LaneView, Served
from timebound.scheduler.survivors import Survivors, Trouble, grow, hang_limit_s, next_part, short_of_memory
from timebound.scheduler.ticket import Batch, ModelSpec, Phase, SetAside, Step, Ticket, Verdict

MIN_RETRY_AFTER_S = 0.05  # a client that comes back sooner finds what it left


class Scheduler:
    """Decides. The caller tells what happens, with `now` in seconds of a monotonic clock, and does what it hears.

    After `offer`, `take` and `batch_lost` ask `set_aside()` for tickets that were given up.
    """

    def __init__(self, margin_s: float = 0.010, *, max_batch_bytes: float = inf, policy: Policy | None = None) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._policy: Policy = DeadlineFirst() if policy is None else policy
        self.margin_s = margin_s  # results must be there this long before the deadline
        self._models: dict[str, Served] = {}
        self._slots = 0
        self._running = InFlight()
        self._aside: list[SetAside] = []
        self._trouble = Trouble()

    # ------------------------------------------------------------------ set-up

    def add_model(self, spec: ModelSpec, profile: dict[str, Any] | None = None) -> None:
        """Serve this model; `profile` is its part of an earlier `profile()`. A known model keeps what it learned."""
        known = self._models.get(spec.name)
        if known is not None:
            renew_model(known, spec)
            return
        served = self._models[spec.name] = Served(spec)
        if profile:
            restore_model(served, profile)

    def remove_model(self, name: str) -> list[Ticket]:
        """Stop serving a model; its waiting tickets are returned."""
        served = self._models.pop(name)
        waiting = [e[2] for lane in served.lanes.values() for queue in lane.queues for e in queue.by_deadline]
        for ticket in waiting:
            ticket.phase, ticket.lane, ticket.place = Phase.ACCEPTED, None, None
        return waiting + self._trouble.remove_model(name)

    def set_slots(self, slots: int) -> None:
        """How many slots are alive now, busy ones included."""
        self._slots = slots

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
        return {name: {**save_model(served), "margin_s": round(self.margin_s, 5)} for name, served in known.items()}

    # ------------------------------------------------------------------ tickets in

    def queued(self, model: str | None = None) -> int:
        """How many tickets wait, for one model or for all."""
        if model is not None:
            return self._models[model].queued
        count = sum([served.queued for served in self._models.values()])
        if self._trouble.survivors.parts or self._trouble.suspects.parts:
            count += len(self._trouble.survivors) + len(self._trouble.suspects)
        return count

    def offer(self, ticket: Ticket, now: float) -> Verdict | None:
        """Queue a ticket (None), or say at once why not."""
        if ticket.is_suspect:
            return self._trouble.offer(ticket)
        served = self._models[ticket.model]
        lane = served.lane(ticket.size)
        if not ticket.is_retry:
            served.count(ticket, lane)
        verdict = self._verdict(served, lane, ticket, now)
        if verdict is None:
            lane.add(ticket)
            served.queued += 1
            if served.queued > served.roomy and self._slots and not self._policy.admits_all:
                displace(served, self._slots, now, self._set_aside)
        return verdict

    def _verdict(self, served: Served, lane: Lane, ticket: Ticket, now: float) -> Verdict | None:
        if served.queued >= served.spec.max_queue:
            return Verdict("queue_full", self.retry_after_s(now))
        if self._policy.admits_all or (self._slots == 0 and not len(self._running)):
            return None  # without slots: the workers may be back in time; the guard knows what to do if not
        wait_s = 0.0
        if len(self._running) >= self._slots:
            wait_s = min(self._running.residuals(now))
        soonest = now + served.estimate.fast * (wait_s + served.alone_s(lane))
        if not served.estimate.observations or soonest <= ticket.deadline - self.margin_s or served.is_in_doubt(now):
            return None
        served.last_learned = min(served.last_learned, now)
        return Verdict("deadline_unreachable", self.retry_after_s(now), soonest - now)

    def retry_after_s(self, now: float) -> float:
        """Seconds until the work that waits now is done."""
        work = sum(self._running.residuals(now)) + sum(served.backlog_s() for served in self._models.values())
        return max(MIN_RETRY_AFTER_S, work / max(1, self._slots))

    def renew(self, ticket: Ticket, deadline: float, *, is_retry: bool, is_awaited: bool = True) -> None:
        """Another attempt joined this request: a queued one moves to this deadline and rank, and keeps its place.

        `is_retry` is for the caller to say: a second attempt beside one that still waits does not demote it.
        """
        ticket.is_wanted, ticket.is_awaited = True, is_awaited
        if ticket.phase is not Phase.QUEUED or ticket.place is None:
            ticket.deadline = deadline
            return
        lane = ticket.lane
        lane.remove(ticket)
        ticket.deadline, ticket.is_retry = deadline, is_retry
        lane.add(ticket)

    def abandon(self, ticket: Ticket, *, keep: bool) -> None:
        """The client has gone. `keep`: a retry may still come, so a queued ticket stays, behind everybody who waits."""
        if not keep:
            self.withdraw(ticket)
        elif ticket.phase is Phase.QUEUED and ticket.place is not None:
            self.renew(ticket, ticket.deadline, is_retry=True, is_awaited=False)

    def withdraw(self, ticket: Ticket) -> None:
        """It has been answered; nobody waits for it any more. If it runs, its result may still be stored."""
        ticket.is_wanted = False
        if ticket.phase is Phase.QUEUED:
            self._unqueue(ticket)

    def _unqueue(self, ticket: Ticket) -> None:
        if ticket.place is None:
            self._trouble.remove(ticket)
            return
        ticket.lane.remove(ticket)
        self._models[ticket.model].queued -= 1

    def set_aside(self) -> list[SetAside]:
        """The tickets given up since the last call."""
        aside, self._aside = self._aside, []
        return aside

    def _set_aside(self, ticket: Ticket, reason: str) -> None:
        self._unqueue(ticket)
        self._aside.append(SetAside(ticket, reason))

    # ------------------------------------------------------------------ batches out

    def take(self, now: float) -> Batch | None:
        """The next batch, if a slot is free and something waits that can be answered in time."""
        if len(self._running) >= self._slots:
            return None
        waiting = self._purge(now)
        if (
            self._trouble.survivors.parts
            and (again := self._take_again(self._trouble.survivors, "after_loss", now)) is not None
        ):
            return again
        plan = self._policy.choose(self.view(now)) if waiting else None
        if plan is None:
            return None
        for given_up in plan.drop:
            self._set_aside(given_up.ticket, given_up.reason)
        return self._begin(plan, now) if plan.tickets else None

    def _begin(self, plan: Plan, now: float) -> Batch:
        lane, tickets = plan.lane.lane, plan.tickets
        if self._max_batch_bytes < inf:
            tickets = _within_bytes(tickets, self._max_batch_bytes)
        served = self._models[lane.model]
        if served.is_slow_at_first:
            tickets = cut_to_known(served, tickets)
        lane.taken += len(tickets)
        for ticket in tickets:
            ticket.lane.remove(ticket)
        served.queued -= len(tickets)
        return self._start(served, tickets, plan.reason, now)

    def view(self, now: float, without: Batch | None = None) -> View:
        """What the policy sees; `without` a running batch whose future is asked about."""
        lanes, waiting = [], 0
        models = list(self._models.values())
        for served in models:
            if served.grows_at <= now:
                grow(served, now)
            if served.queued:
                waiting += served.queued
                crowd = served.estimate.crowd(self._slots)
                lanes += [LaneView(served, lane, crowd, now) for lane in served.lanes.values() if lane.count]
        residuals = self._running.residuals(now, without)
        return View(
            now, self.margin_s, slots=self._slots, residuals=residuals, models=models, lanes=lanes, waiting=waiting
        )

    def _purge(self, now: float) -> int:
        """Give up what would be late even alone and fast; its fallback need not wait for the guard.

        Returns how many still wait.
        """
        waiting = 0
        for served in self._models.values():
            if served.queued:
                late = [] if self._policy.admits_all else served.expired(now + self.margin_s, now)
                if late:
                    self._aside += [SetAside(ticket, "too_late") for ticket in late]
                waiting += served.queued
        return waiting

    def _start(self, served: Served, tickets: list[Ticket], reason: str, now: float) -> Batch:
        batch = self._running.start(served, tickets, reason, now, slots=self._slots, margin_s=self.margin_s)
        spec = served.spec
        batch.is_alone = spec.is_parallel and spec.members > 1 and batch.busy == 1 < self._slots and not self.queued()
        return batch

    # ------------------------------------------------------------------ results

    def member_done(self, batch: Batch, seconds: float, now: float, members: int | None = None) -> Step:
        """One more member (or all up to `members`) has run on the whole batch. Do the others go on with the next?

        `seconds` is since the batch's start or its last report. Without `go` the batch is over and its slot free.
        """
        if batch.closed:
            return Step(False, [], [], "over")
        served: Served = batch.served
        done = batch.members_done + 1 if members is None else members
        self._running.learn(batch, seconds, now, done)
        batch.members_done = done
        live = [ticket for ticket in batch.tickets if ticket.is_wanted]
        for ticket in batch.tickets:
            ticket.members_done = max(ticket.members_done, done)
        if done >= served.spec.members or not live:
            return self._stop(batch, live, "complete" if live else "nobody_waits", now)
        return self._next_member(served, batch, live, now)

    def _next_member(self, served: Served, batch: Batch, live: list[Ticket], now: float) -> Step:
        estimate, spec = served.estimate, served.spec
        predicted = estimate.predict(len(live), max(ticket.size for ticket in live), batch.members_done, batch.busy)
        end = now + estimate.safe * predicted + self.margin_s
        stay = [ticket for ticket in live if ticket.deadline >= end]
        if not stay:
            return self._stop(batch, live, "deadline", now)
        self._purge(now)
        view = self.view(now, without=batch)
        if not self._policy.goes_on(view, batch.members_done + 1, predicted, spec.deadline_s):
            return self._stop(batch, live, "backlog", now)
        staying = set(map(id, stay))
        for ticket in batch.tickets:  # those nobody waits for leave as well
            if id(ticket) not in staying:
                ticket.phase = Phase.ACCEPTED
        batch.tickets, batch.size = stay, max(ticket.size for ticket in stay)
        self._running.next_stage(batch, now, predicted)
        return Step(True, [ticket for ticket in live if ticket.deadline < end], stay, "fits")

    def _stop(self, batch: Batch, live: list[Ticket], reason: str, now: float) -> Step:
        self._running.close(batch, now)
        return Step(False, live, [], reason)

    def batch_done(self, batch: Batch, seconds: float, now: float) -> None:
        """The members not reported took `seconds`; the slot is free. Nothing happens if the batch was over."""
        if batch.closed:
            return
        members = batch.served.spec.members
        self._running.learn(batch, seconds, now, members)
        batch.members_done = members
        for ticket in batch.tickets:
            ticket.members_done = members
        self._running.close(batch, now)

    # ------------------------------------------------------------------ trouble

    def batch_lost(self, batch: Batch, now: float, guilty: Ticket | None = None) -> None:
        """Its worker is gone. Its tickets run again as long as there is time, apart from others and in smaller parts.

        Those marked as suspects wait for `take_suspects`. One that is found `guilty` does not run again.
        """
        if batch.closed:
            return
        self._running.close(batch, now)
        self._trouble.lost(self._models.get(batch.model, batch.served), batch, now + self.margin_s, self._slots, guilty)

    def hang_limit_s(self, batch: Batch) -> float:
        """A batch that runs longer than this has hung."""
        return hang_limit_s(batch.served, batch)

    def short_of_memory(self, batch: Batch, items: int, now: float, *, is_certain: bool) -> int | None:
        """A batch of so many items was too large for the memory; the new limit on its model's batches, if any."""
        return short_of_memory(batch.served, items, now, is_certain=is_certain)

    @property
    def has_suspects(self) -> bool:
        """Whether tickets wait that must run alone in a worker."""
        return bool(self._trouble.suspects.parts)

    @property
    def has_others(self) -> bool:
        """Whether tickets wait that are no suspects."""
        return self.queued() > len(self._trouble.suspects)

    def suspects_can_wait(self, now: float, *, is_needed: bool) -> bool:
        """Whether the suspects whose turn it is can be in time if they start a little later."""
        return self._trouble.can_wait(self._models, now + self.margin_s, MIN_RETRY_AFTER_S, is_needed=is_needed)

    def take_suspects(self, now: float) -> Batch | None:
        """The next suspects; the caller sees to it that their worker runs nothing else."""
        return self._take_again(self._trouble.suspects, "suspect", now)

    def _take_again(self, survivors: Survivors, reason: str, now: float) -> Batch | None:
        part = next_part(survivors, self._models, now + self.margin_s, self._aside)
        return None if part is None else self._start(*part, reason, now)


def _within_bytes(tickets: list[Ticket], most: float) -> list[Ticket]:
    """The first of these, in their order, whose bodies together stay within `most` bytes; one in any case."""
    total = 0
    for place, ticket in enumerate(tickets):
        total += ticket.bytes
        if total > most and place:
            return tickets[:place]
    return tickets
