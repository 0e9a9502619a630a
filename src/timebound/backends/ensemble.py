"""Several members answering together: mean, weighted mean or vote, exact for any number of members done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np

from timebound.backends.base import Backend, TensorSpec, during
from timebound.backends.python import PythonBackend
from timebound.clock import MonotonicClock
from timebound.errors import SetupError

_COMBINES = ("mean", "weighted", "vote")


class Ensemble(Backend):
    """Runs its members (backends or callables) one after another on the same batch and combines their outputs.

    `mean` and `weighted` (give `weights`) average the outputs; `vote` gives each class the share of members whose
    largest output it is. Members must agree in output shape: an array of one row per item.

    When time is short the first members answer alone, so write the best first; or give each one's held-out
    accuracy, and they are put in order of accuracy per second as measured here. `names` say who is who where members'
    votes are shown; without them files and functions go by their own names.
    """

    kind = "ensemble"

    def __init__(
        self,
        *members: Backend | Callable[[Any], Any],
        combine: str = "mean",
        weights: Sequence[float] | None = None,
        accuracies: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        if not members:
            raise SetupError("ensemble() needs at least one member")
        if combine not in _COMBINES:
            raise SetupError(f"ensemble(combine={combine!r}) is unknown; choose one of {', '.join(_COMBINES)}")
        if accuracies is not None and len(accuracies) != len(members):
            raise SetupError(f"ensemble of {len(members)} members needs {len(members)} accuracies, got {accuracies!r}")
        self.members = [m if isinstance(m, Backend) else PythonBackend(m) for m in members]
        self.names = _checked_names(names, self.members)
        self.combine = combine
        self.weights = _checked_weights(combine, weights, len(members))
        self.accuracies = list(accuracies) if accuracies is not None else None
        self.parallel = all(member.parallel for member in self.members)
        self.inputs: Sequence[TensorSpec] = self.members[0].inputs
        devices = {member.device for member in self.members}
        self.device = devices.pop() if len(devices) == 1 else "cpu"
        self._joined: Any = _join(self.members, self.weights, is_vote=combine == "vote")
        self.order = list(range(len(members)))
        """The members' turn: as written, or by accuracy per second once `put_in_order` was called."""
        self._seconds = [0.0] * len(members)
        self._clock = MonotonicClock()
        self._threads: ThreadPoolExecutor | None = None

    def __call__(self, batch: Any) -> Any:
        stand_in = _stand_in.get()
        if stand_in is not None and stand_in[0] is self:
            return stand_in[1]
        steps = _steps.get()
        if steps is not None:
            return steps.run(self, batch)
        cores = _cores.get()
        return self.run(batch, None) if cores == 1 or not self.parallel else self.run_side_by_side(batch, cores)

    @property
    def batch_sizes(self) -> Sequence[int]:  # type: ignore[override]
        """Those of its members; members whose sizes differ pad by themselves."""
        sizes = {tuple(member.batch_sizes) for member in self.members}
        return sizes.pop() if len(sizes) == 1 else ()

    def run_side_by_side(self, batch: Any, cores: int) -> Any:
        """The combination of all members, run on several cores at once; the same numbers as one after another."""
        if self.device != "cpu":
            return self.run(batch, None)  # its cores are not ours to share out
        if self._threads is None:
            self._threads = ThreadPoolExecutor(cores - 1, "members")
        begun, times = self._clock.now(), {}

        def run(place: int) -> Any:
            start = self._clock.now()
            output = self.members[place](batch)
            times[place] = (start - begun, self._clock.now() - start)
            return output

        here = self.order[::cores]
        running = {place: self._threads.submit(run, place) for place in self.order if place not in here}
        outputs = {place: run(place) for place in here}
        mixture, votes = Mixture(self.combine), _votes.get()
        for place in self.order:
            output = outputs[place] if place in outputs else running[place].result()
            mixture.add(output, self.weights[place])
            if votes is not None:
                votes.hear(self, place, output)
        if (told := _beside.get()) is not None:
            told[:] = [times[place] for place in self.order]
        return mixture.value()

    def run(self, batch: Any, after_member: Callable[[Combined], bool] | None, sure: int = 0) -> Any:
        """The combination of the members run: all, or until `after_member` (not called for the last) says stop.

        It does not before `sure` members have run, if that is known; a device is given so many in advance.
        """
        votes = _votes.get()
        if self._joined is not None and votes is None:
            found = self._run_on_device(batch, after_member, sure)
            if found is not None:
                return found
        mixture = Mixture(self.combine)
        for place in self.order:
            start = self._clock.now()
            output = self.members[place](batch)
            self._seconds[place] = self._clock.now() - start
            mixture.add(output, self.weights[place])
            if votes is not None:
                votes.hear(self, place, output)
            if after_member is not None and mixture.count < len(self.order) and not after_member(mixture):
                break
        return mixture.value()

    def _run_on_device(self, batch: Any, after_member: Callable[[Combined], bool] | None, sure: int) -> Any:
        """The same where the members share a device; None if some of them are not captured there."""
        after = None

        if after_member is not None:

            def after(count: int, value: Callable[[], Any]) -> bool:
                return after_member(_Arrived(count, value))

        first: Any = self.members[0]
        return self._joined.mixture(first.arrays(batch), self.order, after, sure)

    def member_seconds(self) -> list[list[float]]:
        if self._joined is not None:
            form = self._joined.form
            every = [[each[size] for size in form.ladder] for each in form.seconds] if form is not None else []
        else:
            every = [seconds for member in self.members for seconds in member.member_seconds()]
        return [every[place] for place in self.order] if len(every) == len(self.order) else []

    def seconds_by_length(self) -> list[tuple[float, list[list[float]]]]:
        found = self._joined.seconds_by_length() if self._joined is not None else []
        return [(length, [every[place] for place in self.order]) for length, every in found]

    def together_seconds(self) -> list[float]:
        form = self._joined.form if self._joined is not None else None
        return list(form.together_s.values()) if form is not None else []

    def notes(self) -> list[str]:
        if self._joined is not None:
            return list(self._joined.notes)
        return [note for member in self.members for note in member.notes()]

    def captured(self) -> str:
        return next((words for member in self.members if (words := member.captured())), "")

    @contextmanager
    def warming(self) -> Iterator[None]:
        with ExitStack() as each:
            for member in self.members:
                each.enter_context(member.warming())
            yield

    def warm_sizes(self, max_batch: int) -> list[int]:
        """Batch sizes that any member wants to have met before serving."""
        return sorted({size for member in self.members for size in member.warm_sizes(max_batch)})

    def put_in_order(self) -> None:
        """Where accuracies are known: most accuracy per second first, as the members last ran."""
        measured = self.member_seconds()  # in the order written, which is the order so far
        if measured:
            self._seconds = [seconds[-1] for seconds in measured]
        if self.accuracies is not None:
            worth = [gain / max(took, 1e-9) for gain, took in zip(self.accuracies, self._seconds, strict=True)]
            self.order = sorted(self.order, key=lambda place: -worth[place])


