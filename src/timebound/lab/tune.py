"""Finds the settings with which a model answers most in time on this machine: tries them on real servers.

Curves first (how long batches take, `lab/curve.py`), also of the engines that answer as the reference does
(`lab/engines.py`), then a server for each sensible division of the cores into workers, slots and threads, with the
model's own engine and with the fastest, in turns; who is far behind has no further turn. Each is asked alone (latency)
and offered more than it can do; what counts is the work it answers in time: requests/s, an ensemble's partial answers
by the share of their members. Every step is saved when it is done, so a run that is cut short goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean

import msgspec

from timebound.errors import SetupError
from timebound.lab import bench, engines
from timebound.lab.bench import Plan
from timebound.lab.curve import Facts, Point, option_of, sizes
from timebound.lab.engines import Judgement, Verdict
from timebound.lab.load.client import resolve
from timebound.lab.load.discovery import example_payload
from timebound.lab.load.launch import Served, run_program, serving
from timebound.lab.load.processes import ForeignLoad, tree_pss_mib
from timebound.lab.load.requests import FRESH_KEY, Form, Payload, Requests
from timebound.lab.overload import Offered, overload
from timebound.machine.gpus import gpus
from timebound.profile import ProfileFile
from timebound.target import resolved
from timebound.types import OWN, Body, ModelInfo
from timebound.workers.messages import DEVICE_SLOTS, WorkerPlan

OVERLOAD = 1.3
# Differences below this are taken for noise.
NOISE = 0.03
# Settings below this share of the best after one round, and after more, are not tried again: noise does not make up so
# much.
HOPE = (0.85, 0.93)
CLIENTS = 32
# More than this of other programs, in cores, and the trials cannot be trusted.
QUIET_CORES = 0.3
VERSION = 5


class Settings(msgspec.Struct, frozen=True, order=True):
    """A division of the cores, and what ONNX files run on or how torch computes (empty where nothing is to choose)."""

    workers: int
    slots: int
    threads: int
    engine: str = ""
    hands: int | None = None
    """Where there is a device."""

    @property
    def flags(self) -> list[str]:
        """As `timebound serve` takes them."""
        values = {"--workers": self.workers, "--slots": self.slots, "--threads": self.threads}
        if self.hands is not None:
            values["--hands"] = self.hands
        words = [word for flag, value in values.items() for word in (flag, str(value))]
        return [*words, f"--{option_of(self.engine)}", self.engine] if self.engine else words

    def __str__(self) -> str:
        slots = f"{_counted(self.workers, 'worker')} x {_counted(self.slots, 'slot')}"
        hands = "" if self.hands is None else f" x {self.hands or 'no'} hand{'s' if self.hands != 1 else ''}"
        return f"{slots}{hands} x {curve_name(self.threads, self.engine)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


class Trial(msgspec.Struct, frozen=True):
    """What a server with these settings did in one turn."""

    settings: Settings
    offered_rps: float
    useful_rps: float
    goodput: float
    alone_p50_ms: float
    memory_mib: float
    # How many cores other programs kept busy meanwhile.
    foreign_cores: float = 0.0
    profile: dict[str, object] = {}
    # Turns that it is the mean of.
    turns: int = 1


class Record(msgspec.Struct):
    """All that was measured so far; `about` says of what, so that it is not mixed up with something else."""

    about: str
    facts: Facts | None = None
    curves: dict[str, list[Point]] = {}
    """By `curve_name`."""
    verdicts: list[Verdict] = []
    """On every engine that could be chosen besides the model's own."""
    capacity_rps: float = 0.0
    trials: list[Trial] = []


class Target(msgspec.Struct, frozen=True):
    """What is tuned, and how long each measurement takes."""

    path: Path
    model: str = ""
    deadline_s: float | None = None
    seconds: float = 3.0
    rounds: int = 3
    cores: int = 1
    judgement: Judgement = Judgement()


