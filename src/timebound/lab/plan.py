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

import msgspec

from timebound.errors import SetupError
from timebound.lab.fleet import HOURS_PER_MONTH, MachineType
from timebound.lab.load.schedule import Phase, poisson
from timebound.lab.measured import Measured, Profile
from timebound.lab.simulate import Arrival, Job, Setting, Simulation, quantile
from timebound.profile import Machine
from timebound.scheduler import ModelSpec, Scheduler

# Simulated requests of one run. More makes the 99 % surer and everything slower.
LEAST_REQUESTS, MOST_REQUESTS = 3000, 8000
# A run shorter than this many deadlines would live on the queue that it leaves behind.
DEADLINES = 12
HALVINGS = 5
SEEDS = (1, 2, 3)
# From here on a plan is doubted: days of the profile, batches it was learned from, requests/s of one machine.
OLD_DAYS, FEW_BATCHES, FAST_RPS = 30.0, 200, 5000.0
# How far a prediction may be off on the machine it was measured on; benchmarks/serving/plan_check.py holds it to that.
ERROR = 0.15
# The 95 % quantile over the 5 % quantile of a batch's time against its prediction. A choice, not a measurement.
UNREST = 2.0
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


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What clients see at a rate per machine; shares are of all requests, the rest is of the model's answers."""

    rate: float
    in_time: float
    full: float
    members: float
    p50_ms: float
    p99_ms: float


def seen(rate: float, jobs: Sequence[Job], members: int, apart_s: float = 0.0) -> Outlook:
    """What came of one run; each answer takes `apart_s` more than was simulated."""
    good = [job for job in jobs if job.members]
    waits = [(job.answered_at - job.arrived + apart_s) * 1000 for job in good]
    return Outlook(
        rate=rate,
        in_time=len(good) / max(1, len(jobs)),
        full=sum(job.members == members for job in good) / max(1, len(jobs)),
        members=mean(job.members for job in good) if good else 0.0,
        p50_ms=quantile(waits, 0.5),
        p99_ms=quantile(waits, 0.99),
    )


class World:
    """One machine of a type, to be asked how it does at a rate."""

    def __init__(self, profile: Profile, kind: MachineType, demand: Demand) -> None:
        self._demand = demand
        if profile.is_on_gpu and not kind.gpus:
            raise SetupError(f"{kind.name}: the profile was measured on a GPU; say how many this machine has (gpus)")
        # Slots that share a device are one server, which is not idle between two batches.
        self.slots = kind.gpus if profile.is_on_gpu else max(1, round(kind.cores * profile.slots_per_core))
        # A slot that had two cores and now has one is half as fast.
        cores_per_slot = 1.0 if profile.is_on_gpu else kind.cores / self.slots * profile.slots_per_core
        self._profile = profile.scaled(kind.speed * cores_per_slot)
        self.pace = Measured(self._profile, self.slots)
        self.at = lru_cache(maxsize=None)(self._at)

    def _at(self, rate: float, seed: int) -> Outlook:
        """How one machine does at a rate."""
        deadline_s, pace, apart_s = self._demand.deadline_s, self.pace, self._profile.apart_s
        since = 1.0 + 2 * deadline_s
        requests = min(MOST_REQUESTS, max(LEAST_REQUESTS, DEADLINES * deadline_s * rate))
        until = since + requests / rate
        setting = Setting({_NAME: pace}, deadline_s, self.slots, self._profile.margin_s + apart_s, seed)
        scheduler = Scheduler(setting.margin_s)
        spec = ModelSpec(_NAME, deadline_s, pace.members, pace.max_batch, batch_sizes=self._profile.batch_sizes)
        scheduler.add_model(spec, self._profile.learned)
        rng = random.Random(f"{seed} sizes")
        # The first second is gentle: a server is hardly ever met by the whole load at once. Some more requests come
        # behind those that count, or the last of these would be served in a world where the load has ended.
        times = poisson([Phase(0.6 * rate, 1.0), Phase(rate, until - 1.0 + 3.2 * deadline_s)], seed)
        simulation = Simulation(setting, (Arrival(at, _NAME, pace.size(rng)) for at in times), scheduler)
        simulation.play()
        return seen(rate, [job for job in simulation.jobs if since <= job.arrived < until], pace.members, apart_s)

    def is_enough(self, found: Outlook) -> bool:
        """Whether as many are answered in time as are asked for."""
        return (found.full if self._demand.is_full else found.in_time) >= self._demand.goodput

    def bound(self) -> float:
        """No rate above this can last: an ensemble that may answer in part runs its first member at least.

        Nor is a machine tried with more than all there is, above what a simulation without a gateway can tell.
        """
        demand = self._demand
        members = self.pace.members if demand.is_full else 1
        enough = max(FAST_RPS, demand.rate * (1 + demand.headroom))
        return min(enough, self.pace.bound(demand.deadline_s, members) / demand.goodput)

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