class Combined(Protocol):
    """What the members so far make together."""

    count: int

    def value(self) -> Any: ...


class _Arrived:
    """The same, from a device."""

    def __init__(self, count: int, value: Callable[[], Any]) -> None:
        self.count = count
        self.value = value


class Mixture:
    """The running combination: `value()` is exact for the members added so far."""

    def __init__(self, combine: str) -> None:
        self._vote = combine == "vote"
        self._sum: Any = None
        self._weight = 0.0
        self.count = 0

    def add(self, output: Any, weight: float = 1.0) -> None:
        """Add one member's output: an array with one row per item."""
        rows = np.asarray(output)
        if rows.dtype.kind != "f":
            rows = rows.astype(np.float64)  # sums of small whole numbers would wrap around
        share = _ballots(rows) if self._vote else rows
        if self._sum is None:
            self._sum = share * np.asarray(weight, dtype=share.dtype)
        elif self._sum.shape != share.shape:
            raise ValueError(
                f"member {self.count + 1} gave shape {rows.shape}, the first gave {self._sum.shape}; "
                "members of an ensemble must agree"
            )
        else:
            self._sum = self._sum + share * np.asarray(weight, dtype=share.dtype)
        self._weight += weight
        self.count += 1

    def value(self) -> Any:
        """The combination of what was added; a fresh array."""
        return self._sum / np.asarray(self._weight, dtype=self._sum.dtype)


class Steps:
    """Runs the first ensemble that `infer` calls member by member, whatever `infer` does around it.

    After each member but the last, `report` is called with the number of members done and with `infer`: called
    there, it runs with the members so far in the ensemble's place and gives the outputs as they would be now.
    `report` says whether to go on. While `is_quiet` says so it is not called for the members before the `sure` ones
    are done; of those beyond, none is begun before it is asked for.
    """

    def __init__(
        self,
        infer: Callable[[], Any],
        report: Callable[[Callable[[], Any], int], bool],
        is_quiet: Callable[[], bool] | None = None,
        sure: int = 0,
    ) -> None:
        self._infer = infer
        self._report = report
        self._is_quiet = is_quiet
        self._sure = sure
        self._owner: Ensemble | None = None
        self.is_complete = True
        """Whether no report was answered with a stop."""

    def run(self, ensemble: Ensemble, batch: Any) -> Any:
        """What `Ensemble.__call__` does while these steps are taken."""
        if self._owner is None:
            self._owner = ensemble
            return ensemble.run(batch, partial(self._after_member, ensemble), self._sure)
        return ensemble.run(batch, None)

    def _after_member(self, ensemble: Ensemble, mixture: Combined) -> bool:
        if mixture.count < self._sure and self._is_quiet is not None and self._is_quiet():
            return True
        with during(_stand_in, (ensemble, mixture.value())):
            self.is_complete = self._report(self._infer, mixture.count)
        return self.is_complete


