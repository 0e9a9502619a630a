"""How many machines a load needs: a measured profile, put into the simulator that drives the real scheduler.

For each machine type the largest rate is sought at which enough requests are answered in time, by halving, once for
each seed. Machines are counted so that the load with its headroom fits when some of them are down. Requests come at
random, evenly divided among machines; the network, the load balancer and the gateway's own work are not simulated,
except for what the gateway took from the workers while the profile was learned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from statistics import mean
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.lab.arrivals import constant, poisson
from timebound.lab.fleet import HOURS_PER_MONTH, MachineType
from timebound.lab.report import Report
from timebound.lab.simulate import Setting, Simulation
from timebound.profile import Machine, Saved
from timebound.scheduler import ModelSpec, Scheduler
from timebound.scheduler.estimate import Estimate
from timebound.scheduler.served import BATCH_SHARE

# Simulated requests of one run. More makes the 99 % surer and everything slower.
LEAST_REQUESTS, MOST_REQUESTS = 3000, 8000
# A run shorter than this many deadlines would live on the queue that it leaves behind.
DEADLINES = 12
HALVINGS = 5
SEEDS = (1, 2, 3)
DEFAULT_MAX_BATCH = 64
# From here on a plan is doubted: days of the profile, batches it was learned from, requests/s of one machine.
OLD_DAYS, FEW_BATCHES, FAST_RPS = 30.0, 200, 5000.0
# The 95 % quantile over the 5 % quantile of a batch's time against its prediction. A choice, not a measurement.
UNREST = 2.0
# Between the 5 % and the 95 % quantile of a normal distribution, in sigmas.
_QUANTILES_APART = 2 * 1.645
_NAME = "model"


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    rate: float
    """Requests per second at the peak."""
    average: float
    """Requests per second over the month; for the price of a request."""
    deadline_s: float
    goodput: float = 0.99
    is_full: bool = False
    """Whether only answers of all members of an ensemble count."""
    headroom: float = 0.2
    spare: int = 1
    """Machines that may be down at the peak."""
    seeds: tuple[int, ...] = SEEDS


class Profile(msgspec.Struct, frozen=True):
    """One model's measured speed, and on what it was measured."""

    learned: dict[str, Any]
    machine: Machine = Machine()

    @property
    def members(self) -> int:
        return len(self.learned["scale"])

    @property
    def max_batch(self) -> int:
        return int(self.learned.get("max_batch", DEFAULT_MAX_BATCH))

    @property
    def batches(self) -> int:
        """How many batches it was learned from."""
        return int(sum(cell[0] for cell in self.learned["cells"]))

    @property
    def size(self) -> float:
        """The mean size of the inputs; 1 where the model has no `size`."""
        cells = self.learned["cells"]
        return float(sum(cell[0] * cell[2] for cell in cells) / sum(cell[0] for cell in cells))

    @property
    def sizes(self) -> list[float]:
        """The sizes that were met, in order."""
        return sorted(cell[2] for cell in self.learned["cells"])

    @property
    def slots_per_core(self) -> float:
        """How the machine was divided; one slot per core if that is not known."""
        return self.machine.slots / self.machine.cores if self.machine.cores and self.machine.slots else 1.0

    def scaled(self, speed: float) -> Profile:
        """The same on cores that are `speed` times as fast, at the speed that was usual and not that of the end."""
        first, *_ = scale = self.learned["scale"]
        usual = self.learned.get("usual_drift", first)
        steady = [part - first + usual for part in scale]
        cells = [[count, batch, size, seconds / speed] for count, batch, size, seconds in self.learned["cells"]]
        return Profile({**self.learned, "cells": cells, "scale": steady}, self.machine)

    @property
    def unrest(self) -> float:
        """How much longer slow batches took than quick ones of the same size; 1 is none."""
        fast, safe = self.learned["quantiles"]
        return float(safe / fast)


def choose(saved: Saved, model: str) -> tuple[str, Profile]:
    """The model of that name, or the only one; raises `SetupError` if that leaves a choice."""
    usable = {name: learned for name, learned in saved.models.items() if learned.get("cells")}
    if not usable:
        raise SetupError("the profile knows no batches; serve some requests or run `timebound tune`")
    if not model and len(usable) == 1:
        model = next(iter(usable))
    if model not in usable:
        raise SetupError(f"choose one model with --model: {', '.join(usable)}")
    return model, Profile(usable[model], saved.machine)