def largest_rates(world: World, seeds: Sequence[int]) -> list[float]:
    """The largest rate that one machine answers well enough, for each seed."""
    first = world.most(seeds[0])
    return [first, *(world.most(seed, first) for seed in seeds[1:])]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One machine type for the demand; no machines if it cannot do it at all."""

    kind: MachineType
    most_rps: float
    """One machine, at the goodput asked for: mean over the seeds."""
    most_low: float
    most_high: float
    is_cut: bool = False
    """Whether batches larger than any that was measured might do more."""
    machines: int = 0
    per_month: float = 0.0
    per_million: float = 0.0
    peak: Outlook | None = None
    one_down: Outlook | None = None


def machines_for(demand: Demand, most_rps: float) -> int:
    """How many, if one takes so much: for the peak with its headroom, and the spare ones."""
    return math.ceil(demand.rate * (1 + demand.headroom) / most_rps - 1e-9) + demand.spare


def outlook(world: World, rate: float, demand: Demand) -> Outlook:
    """At a rate per machine: means over the seeds."""
    runs = [world.at(rate, seed) for seed in demand.seeds]
    return Outlook(**{name: mean(getattr(run, name) for run in runs) for name in Outlook.__struct_fields__})


def offer(profile: Profile, kind: MachineType, demand: Demand) -> Offer:
    """How many machines of one type, at what price, and what clients see."""
    world = World(profile, kind, demand)
    rates = largest_rates(world, demand.seeds)
    most = mean(rates)
    found = Offer(kind=kind, most_rps=most, most_low=min(rates), most_high=max(rates))
    if found.most_low <= 0:
        return found
    machines = machines_for(demand, most)
    working = machines - demand.spare
    per_month = machines * kind.price
    return msgspec.structs.replace(
        found,
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
    if profile.is_on_gpu:
        said.append("preparing inputs is not simulated: each GPU needs as many cores as it had when it was measured")
    other = [each.kind.name for each in offers if was.cores and each.kind.cores != was.cores]
    if other:
        said.append(f"{', '.join(other)}: not the {was.cores} cores that were measured; taken to be as fast per core")
    if age_days > OLD_DAYS:
        said.append(f"the profile is {age_days:.0f} days old; measure again if model or machine have changed")
    if profile.unrest > UNREST:
        text = f"equal batches took up to {profile.unrest:.1f} times as long as others when it was measured"
        said.append(f"{text}; run `timebound tune --fresh` when the machine is quiet")
    if len(profile.lengths) == 1 and profile.lengths[0].sizes != [1.0]:
        size = profile.lengths[0].mean
        said.append(
            f"all inputs that were met are about as large ({size:.3g}); serve real ones, or bench --from samples"
        )
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
    if any(each.most_rps >= FAST_RPS for each in offers):
        text = f"above {FAST_RPS:,.0f} requests/s per machine the gateway counts, and it is not simulated"
        said.append(f"{text}; no more than that was tried, or than the whole load")
    return said