class Votes:
    """Hears what each member of the first ensemble that `infer` calls says, so that each can answer alone later."""

    def __init__(self) -> None:
        self._owner: Ensemble | None = None
        self._heard: dict[int, Any] = {}

    def hear(self, ensemble: Ensemble, place: int, output: Any) -> None:
        """A member has spoken; only the first ensemble's first run counts."""
        if self._owner is None:
            self._owner = ensemble
        if self._owner is ensemble:
            self._heard.setdefault(place, output)

    def alone(self, infer: Callable[[], Any]) -> Iterator[tuple[str, Any]]:
        """Each member heard, in the order written: its name, and what `infer` gives when only this member spoke."""
        for place in sorted(self._heard):
            assert self._owner is not None
            own = Mixture(self._owner.combine)
            own.add(self._heard[place])
            with during(_stand_in, (self._owner, own.value())):
                outputs = infer()
            yield self._owner.names[place], outputs


_steps: ContextVar[Steps | None] = ContextVar("timebound_steps", default=None)
_votes: ContextVar[Votes | None] = ContextVar("timebound_votes", default=None)
_cores: ContextVar[int] = ContextVar("timebound_cores", default=1)
_beside: ContextVar[list[tuple[float, float]] | None] = ContextVar("timebound_beside", default=None)
_stand_in: ContextVar[tuple[Ensemble, Any] | None] = ContextVar("timebound_stand_in", default=None)
"""An ensemble that is not run, and what it gives instead."""


# For what is called inside a `with` block, in this thread:
in_steps = partial(during, _steps)
"""These steps are taken."""
heard_by = partial(during, _votes)
"""These votes, or nobody, hear the members of ensembles."""
on_cores = partial(during, _cores)
"""Ensembles may use so many cores."""
timed_in = partial(during, _beside)
"""This list is told when each member that runs beside others began, and how long it took."""

ensemble = Ensemble
"""As users write it: `tb.ensemble(...)`."""


def _join(members: Sequence[Any], weights: Sequence[float], *, is_vote: bool) -> Any:
    """Members of one device as networks that take their rows once; None if they cannot be."""
    if any(member.device == "cpu" for member in members) or len({member.device for member in members}) > 1:
        return None
    if not all(hasattr(member, "join") for member in members) or len(set(map(id, members))) < len(members):
        return None
    from timebound.devices.mixture import Mix  # it needs torch, which is there if they are

    return members[0].join(members, Mix(weights, is_vote=is_vote))


def _ballots(rows: Any) -> Any:
    if rows.ndim < 2:
        raise ValueError(f"vote needs one row of class scores per item, but a member gave shape {rows.shape}")
    ballots = np.zeros(rows.shape, dtype=np.float32)
    np.put_along_axis(ballots, rows.argmax(axis=-1, keepdims=True), 1.0, axis=-1)
    return ballots


def _checked_names(names: Sequence[str] | None, members: Sequence[Any]) -> list[str]:
    """One name per member, no two alike."""
    if names is None:
        own = [_own_name(member) for member in members]
        return [
            name if name and own.count(name) == 1 else f"{name or 'member'} {number}"
            for number, name in enumerate(own, start=1)
        ]
    if isinstance(names, str) or len(names) != len(members) or not all(isinstance(name, str) for name in names):
        raise SetupError(f"ensemble of {len(members)} members needs {len(members)} names, got {names!r}")
    if len(set(names)) < len(names):
        raise SetupError(f"members of an ensemble need names that differ, got {list(names)!r}")
    return list(names)


def _own_name(member: Any) -> str:
    path = getattr(member, "path", None)
    if path is not None:
        return PurePath(path).stem
    name = str(getattr(member, "name", ""))
    return "" if name.startswith("<") else name


def _checked_weights(combine: str, weights: Sequence[float] | None, count: int) -> list[float]:
    if combine != "weighted":
        if weights is not None:
            raise SetupError(f'ensemble(combine={combine!r}) takes no weights; use combine="weighted"')
        return [1.0] * count
    if weights is None or len(weights) != count:
        raise SetupError(f"ensemble of {count} members needs {count} weights, got {weights!r}")
    if any(not 0 < w < math.inf for w in weights):
        raise SetupError(f"weights must be above zero, got {list(weights)!r}")
    return [float(w) for w in weights]