def candidates(cores: int, is_parallel: bool) -> list[Settings]:
    """The divisions worth trying; what `timebound serve` would choose comes first."""
    halves = sizes(cores)
    if is_parallel:
        tried = [Settings(1, cores // threads, threads) for threads in halves]
        tried += [Settings(workers, cores // workers, 1) for workers in halves[1:]]
    else:
        tried = [Settings(cores // threads, 1, threads) for threads in halves]
    return list(dict.fromkeys(tried))


def candidates_on_device(cores: int, gpus: int, slots: int) -> list[Settings]:
    """With a device there is nothing to divide: the hands that the server would choose, and none."""
    workers = max(1, gpus)
    plan = WorkerPlan(target="", cores=cores, gpus=[""] * workers)
    threads = max(1, cores // (workers * slots))
    return [Settings(workers, slots, threads, hands=hands) for hands in (plan.hands_for(has_device=True), 0)]


def curve_name(threads: int, engine: str) -> str:
    """As people read it."""
    return _counted(threads, "thread") + (f" on {engine}" if engine not in ("", OWN) else "")


class Tuning:
    """Measures step by step; `tell` hears what comes next."""

    def __init__(self, target: Target, state: Path, tell: Callable[[str], None]) -> None:
        self._target = target
        self._state = state
        self._tell = tell
        self.record = Record(_about(target))

    @property
    def _facts(self) -> Facts:
        """Known from the first step on."""
        assert self.record.facts is not None
        return self.record.facts

    @property
    def deadline_s(self) -> float:
        """What answers are held to."""
        return self._target.deadline_s or self._facts.info.deadline_s

    def resume(self) -> bool:
        """Take up what an earlier run saved for the same target, unchanged since; says whether there was any."""
        with suppress(OSError, msgspec.DecodeError):
            saved = msgspec.json.decode(self._state.read_bytes(), type=Record)
            if saved.about == self.record.about:
                self.record = saved
                return bool(saved.curves)
        return False

    def run(self) -> None:
        """Everything that is not yet in the record, which is saved after each measurement; Ctrl-C ends it anywhere."""
        if self.record.facts is None:
            self._tell("batches with 1 thread")
            self.record.facts, points = self._curve(1, "")
            self.record.curves[curve_name(1, self.record.facts.engine)] = points
            self.save()
        self._judge_engines()
        own = [
            msgspec.structs.replace(settings, engine=self.record.facts.engine)
            for settings in self._divisions(self.record.facts.info)
        ]
        rival = self.rival
        others = [msgspec.structs.replace(settings, engine=rival) for settings in own] if rival else []
        self._try_all([*own, *others])

    def _divisions(self, info: ModelInfo) -> list[Settings]:
        cores = self._target.cores
        if info.device == "cpu":
            return candidates(cores, info.is_parallel)
        gpus_there = len(gpus(os.environ)) if info.device == "cuda:0" else 1
        return candidates_on_device(cores, gpus_there, DEVICE_SLOTS if info.is_parallel else 1)

    def _judge_engines(self) -> None:
        """Ask every engine that can be chosen; those that answer alike are timed too."""
        facts, target = self._facts, self._target
        known = {verdict.engine for verdict in self.record.verdicts}
        for engine in facts.engines:
            if engine != facts.engine and engine not in known and not engines.is_beaten(engine, self.costs):
                self._tell(f"whether {engine} answers as {engines.reference_name(engine)} does")
                here, device = engines.means(), facts.info.device
                found = engines.ask(target.path, target.model, engine, target.judgement, here, device=device)
                self.record.verdicts.append(found)
                self.save()
            for verdict in self.record.verdicts:
                if engines.agrees(verdict, target.judgement):
                    self._time_batches(1, verdict.engine)

    @property
    def costs(self) -> dict[str, float]:
        """Seconds per item by engine, of those that may be taken and were timed; the model's own comes first."""
        names = [self._facts.engine, *(verdict.engine for verdict in self.record.verdicts)]
        curves = {name: self.record.curves.get(curve_name(1, name)) for name in names}
        return {
            name: engines.best_batch(points, self.deadline_s).per_item_s for name, points in curves.items() if points
        }

    @property
    def rival(self) -> str | None:
        """The engine that servers are tried with besides the model's own."""
        facts = self.record.facts
        return engines.fastest(self.costs, facts.engine) if facts is not None and facts.engine else None

    def verdicts(self) -> list[str]:
        """What was found out about the engines, in sentences."""
        costs, own, judgement = self.costs, self._facts.engine, self._target.judgement
        return [engines.tell(verdict, costs, own, judgement) for verdict in self.record.verdicts]

    def _try_all(self, tried: Sequence[Settings]) -> None:
        for threads, engine in dict.fromkeys((settings.threads, settings.engine) for settings in tried):
            self._time_batches(threads, engine)
        if not self.record.capacity_rps:
            self._tell("how much it can do with the settings it would choose itself")
            self.record.capacity_rps = self._capacity(tried[0])
            self.save()
        for number in range(self._target.rounds):
            left = hopeful(tried, self.record.trials, number)
            if number and len(left) == 1:  # one more turn would change nothing
                return
            for settings in left:
                done = sum(trial.settings == settings for trial in self.record.trials)
                if done <= number:
                    self._tell(f"round {number + 1} of {self._target.rounds}: {settings}")
                    self.record.trials.append(self._try(settings))
                    self.save()

    def _time_batches(self, threads: int, engine: str) -> None:
        name = curve_name(threads, engine)
        if name not in self.record.curves:
            self._tell(f"batches with {name}")
            _, self.record.curves[name] = self._curve(threads, engine)
            self.save()

    def _curve(self, threads: int, engine: str) -> tuple[Facts, list[Point]]:
        target = self._target
        arguments = (str(target.path), target.model, str(threads), str(target.seconds / 10), engine)
        ended = run_program("timebound.lab.curve", *arguments, threads=threads)
        if ended.code:
            raise SetupError(ended.last_line)
        facts, *points = ended.found
        return msgspec.json.decode(facts, type=Facts), [msgspec.json.decode(point, type=Point) for point in points]

    # ------------------------------------------------------------------ on real servers

    def _capacity(self, settings: Settings) -> float:
        with tempfile.TemporaryDirectory(prefix="tune-") as folder, self._serving(settings, folder) as server:
            plan = Plan(clients=CLIENTS, seconds=self._target.seconds, warm_up_s=1.0)
            return max(1.0, self._useful(self._load(server.url, plan)))

    def _try(self, settings: Settings) -> Trial:
        with tempfile.TemporaryDirectory(prefix="tune-") as folder:
            with self._serving(settings, folder) as server:
                foreign = ForeignLoad()
                alone = self._load(server.url, Plan(seconds=self._target.seconds / 3))
                rate = OVERLOAD * self.record.capacity_rps * self._speed(settings.engine)
                given = overload(partial(self._offer, server.url), rate, self.record.capacity_rps)
                memory, disturbed = tree_pss_mib(server.pid), foreign.cores()
            learned = ProfileFile(Path(folder), resolved(self._target.path)).read()
        offered, useful, goodput, _ = given
        return Trial(settings, offered, useful, goodput, alone["p50_ms"], memory, disturbed, learned)

    def _speed(self, engine: str) -> float:
        """How many times as fast an engine is as the model's own, to begin with about the right load."""
        costs, own = self.costs, self._facts.engine
        return costs[own] / costs[engine] if engine in costs and own in costs else 1.0

    def _offer(self, url: str, rate: float) -> Offered:
        # First the scheduler learns what batches cost, and some engines make each size ready when they first see it.
        figures = self._load(url, Plan(rate=rate, seconds=self._target.seconds, warm_up_s=self._target.seconds))
        return Offered(rate, self._useful(figures), figures["goodput"], figures["held_back"] > 0)

    def _useful(self, figures: dict[str, float]) -> float:
        """Requests/s answered in time; partial answers count by the share of their members."""
        share = figures["mean_members"] / self._facts.info.members if figures["mean_members"] else 1.0
        return figures["goodput_rps"] * share

    def _serving(self, settings: Settings, folder: str) -> AbstractContextManager[Served]:
        deadline = self._target.deadline_s
        more = ["--deadline", str(deadline)] if deadline else []
        name = self._target.model
        flags = settings.flags
        if settings.engine and name:  # of several models only this one is to change
            flags[-1] = f"{name}={settings.engine}"
        return serving(self._target.path, [*flags, "--profiles", folder, *more])

    def _load(self, url: str, plan: Plan) -> dict[str, float]:
        info, address = self._facts.info, resolve(url)
        # Longer than any deadline: what is late is to be seen as late, and not as lost.
        whole = replace(plan, deadline_s=self.deadline_s, timeout_s=self.deadline_s + 5.0)
        # A key of its own for each, or a model that keeps answers would compute the first one only.
        keys = [] if info.key else [FRESH_KEY]
        requests = Requests(Form(address.host_header, info.paths[0], headers=keys), [_payload(self._facts)])
        (level,) = bench.run([whole], address, requests)
        if level.is_interrupted:
            raise KeyboardInterrupt
        return level.figures

    def save(self) -> None:
        """Keep the record, in one step."""
        self._state.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._state.with_suffix(f".{os.getpid()}.new")
        fresh.write_bytes(msgspec.json.encode(self.record))
        fresh.replace(self._state)


def _payload(facts: Facts) -> Payload:
    if facts.info.body is Body.RAW:
        return Payload(facts.body, "application/octet-stream")
    return example_payload(msgspec.json.decode(facts.body), facts.info.key)


def _about(target: Target) -> str:
    """Names the target as it is now, the machine and the measurement; anything else is measured anew."""
    files = (
        sorted(target.path.rglob("*")) if target.path.is_dir() else [target.path, *target.path.parent.glob("*.onnx")]
    )
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            state = file.stat()
            digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    digest.update(repr((VERSION, target, engines.means())).encode())
    return digest.hexdigest()


_AVERAGED = ("offered_rps", "useful_rps", "goodput", "alone_p50_ms", "memory_mib")


def average(trials: Sequence[Trial], most_turns: int | None = None) -> list[Trial]:
    """One trial per settings, in their order: means of its turns, or of its first ones, and the last one's profile."""
    by_settings: dict[Settings, list[Trial]] = {}
    for trial in trials:
        by_settings.setdefault(trial.settings, []).append(trial)
    counted = [turns[:most_turns] for turns in by_settings.values()]
    return [
        msgspec.structs.replace(
            turns[-1],
            **{name: mean(getattr(trial, name) for trial in turns) for name in _AVERAGED},
            foreign_cores=max(trial.foreign_cores for trial in turns),
            turns=sum(trial.turns for trial in turns),
        )
        for turns in counted
    ]


def hopeful(tried: Sequence[Settings], trials: Sequence[Trial], rounds: int) -> list[Settings]:
    """Those that may still come to the front after so many rounds; who was disturbed always may."""
    if not rounds:
        return list(tried)
    share = HOPE[min(rounds, len(HOPE)) - 1]
    # Not the turns of a round that was cut short: who had one there would be held against who had none.
    left = {trial.settings: trial for trial in average(trials, rounds) if trial.turns == rounds}
    best = max((trial.useful_rps for trial in left.values()), default=0.0)
    return [
        settings
        for settings in tried
        if settings in left
        and (left[settings].useful_rps >= share * best or left[settings].foreign_cores > QUIET_CORES)
    ]


def choose(trials: Sequence[Trial]) -> Trial:
    """Most useful work in time, of those that came to the last round; the first, which the server itself would choose,
    if nothing is better by more than noise."""
    rounds = max(trial.turns for trial in trials)
    best = max((trial for trial in trials if trial.turns == rounds), key=lambda trial: trial.useful_rps)
    default = trials[0]
    is_equal = default.turns == rounds and default.useful_rps >= best.useful_rps * (1 - NOISE)
    return default if is_equal else best