class Measured:
    """The profile as the simulator's machine: the learned mean for a batch, and the learned scatter around it."""

    def __init__(self, profile: Profile, slots: int) -> None:
        self.members = profile.members
        self.max_batch = profile.max_batch
        self._estimate = Estimate(self.members, self.max_batch)
        self._estimate.restore(profile.learned)
        self._slots = slots
        self._size = profile.size
        self._known_slots = profile.machine.slots or max(map(int, profile.learned["crowd"]), default=1)
        fast, safe = profile.learned["quantiles"]
        self._sigma = math.log(safe / fast) / _QUANTILES_APART

    def mean(self, batch: int, member: int, busy: int) -> float:
        """Seconds of one member without scatter. Machines of another size are as crowded as the share of busy slots."""
        level = math.ceil(busy * self._known_slots / self._slots)
        return self._estimate.predict(batch, self._size, member, level)

    def draw(self, rng: random.Random, batch: int, size: float, member: int, busy: int) -> float:
        """One member, this time; on average the mean."""
        del size  # all are of the mean size
        return self.mean(batch, member, busy) * rng.lognormvariate(-(self._sigma**2) / 2, self._sigma)

    def through(self, batch: int, members: int) -> float:
        """Seconds of the first members, with every slot busy."""
        return sum(self.mean(batch, member, self._slots) for member in range(members))

    def bound(self, deadline_s: float, members: int) -> float:
        """Requests/s if every batch had the best size that the scheduler may choose, and no slot ever waited."""
        rates = [n / self.through(n, members) for n in self._batches(deadline_s)]
        return self._slots * max(rates)

    def is_cut(self, deadline_s: float) -> bool:
        """Whether larger batches than were ever measured might be better."""
        *_, before, last = [0.0, *(n / self.through(n, self.members) for n in self._batches(deadline_s))]
        return self._trusted < self.max_batch and len(self._batches(deadline_s)) == self._trusted and last > before

    @property
    def _trusted(self) -> int:
        """The scheduler believes in batches of twice the size that it has met."""
        return max(1, min(self.max_batch, 2 * self._estimate.largest_batch))

    def _batches(self, deadline_s: float) -> list[int]:
        """Sizes that the scheduler may choose in an overload."""
        longest_s = BATCH_SHARE * deadline_s
        return [n for n in range(1, self._trusted + 1) if self.through(n, self.members) <= longest_s] or [1]


class World:
    """One machine of a type, to be asked how it does at a rate."""

    def __init__(self, profile: Profile, kind: MachineType, demand: Demand) -> None:
        self._demand = demand
        self._profile = profile.scaled(kind.speed)
        self.slots = max(1, round(kind.cores * profile.slots_per_core))
        self.pace = Measured(self._profile, self.slots)
        self.at = lru_cache(maxsize=None)(self._at)

    def _at(self, rate: float, seed: int) -> Report:
        """How one machine does at a rate."""
        deadline_s, pace = self._demand.deadline_s, self.pace
        since = 1.0 + 2 * deadline_s
        requests = min(MOST_REQUESTS, max(LEAST_REQUESTS, DEADLINES * deadline_s * rate))
        until = since + requests / rate + 3.2 * deadline_s
        setting = Setting(
            {_NAME: pace}, deadline_s=deadline_s, slots=self.slots, retries=0, until=until, judge_from=since, seed=seed
        )
        scheduler = Scheduler(setting.margin_s)
        scheduler.add_model(ModelSpec(_NAME, deadline_s, pace.members, pace.max_batch), self._profile.learned)
        size = self._profile.size
        arrivals = poisson(constant(rate, ramp_s=1.0), rate, until, model=_NAME, seed=seed, size=lambda _: size)
        return Simulation(setting, arrivals, scheduler=scheduler).run()

    def is_enough(self, report: Report) -> bool:
        """Whether as many are answered in time as are asked for."""
        return (report.full if self._demand.is_full else report.in_time) >= self._demand.goodput

    def bound(self) -> float:
        """No rate above this can last: an ensemble that may answer in part runs its first member at least."""
        members = self.pace.members if self._demand.is_full else 1
        return self.pace.bound(self._demand.deadline_s, members) / self._demand.goodput

    def most(self, seed: int, near: float = 0.0) -> float:
        """The largest rate that is answered well enough, 0 if none is; found sooner if it is `near` a known one."""
        low, high = 0.92 * near, min(self.bound(), 1.08 * near)
        halvings = HALVINGS - 2
        if not near or not self.is_enough(self.at(low, seed)):
            low, high, halvings = 0.0, self.bound(), HALVINGS
            if self.is_enough(self.at(0.75 * high, seed)):
                low = 0.75 * high
        if self.is_enough(self.at(high, seed)):
            return high
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if self.is_enough(self.at(middle, seed)) else (low, middle)
        return low


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What clients see at a rate per machine: means over the seeds."""

    rate: float
    in_time: float
    full: float
    members: float
    p50_ms: float
    p99_ms: float


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One machine type for the demand; no machines if it cannot do it at all."""

    kind: MachineType
    most_rps: float
    """One machine, at the goodput asked for: mean over the seeds."""
    most_low: float
    most_high: float
    is_cut: bool = False
    """Whether batches larger than any that was measured might do more."""
    machines: int
    per_month: float
    per_million: float
    peak: Outlook | None = None
    one_down: Outlook | None = None


