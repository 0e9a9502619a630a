"""The scheduler: tickets in, batches out. It owns the queues and the estimates; it never waits and reads no clock."""

from __future__ import annotations

from math import inf
from typing import Any

from timebound.scheduler import policy
from timebound.scheduler.load import ENSEMBLE_WEIGHT, STILL_RATE, Overload
from timebound.scheduler.queue import Lane
from timebound.scheduler.running import Running
from timebound.scheduler.served import Served
from timebound.scheduler.survivors import Survivors, part_size
from timebound.scheduler.ticket import Batch, ModelSpec, SetAside, State, Step, Ticket, Verdict, within_bytes

BACKLOG_DEADLINES = 1.25  # seconds of waiting work per slot, as a multiple of the deadline: more cannot be served
# Another member runs only if the backlog would be done this share of the deadline early. Simulated: at most
# 0.07 members fewer, half of the answers by 0.55 instead of 0.8 of the deadline, room for batches that take longer.
MEMBER_RESERVE = 0.3
MIN_RETRY_AFTER_S = 0.05
PROBE_AFTER_S = 1.0  # an idle server does not believe for longer than this that it is too slow
HANG_FLOOR_S = 0.5  # a short pause of the machine is no hang: a new worker would take longer than that
SUSPECT_SHARE = 0.5  # of the time it has left that a lone suspect may run
TRIAL_SHARE = 0.25  # of the time suspects have left: their worker does nothing else while they run


