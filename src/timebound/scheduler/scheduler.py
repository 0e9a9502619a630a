"""The scheduler: tickets in, batches out. It owns the queues and the estimates; it never waits and reads no clock."""

from __future__ import annotations

from math import inf

from timebound.scheduler.backlog import displace
from timebound.scheduler.device import Devices
from timebound.scheduler.firsts import cut_to_known
from timebound.scheduler.policy import DeadlineFirst, Plan, Policy, View
from timebound.scheduler.queue import Lane
from timebound.scheduler.recovery import MIN_RETRY_AFTER_S, Recovery
from timebound.scheduler.roster import Roster
from timebound.scheduler.served import InFlight, LaneView, Served
from timebound.scheduler.survivors import Survivors, Trouble, grow, next_part
from timebound.scheduler.ticket import Batch, Phase, Server, SetAside, Step, Ticket, Verdict


class Scheduler(Roster, Recovery):
    """Decides. The caller tells what happens, with `now` in seconds of a monotonic clock, and does what it hears.

    After `offer`, `take` and `batch_lost` ask `set_aside()` for tickets that were given up.
    """

    def __init__(self, margin_s: float = 0.010, *, max_batch_bytes: float = inf, policy: Policy | None = None) -> None:
        self._max_batch_bytes = max_batch_bytes
        self._policy: Policy = DeadlineFirst() if policy is None else policy
        self.margin_s = margin_s  # results must be there this long before the deadline
        self._models: dict[str, Served] = {}
        self._slots = self._servers = 0
        self.due = inf  # when a slot is to ask again whose device is not to have its next batch yet
        self._running = InFlight()
        self._devices: Devices | None = None  # the same, once there are any
        self.aside: list[SetAside] = []  # given up; to be asked for by `set_aside`
        self._trouble = Trouble()

    # ------------------------------------------------------------------ set-up

    def set_slots(self, slots: int, servers: int | None = None) -> None:
        """How many slots are alive now, busy ones included; and how many servers if devices are shared by slots."""
        self._slots, self._servers = slots, slots if servers is None else servers
        if servers is not None and self._devices is None:
            self._running = self._devices = Devices(self._running)

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
        if not (ticket.is_retry or ticket.is_counted):
            served.count(ticket, lane)
        verdict = self._verdict(served, lane, ticket, now)
        if verdict is None:
            lane.add(ticket)
            served.queued += 1
            if served.queued > served.roomy and self._servers and not self._policy.admits_all:
                displace(served, self._servers, now, self._set_aside)
        return verdict

    def _verdict(self, served: Served, lane: Lane, ticket: Ticket, now: float) -> Verdict | None:
        if served.queued >= served.spec.max_queue:
            return Verdict("queue_full", self.retry_after_s(now))
        if self._policy.admits_all or (self._slots == 0 and not len(self._running)):
            return None  # without slots: the workers may be back in time; the guard knows what to do if not
        wait_s = 0.0
        if self._running.busy >= self._servers:
            wait_s = min(self._running.residuals(now))
        soonest = now + served.estimate.fast * (wait_s + served.alone_s(lane))
        if not served.estimate.observations or soonest <= ticket.deadline - self.margin_s or served.is_in_doubt(now):
            return None
        served.last_learned = min(served.last_learned, now)
        return Verdict("deadline_unreachable", self.retry_after_s(now), soonest - now)

    def retry_after_s(self, now: float) -> float:
        """Seconds until the work that waits now is done."""
        work = sum(self._running.residuals(now)) + sum(served.backlog_s() for served in self._models.values())
        return max(MIN_RETRY_AFTER_S, work / max(1, self._servers))

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
        aside, self.aside = self.aside, []
        return aside

    def _set_aside(self, ticket: Ticket, reason: str) -> None:
        self._unqueue(ticket)
        self.aside.append(SetAside(ticket, reason))

    # ------------------------------------------------------------------ batches out

    def take(self, now: float, server: Server | None = None) -> Batch | None:
        """The next batch, if a slot is free and something waits that can be answered in time.

        `server` is the device that the slot shares; `due` tells when to ask again if it is too early for its next.
        """
        start, self.due = now, inf
        if len(self._running) >= self._slots:
            return None
        if server is not None and self._devices is not None:
            start, due = self._devices.turn(server, now, self._models.values())
            if due > now:
                self.due = due if self.queued() else inf
                return None
        waiting = self._purge(now)
        if (
            self._trouble.survivors.parts
            and (again := self._take_again(self._trouble.survivors, "after_loss", now, server)) is not None
        ):
            return again
        plan = self._policy.choose(self.view(now, start=start, server=server)) if waiting else None
        if plan is None:
            return None
        for given_up in plan.drop:
            self._set_aside(given_up.ticket, given_up.reason)
        return self._begin(plan, now, server) if plan.tickets else None

    def _begin(self, plan: Plan, now: float, server: Server | None) -> Batch:
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
        return self._start(served, tickets, plan.reason, now, server)

    def view(
        self, now: float, without: Batch | None = None, *, start: float = 0.0, server: Server | None = None
    ) -> View:
        """What the policy sees; `without` a running batch whose future is asked about.

        For a batch that would begin on a device no sooner than `start`: then others have so much less to do.
        """
        lanes, waiting = [], 0
        models = list(self._models.values())
        for served in models:
            if served.grows_at <= now:
                grow(served, now)
            if served.queued:
                waiting += served.queued
                crowd = served.estimate.crowd(self._servers)
                lanes += [LaneView(served, lane, crowd) for lane in served.lanes.values() if lane.count]
        if self._devices is None:
            start, residuals = now, self._running.residuals(now, without)
        else:
            start = max(now, start)
            residuals = self._devices.residuals(start, without, server)
        return View(
            now, self.margin_s, slots=self._servers, residuals=residuals, start=start, models=models, lanes=lanes,
            waiting=waiting,
        )  # fmt: skip

    def _purge(self, now: float) -> int:
        """Give up what would be late even alone and fast; its fallback need not wait for the guard.

        Returns how many still wait.
        """
        waiting = 0
        for served in self._models.values():
            if served.queued:
                late = [] if self._policy.admits_all else served.expired(now + self.margin_s, now)
                if late:
                    self.aside += [SetAside(ticket, "too_late") for ticket in late]
                waiting += served.queued
        return waiting

    def _start(
        self, served: Served, tickets: list[Ticket], reason: str, now: float, server: Server | None = None
    ) -> Batch:
        batch = self._running.start(served, tickets, reason, now, slots=self._servers, margin_s=self.margin_s)
        if server is None or self._devices is None:
            is_idle = served.spec.is_parallel and batch.busy == 1 < self._slots and not self.queued()
            batch.is_at_once = is_idle and served.spec.members > 1
            members, whole_s = served.spec.members, batch.predicted_s
            batch.is_roomy = members > 1 and (not self.queued() or self._would_go_on(batch, members, whole_s, now))
        else:
            self._devices.bind(batch, server, now, self._would_go_on)
        return batch

    def _would_go_on(self, batch: Batch, level: int, seconds: float, now: float) -> bool:
        """May this batch, which has just begun, run so many members, with so many seconds?"""
        return self._policy.goes_on(self.view(now, batch), level, seconds, batch.served.spec.deadline_s)

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
        mine_s = predicted if self._devices is None else predicted + self._devices.company_s(batch)
        if not self._policy.goes_on(view, batch.members_done + 1, mine_s, spec.deadline_s):
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

    @property
    def has_suspects(self) -> bool:
        """Whether tickets wait that must run alone in a worker."""
        return bool(self._trouble.suspects.parts)

    def take_suspects(self, now: float, server: Server | None = None) -> Batch | None:
        """The next suspects; the caller sees to it that their worker runs nothing else."""
        return self._take_again(self._trouble.suspects, "suspect", now, server)

    def _take_again(self, survivors: Survivors, reason: str, now: float, server: Server | None) -> Batch | None:
        part = next_part(survivors, self._models, now + self.margin_s, self.aside)
        return None if part is None else self._start(*part, reason, now, server)

    def free_at(self, server: Server, now: float) -> float:
        """When a device is expected to be done with what it has; now if it has nothing."""
        return now if self._devices is None else self._devices.free_at(server, now)


def _within_bytes(tickets: list[Ticket], most: float) -> list[Ticket]:
    """The first of these, in their order, whose bodies together stay within `most` bytes; one in any case."""
    total = 0
    for place, ticket in enumerate(tickets):
        total += ticket.bytes
        if total > most and place:
            return tickets[:place]
    return tickets
