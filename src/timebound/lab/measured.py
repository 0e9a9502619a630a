"""A measured profile: what it says of a model's speed and inputs, and the simulator's machine that is made of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

import msgspec

from timebound.errors import SetupError
from timebound.profile import Machine, Saved
from timebound.scheduler.estimate import Estimate
from timebound.scheduler.queue import length_bucket, padded_size
from timebound.scheduler.saved import restore
from timebound.scheduler.served import BATCH_SHARE

DEFAULT_MAX_BATCH = 64
# What a gateway keeps free before deadlines until it has learned better; of profiles that do not say.
DEFAULT_MARGIN_S = 0.010
# Between the 5 % and the 95 % quantile of a normal distribution, in sigmas.
_QUANTILES_APART = 2 * 1.645
# So many different sizes stand for all those of a lane.
_SIZES_PER_LANE = 9


class Lengths(msgspec.Struct, frozen=True):
    """Inputs of about one length: their share of all requests, and the sizes that stand for them."""

    share: float
    sizes: list[float]

    @property
    def mean(self) -> float:
        return sum(self.sizes) / len(self.sizes)


class Profile(msgspec.Struct, frozen=True):
    """One model's measured speed, and on what it was measured."""

    learned: dict[str, Any]
    machine: Machine = Machine()

    @property
    def members(self) -> int:
        return len(self.learned["scale"])

    @property
    def batches(self) -> int:
        """How many batches it was learned from."""
        return int(sum(cell[0] for cell in self.learned["cells"]))

    @property
    def margin_s(self) -> float:
        """What the gateway kept free before deadlines."""
        return float(self.learned.get("margin_s", DEFAULT_MARGIN_S))

    @property
    def is_on_gpu(self) -> bool:
        """Whether it was measured on a device that slots share."""
        return self.machine.gpus > 0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that its backend runs; empty if all."""
        return tuple(self.learned.get("sizes", ()))

    @property
    def apart_s(self) -> float:
        """What a large batch took before a device had it and after it; on CPUs that is part of what was measured."""
        return float(self.learned.get("apart_s", 0.0))

    @property
    def lengths(self) -> list[Lengths]:
        """The inputs that came, by length; a single one of size 1 where the model has no `size`."""
        counts = {int(bucket): count for bucket, count in self.learned.get("lengths", {}).items() if count > 0}
        if not counts:  # an older profile: what ran together counts as long as its longest
            for count, batch, size, _ in self.learned["cells"]:
                bucket = length_bucket(size)
                counts[bucket] = counts.get(bucket, 0.0) + count * batch
        whole = sum(counts.values())
        return [Lengths(counts[bucket] / whole, self._sizes(bucket)) for bucket in sorted(counts)]

    def _sizes(self, bucket: int) -> list[float]:
        """Sizes around the mean of a lane's own, which is known of the smallest batches: those are hardly padded."""
        low, high = padded_size(bucket - 1), padded_size(bucket)
        own = [cell for cell in self.learned["cells"] if length_bucket(cell[2]) == bucket]
        middle = min(own, key=lambda cell: cell[1])[2] if own else (low + high) / 2
        reach = min(middle - low, high - middle)
        if reach <= 1e-9:
            return [middle]
        steps = range(-(_SIZES_PER_LANE // 2), _SIZES_PER_LANE // 2 + 1)
        return [middle + reach * step / (_SIZES_PER_LANE // 2 + 1) for step in steps]

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
    """The profile as the simulator's machine: the learned mean for a batch, and the scatter that was met around it."""

    def __init__(self, profile: Profile, slots: int) -> None:
        self.members = profile.members
        self.max_batch = int(profile.learned.get("max_batch", DEFAULT_MAX_BATCH))
        self._estimate = Estimate(self.members, self.max_batch, profile.batch_sizes)
        restore(self._estimate, profile.learned, math.inf)
        self._slots = slots
        self._lengths = profile.lengths
        self._up_to = list(accumulate(each.share for each in self._lengths))
        self._known_slots = profile.machine.slots or max(map(int, profile.learned["crowd"]), default=1)
        # How long batches took: times what was predicted, and seconds beyond; empty in older profiles.
        self._scatter: list[list[float]] = profile.learned.get("scatter", [])
        fast, safe = profile.learned["quantiles"]
        self._sigma = math.log(safe / fast) / _QUANTILES_APART

    def size(self, rng: random.Random) -> float:
        """The size of one more request."""
        (lane,) = rng.choices(self._lengths, cum_weights=self._up_to)
        return rng.choice(lane.sizes)

    def mean(self, batch: int, size: float, member: int, busy: int) -> float:
        """Seconds of one member without scatter. Machines of another size are as crowded as the share of busy slots."""
        level = math.ceil(busy * self._known_slots / self._slots)
        return self._estimate.predict(batch, size, member, level)

    def draw(self, rng: random.Random, batch: int, size: float, member: int, busy: int) -> float:
        """One member, this time."""
        seconds = self.mean(batch, size, member, busy)
        if self._scatter:
            ratio, beyond_s = rng.choice(self._scatter)
            return seconds * ratio + beyond_s
        return seconds * rng.lognormvariate(-(self._sigma**2) / 2, self._sigma)

    def bound(self, deadline_s: float, members: int) -> float:
        """Requests/s if every batch had the best size that the scheduler may choose, and no slot ever waited."""
        seconds = 0.0
        for each in self._lengths:
            per_item = [self._through(n, each.mean, members) / n for n in self._batches(deadline_s, each.mean)]
            seconds += each.share * min(per_item)
        usual = mean(ratio for ratio, _ in self._scatter) if self._scatter else 1.0
        return self._slots / (seconds * min(1.0, usual))

    def is_cut(self, deadline_s: float) -> bool:
        """Whether larger batches than were ever measured might be better, for most of the requests."""
        return sum(each.share for each in self._lengths if self._is_cut(deadline_s, each.mean)) > 0.5

    def _is_cut(self, deadline_s: float, size: float) -> bool:
        trusted, batches = self._trusted(size), self._batches(deadline_s, size)
        *_, before, last = [0.0, *(n / self._through(n, size, self.members) for n in batches)]
        return trusted < self.max_batch and len(batches) == trusted and last > before

    def _through(self, batch: int, size: float, members: int) -> float:
        """Seconds of the first members, with every slot busy."""
        return sum(self.mean(batch, size, member, self._slots) for member in range(members))

    def _trusted(self, size: float) -> int:
        """The scheduler believes in batches of twice the size that it has met."""
        estimate = self._estimate
        return int(max(1, min(self.max_batch, 2 * estimate.largest_batch, 2 * estimate.largest_work / size)))

    def _batches(self, deadline_s: float, size: float) -> Sequence[int]:
        """Sizes that the scheduler may choose in an overload."""
        longest_s = BATCH_SHARE * deadline_s
        numbers = range(1, self._trusted(size) + 1)
        return [n for n in numbers if self._through(n, size, self.members) <= longest_s] or [1]