class Scheduler:
    """Decides. The caller tells what happens, with `now` in seconds of a monotonic clock, and does what it hears.

    After `offer`, `rejoin`, `take` and `batch_lost` ask `set_aside()` for tickets that were given up.
    """

    def __init__(self, margin_s: float = 0.010, *, max_batch_bytes: float = inf) -> None:
        self._max_batch_bytes = max_batch_bytes
        self.margin_s = margin_s  # results must be there this long before the deadline
        self._models: dict[str, Served] = {}
        self._retired: dict[str, Served] = {}  # removed models may still have a batch running
        self._slots = 0
        self._running = Running()
        self._aside: list[SetAside] = []
        self._overload = Overload()
        self._probe: Ticket | None = None  # to be run whatever the estimate says
        self._survivors = Survivors()
        self._suspects = Survivors()

    # ------------------------------------------------------------------ set-up

    def add_model(self, spec: ModelSpec, profile: dict[str, Any] | None = None) -> None:
        """Serve this model; `profile` is its part of an earlier `profile()`. A known model keeps what it learned."""
        known = self._models.get(spec.name)
        if known is not None:
            known.respecify(spec)
            return
        served = self._models[spec.name] = Served(spec)
        if profile:
            served.restore(profile)

    def remove_model(self, name: str) -> list[Ticket]:
        """Stop serving a model; its waiting tickets are returned."""
        served = self._retired[name] = self._models.pop(name)
        waiting = [e[2] for lane in served.lanes.values() for queue in lane.queues for e in queue.by_deadline]
        for ticket in waiting:
            ticket.state, ticket.lane, ticket.place = State.OUT, None, None
        return waiting + self._survivors.remove_model(name) + self._suspects.remove_model(name)

    def set_slots(self, slots: int) -> None:
        """How many slots are alive now, busy ones included."""
        self._slots = slots

    @property
    def has_others(self) -> bool:
        """Whether tickets wait that are no suspects."""
        return self.queued() > len(self._suspects)

    def observe(self, model: str, batch: int, size: float, seconds: float, member: int = 0) -> None:
        """A duration measured outside of `take`, on the same way to the worker and back."""
        self._models[model].estimate.observe(batch, size, seconds, member)

    def guess(self, model: str, seconds: float) -> None:
        """What one item took at warm-up, through all members: a first guess, without the way to the worker."""
        estimate = self._models[model].estimate
        estimate.guess(seconds / estimate.members)

    def member_seconds(self, model: str) -> list[float]:
        """What each member takes on one item, as learned; for ordering members by value per second."""
        estimate = self._models[model].estimate
        return [estimate.predict(1, 1.0, member) for member in range(estimate.members)]

    def profile(self) -> dict[str, Any]:
        """What was learned, JSON-able, by model."""
        known = {name: served for name, served in self._models.items() if served.estimate.known}
        return {name: {**served.save(), "margin_s": round(self.margin_s, 5)} for name, served in known.items()}

    def queued(self, model: str | None = None) -> int:
        """How many tickets wait, for one model or for all."""
        if model is not None:
            return self._models[model].queued
        return sum(served.queued for served in self._models.values()) + len(self._survivors) + len(self._suspects)

    @property
    def has_suspects(self) -> bool:
        """Whether tickets wait that must run alone in a worker."""
        return bool(self._suspects)

    # ------------------------------------------------------------------ tickets in

    def offer(self, ticket: Ticket, now: float) -> Verdict | None:
        """Queue a ticket (None), or say at once why not."""
        if ticket.is_suspect:
            self._suspects.add(ticket.model, [ticket], 1)
            return None
        served = self._models[ticket.model]
        lane = served.lane(ticket.size)
        if ticket.attempt == 1:
            lane.fresh += 1
            served.count_length(ticket.size)
        verdict = self._verdict(served, lane, ticket, now)
        if verdict is None:
            lane.add(ticket)
            served.queued += 1
            self._displace(served, now)
        return verdict

    def _verdict(self, served: Served, lane: Lane, ticket: Ticket, now: float) -> Verdict | None:
        if served.queued >= served.spec.max_queue:
            return self._no(served, "queue_full", now)
        if self._slots == 0 and not self._running:
            return None  # the workers may be back in time; the guard knows what to do if not
        wait_s = 0.0
        if len(self._running) >= self._slots:
            wait_s = min(self._running.residuals(now))
        soonest = now + served.estimate.fast * (wait_s + served.alone_s(lane))
        if not served.estimate.known or soonest <= ticket.deadline - self.margin_s:
            return None
        if not self._running.runs(ticket.model) and now - served.last_learned > PROBE_AFTER_S:
            # Too slow when last seen; but that was a while ago, and nobody else needs the slot: find out.
            served.last_learned = now
            self._probe = ticket
            return None
        served.last_learned = min(served.last_learned, now)
        return self._no(served, "deadline_unreachable", now)

    def _no(self, served: Served, reason: str, now: float) -> Verdict:
        action = "fallback" if served.spec.can_fallback else "refuse"
        return Verdict(action, reason, self.retry_after_s(now))

    def retry_after_s(self, now: float) -> float:
        """Seconds until the work that waits now is done."""
        work = sum(self._running.residuals(now)) + sum(served.backlog_s() for served in self._models.values())
        return max(MIN_RETRY_AFTER_S, work / max(1, self._slots))

    def _displace(self, served: Served, now: float) -> None:
        """More waits than can be done before the last deadline: the oldest of the lowest rank give way."""
        if self._slots == 0 or served.queued <= served.roomy:
            return
        horizon_s = max(served.spec.deadline_s, served.last_deadline() - now)
        limit = BACKLOG_DEADLINES * horizon_s * self._slots
        while served.queued > 1 and (backlog_s := served.backlog_s()) > limit:
            self._set_aside(served.least_worthy(), "overloaded")
        # Looked at again when half of the room that is left has been used, not at every arrival.
        room = served.queued * (limit / backlog_s - 1.0) if backlog_s else 0.0
        served.roomy = served.queued + int(room / 2)

    def rejoin(self, ticket: Ticket, deadline: float, now: float) -> Verdict | None:
        """A retry joined this request: its deadline moves, and while it waits it ranks behind first attempts."""
        if ticket.state is State.QUEUED:
            self._unqueue(ticket)
        ticket.attempt += 1
        ticket.waiting, ticket.abandoned = True, False
        ticket.deadline = max(ticket.deadline, deadline)
        return None if ticket.state is State.RUNNING else self.offer(ticket, now)

    def abandon(self, ticket: Ticket, now: float, keep: bool) -> None:
        """The client has gone. `keep`: a retry may still come, so a queued ticket stays, behind first attempts."""
        del now
        if ticket.state is State.QUEUED:
            self._unqueue(ticket)
            if keep:
                ticket.abandoned = True
                served = self._models[ticket.model]
                served.lane(ticket.size).add(ticket)
                served.queued += 1
        if not keep:
            ticket.waiting = False

    def withdraw(self, ticket: Ticket) -> None:
        """It has been answered; nobody waits for it any more. If it runs, its result may still be stored."""
        ticket.waiting = False
        if ticket.state is State.QUEUED:
            self._unqueue(ticket)

    def _unqueue(self, ticket: Ticket) -> None:
        if ticket.place is None:
            (self._suspects if ticket.is_suspect else self._survivors).remove(ticket)
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
        probe = self._take_probe(now)
        if probe is not None:
            return probe
        waiting = self._purge(now)
        if self._survivors and (again := self._take_again(self._survivors, "after_loss", now)) is not None:
            return again
        if not waiting:
            return None
        view = self.view(now)
        plan = policy.choose(view)
        if plan is None:
            return None
        tickets = within_bytes(plan.tickets, self._max_batch_bytes)
        if len(tickets) == waiting and not view.is_overloaded:
            self._overload.caught_up()
        elif not view.fits or view.is_deep:
            self._fell_behind(now)
        served = self._models[plan.view.lane.model]
        plan.view.share.taken.add(len(tickets), now)
        for ticket in tickets:
            self._unqueue(ticket)
        if plan.reason == "newest_first":
            self._let_go(served, plan.view, now)
        return self._start(served, tickets, plan.reason, now)

    def _fell_behind(self, now: float) -> None:
        """From here on the arrivals are counted: what came before says nothing about how long it will last."""
        if self._overload.fell_behind(now, max(served.spec.deadline_s for served in self._models.values())):
            for served in self._models.values():
                served.arrivals.long.restart(now)

    def _let_go(self, served: Served, view: policy.LaneView, now: float) -> None:
        """In a lasting overload the oldest will not be reached any more: better they know now, and all at once."""
        two_batches_s = 2.0 * view.safe * view.seconds(view.cap)
        gone = view.lane.expired(now + self.margin_s + two_batches_s)
        served.queued -= len(gone)
        self._aside += [SetAside(ticket, "too_late") for ticket in gone]

    def _take_probe(self, now: float) -> Batch | None:
        """A ticket to run whatever the estimate says: it may be out of date, and only running something renews it."""
        ticket, self._probe = self._probe, None
        if ticket is None or ticket.state is not State.QUEUED:
            ticket = None
            for served in self._models.values():
                if ticket is None and served.queued and now - served.last_learned > PROBE_AFTER_S:
                    ticket = self._doubt(served, now)
        if ticket is None:
            return None
        self._unqueue(ticket)
        return self._start(self._models[ticket.model], [ticket], "probe", now)

    def _doubt(self, served: Served, now: float) -> Ticket | None:
        """Nothing was learned for a while: the ticket with most time, if not even that seems to fit."""
        if self._running.runs(served.spec.name):
            return None
        last = [(lane, queue.by_deadline.last) for lane in served.lanes.values() for queue in lane.queues]
        lane, entry = max(last, key=lambda found: found[1][:2])
        if now + served.alone_s(lane) <= entry[0] - self.margin_s:
            return None
        served.last_learned = now
        return entry[2]

    def view(self, now: float, without: Batch | None = None) -> policy.View:
        """What the policy sees; `without` a running batch whose future is asked about."""
        lanes = []
        for served in self._models.values():
            served.count_arrivals(now)
            if served.grows_at <= now:
                served.grow(now)
            if served.queued:
                crowd = served.estimate.crowd(self._slots)
                for lane in served.lanes.values():
                    if lane.count:
                        share = served.shares[lane.bucket]
                        lanes.append(
                            policy.LaneView(
                                lane, served.estimate, served.curve(lane),
                                crowd=crowd, share=share, deadline_s=served.spec.deadline_s,
                            )
                        )  # fmt: skip
        is_behind, is_overloaded = self._pressure(now) if self._overload.is_behind(now) else (False, False)
        return policy.View(
            now,
            self.margin_s,
            slots=self._slots,
            residuals=self._running.residuals(now, without),
            lanes=lanes,
            shortest_s=min((served.spec.deadline_s for served in self._models.values()), default=0.0),
            is_behind=is_behind,
            is_overloaded=is_overloaded,
        )

    def _pressure(self, now: float) -> tuple[bool, bool]:
        """Does work still arrive about as fast as it can be done? Faster, and for some time?"""
        short = long = variance = 0.0
        for served in self._models.values():
            weight = served.estimate.crowd(self._slots) / max(1, self._slots)
            if served.spec.members > 1:
                weight *= ENSEMBLE_WEIGHT
            short += weight * served.arrivals.short.rate(now)
            rate = served.arrivals.long.rate(now)
            long += weight * rate
            item_s = max((served.item_s(lane) for lane in served.lanes.values()), default=0.0)
            variance += weight * weight * rate * item_s / served.arrivals.long.seconds(now)
        return short > STILL_RATE, self._overload.is_lasting(short, long, variance**0.5)

    def _purge(self, now: float) -> int:
        """Give up what would be late even alone and fast; its fallback need not wait for the guard.

        Returns how many still wait.
        """
        waiting = 0
        for served in self._models.values():
            if served.queued and (late := served.expired(now + self.margin_s)):
                self._aside += [SetAside(ticket, "too_late") for ticket in late]
            waiting += served.queued
        return waiting

    def _start(self, served: Served, tickets: list[Ticket], reason: str, now: float) -> Batch:
        batch = self._running.start(served, tickets, reason, now, slots=self._slots, margin_s=self.margin_s)
        spec = served.spec
        batch.is_alone = spec.is_parallel and spec.members > 1 and batch.busy == 1 < self._slots and not self.queued()
        return batch

    def hang_limit_s(self, batch: Batch) -> float:
        """A batch that runs longer than this has hung."""
        served = self._served(batch)
        if served.estimate.observations - served.trusted_from < 4:
            return max(30.0, 10 * served.spec.deadline_s)
        slow_s = max(served.estimate.safe * batch.predicted_s, served.slowest_s)
        limit_s = 3.0 * slow_s + max(HANG_FLOOR_S, 0.1 * served.spec.deadline_s)
        if len(batch.tickets) == 1 and batch.tickets[0].is_suspect:
            # It runs apart, so it may take half its time: a request that is only slow must not pass for a crasher.
            return max(limit_s, SUSPECT_SHARE * (batch.latest_end - batch.started))
        return limit_s

    # ------------------------------------------------------------------ results

    def member_done(self, batch: Batch, seconds: float, now: float, members: int | None = None) -> Step:
        """One more member (or all up to `members`) has run on the whole batch. Do the others go on with the next?

        `seconds` is since the batch's start or its last report. Without `go` the batch is over and its slot free.
        """
        if batch.closed:
            return Step(False, [], [], "over")
        served = self._served(batch)
        done = batch.members_done + 1 if members is None else members
        self._running.learn(served, batch, seconds, now, done)
        batch.members_done = done
        live = [ticket for ticket in batch.tickets if ticket.waiting]
        for ticket in batch.tickets:
            ticket.members_done = max(ticket.members_done, batch.members_done)
        if batch.members_done >= served.spec.members:
            return self._stop(batch, live, "complete", now)
        if not live:
            return self._stop(batch, live, "nobody_waits", now)
        size = max(ticket.size for ticket in live)
        predicted = served.estimate.predict(len(live), size, batch.members_done, batch.busy)
        end = now + served.estimate.safe * predicted + self.margin_s
        stay = [ticket for ticket in live if ticket.deadline >= end]
        if not stay:
            return self._stop(batch, live, "deadline", now)
        self._purge(now)
        view = self.view(now, without=batch)
        reserve_s = MEMBER_RESERVE * served.spec.deadline_s
        if view.is_overloaded or not view.backlog_fits(batch.members_done + 1, predicted, reserve_s=reserve_s):
            return self._stop(batch, live, "backlog", now)
        leave = [ticket for ticket in live if ticket.deadline < end]
        staying = set(map(id, stay))
        for ticket in batch.tickets:  # those nobody waits for leave as well
            if id(ticket) not in staying:
                ticket.state = State.OUT
        batch.tickets, batch.size = stay, max(ticket.size for ticket in stay)
        self._running.next_stage(batch, now, predicted)
        return Step(True, leave, stay, "fits")

    def _stop(self, batch: Batch, live: list[Ticket], reason: str, now: float) -> Step:
        self._running.close(batch, now)
        return Step(False, live, [], reason)

    def batch_done(self, batch: Batch, seconds: float, now: float) -> None:
        """The members not reported took `seconds`; the slot is free. Nothing happens if the batch was over."""
        if batch.closed:
            return
        served = self._served(batch)
        members = served.spec.members
        self._running.learn(served, batch, seconds, now, members)
        batch.members_done = members
        for ticket in batch.tickets:
            ticket.members_done = batch.members_done
        self._running.close(batch, now)

    def batch_lost(self, batch: Batch, now: float, guilty: Ticket | None = None) -> None:
        """Its worker is gone. Its tickets run again as long as there is time, apart from others and in smaller parts.

        Those marked as suspects wait for `take_suspects`. One that is found `guilty` does not run again.
        """
        if batch.closed:
            return
        self._running.close(batch, now)
        live = [ticket for ticket in batch.tickets if ticket.waiting and ticket is not guilty]
        estimate, end = self._served(batch).estimate, now + self.margin_s
        suspects = [ticket for ticket in live if ticket.is_suspect]
        self._suspects.add(batch.model, suspects, part_size(estimate, suspects, end, 1, TRIAL_SHARE))
        others = [ticket for ticket in live if not ticket.is_suspect]
        self._survivors.add(batch.model, others, part_size(estimate, others, end, self._slots))

    def short_of_memory(self, batch: Batch, items: int, now: float, *, is_certain: bool) -> int | None:
        """A batch of so many items was too large for the memory; the new limit on its model's batches.

        If that is only likely (its worker was killed), None and no change unless the batch was a large one.
        """
        served = self._served(batch)
        if not is_certain and (items == 1 or 2 * items <= served.estimate.max_batch):
            return None
        return served.shrink(items, now)

    def suspects_can_wait(self, now: float) -> bool:
        """Whether the suspects whose turn it is can be in time if they start a little later."""
        first = self._suspects.first
        if first is None or first[0] not in self._models:
            return False
        model, tickets = first
        needs_s = 2.0 * self._models[model].estimate.predict(len(tickets), max(t.size for t in tickets))
        return now + self.margin_s + max(MIN_RETRY_AFTER_S, needs_s) < min(ticket.deadline for ticket in tickets)

    def take_suspects(self, now: float) -> Batch | None:
        """The next suspects; the caller sees to it that their worker runs nothing else."""
        return self._take_again(self._suspects, "suspect", now)

    def _take_again(self, survivors: Survivors, reason: str, now: float) -> Batch | None:
        while (part := survivors.take()) is not None:
            model, tickets = part
            served = self._models.get(model)
            if served is None:  # it was removed while its batch ran
                self._aside += [SetAside(ticket, "removed") for ticket in tickets]
                continue
            due = now + self.margin_s + served.estimate.predict(len(tickets), max(t.size for t in tickets))
            for ticket in [ticket for ticket in tickets if ticket.deadline < due]:
                tickets.remove(ticket)
                ticket.state = State.OUT
                self._aside.append(SetAside(ticket, "too_late"))
            if tickets:
                return self._start(served, tickets, reason, now)
        return None

    def _served(self, batch: Batch) -> Served:
        return self._models.get(batch.model) or self._retired[batch.model]