def outlook(world: World, rate: float, demand: Demand) -> Outlook:
    """At a rate per machine."""
    reports = [world.at(rate, seed) for seed in demand.seeds]
    return Outlook(
        rate=rate,
        in_time=mean(report.in_time for report in reports),
        full=mean(report.full for report in reports),
        members=mean(report.mean_members for report in reports),
        p50_ms=mean(report.p50_over_deadline for report in reports) * demand.deadline_s * 1000,
        p99_ms=mean(report.p99_over_deadline for report in reports) * demand.deadline_s * 1000,
    )


def offer(profile: Profile, kind: MachineType, demand: Demand) -> Offer:
    """How many machines of one type, at what price, and what clients see."""
    world = World(profile, kind, demand)
    first = world.most(demand.seeds[0])
    rates = [first, *(world.most(seed, first) for seed in demand.seeds[1:])]
    most = mean(rates)
    if min(rates) <= 0:
        return Offer(kind=kind, most_rps=most, most_low=min(rates), most_high=max(rates), machines=0, per_month=0.0,
                     per_million=0.0)  # fmt: skip
    working = math.ceil(demand.rate * (1 + demand.headroom) / most - 1e-9)
    machines = working + demand.spare
    per_month = machines * kind.price
    return Offer(
        kind=kind,
        most_rps=most,
        most_low=min(rates),
        most_high=max(rates),
        is_cut=world.pace.is_cut(demand.deadline_s),
        machines=machines,
        per_month=per_month,
        per_million=per_month / (demand.average * HOURS_PER_MONTH * 3600) * 1e6,
        peak=outlook(world, demand.rate / machines, demand),
        one_down=outlook(world, demand.rate / working, demand) if demand.spare else None,
    )


def goodput_curve(profile: Profile, kind: MachineType, demand: Demand, rates: Sequence[float]) -> list[Outlook]:
    """One machine against the load; of the first seed only, for it is drawn and not counted on."""
    world = World(profile, kind, demand)
    return [outlook(world, rate, msgspec.structs.replace(demand, seeds=demand.seeds[:1])) for rate in rates]


def cheapest(offers: Sequence[Offer]) -> Offer | None:
    """The offer that costs least; None if no type can do it."""
    return min((each for each in offers if each.machines), key=lambda each: each.per_month, default=None)


def doubts(profile: Profile, offers: Sequence[Offer], age_days: float, here: Machine) -> list[str]:
    """Why the figures may be wrong, the gravest first."""
    said = []
    was = profile.machine
    if not was.cores:
        said.append("the profile does not say on what machine it was measured; run `timebound tune` again")
    elif (was.processor, was.cores) != (here.processor, here.cores):
        said.append(f"the profile is of another machine: {was.cores} cores of {was.processor}")
    other = [each.kind.name for each in offers if was.cores and each.kind.cores != was.cores]
    if other:
        said.append(f"{', '.join(other)}: not the {was.cores} cores that were measured; taken to be as fast per core")
    if age_days > OLD_DAYS:
        said.append(f"the profile is {age_days:.0f} days old; measure again if model or machine have changed")
    if profile.unrest > UNREST:
        text = f"equal batches took up to {profile.unrest:.1f} times as long as others when it was measured"
        said.append(f"{text}; run `timebound tune --fresh` when the machine is quiet")
    if profile.sizes[-1] > 1.5 * profile.sizes[0]:
        said.append(f"inputs vary in size; all are taken to be of the mean, {profile.size:.3g}")
    if profile.batches < FEW_BATCHES:
        said.append(f"the profile was learned from {profile.batches} batches only; run `timebound tune`")
    if any(each.is_cut for each in offers):
        largest = profile.learned["largest"][0]
        said.append(f"no batch above {largest} was ever met, and larger ones may do more; `timebound tune` tries them")
    wide = [each for each in offers if each.machines and each.most_high - each.most_low > 0.1 * each.most_rps]
    for each in wide:
        said.append(
            f"{each.kind.name}: runs with other random numbers gave {each.most_low:,.0f} to {each.most_high:,.0f}/s"
        )
    if any(each.most_rps > FAST_RPS for each in offers):
        said.append(f"above {FAST_RPS:,.0f} requests/s per machine the gateway counts, and it is not simulated")
    return said
