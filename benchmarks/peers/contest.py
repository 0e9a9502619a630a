"""One run of the peers: environments, then every contestant in turn, then Timebound against the fastest."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.peers import scenes
from benchmarks.peers.environments import ENVIRONMENTS, NotInstalled, installed_version, provide
from benchmarks.peers.record import Duel, Row, Run, write_row, write_run
from benchmarks.peers.report import BUSY, OURS
from benchmarks.peers.roster import CONTESTANTS, Contestant
from benchmarks.peers.running import Running
from benchmarks.tools.bare import BareLoop, ensemble_step
from benchmarks.tools.commandline import say
from benchmarks.tools.processes import StartError
from benchmarks.tools.workload import Sample, load_samples

# How many of the fastest peers Timebound meets in turn.
DUELLISTS = 2
# Who has rested finds its pace again before its turn counts.
WAKING_S = 1.0


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long in seconds."""

    contestants: tuple[str, ...]
    warm_s: float
    # By concurrency.
    closed_s: dict[int, float]
    levels: tuple[float, ...]
    level_s: float
    # Of the level at capacity: what comes too much by chance piles up slowly there.
    edge_s: float
    kill_s: float
    bare_rounds: int
    bare_s: float
    duel_rounds: int
    duel_s: float


FULL = Plan(
    contestants=tuple(CONTESTANTS),
    warm_s=1.0,
    closed_s={1: 1.5, 10: 2.0, 50: 3.0},
    levels=(0.8, 1.0, 1.5, 2.0),
    level_s=6.0,
    edge_s=20.0,
    kill_s=6.0,
    bare_rounds=5,
    bare_s=1.5,
    duel_rounds=5,
    duel_s=8.0,
)
QUICK = Plan(
    contestants=(OURS, "mosec"),
    warm_s=0.6,
    closed_s={50: 1.5},
    levels=(1.0, 1.5),
    level_s=3.0,
    edge_s=3.0,
    kill_s=0.0,
    bare_rounds=2,
    bare_s=0.8,
    duel_rounds=2,
    duel_s=1.5,
)


@dataclass
class Contest:
    """One run: contestants in turn, what was measured kept after every scene."""

    options: argparse.Namespace
    plan: Plan
    run: Run
    # By environment; Timebound's is the one that this runs in.
    places: dict[str, Path] = field(default_factory=lambda: {OURS: Path(sys.executable).parents[1]})
    failures: dict[str, str] = field(default_factory=dict)

    def measure(self) -> None:
        """All contestants, then the duel."""
        samples = load_samples(self.options.models)
        self._provide()
        with BareLoop(partial(ensemble_step, self.options.models)) as loop:
            paces = [loop.ceiling(self.plan.bare_s).rate for _ in range(self.plan.bare_rounds)]
            capacity = median(paces)
            say(f"bare loop: {capacity:.1f}/s ({min(paces):.1f} to {max(paces):.1f})")
            for number, name in enumerate(self.options.only, 1):
                row = self._new_row(CONTESTANTS[name], capacity)
                self.run.rows.append(row)
                if not row.failure:
                    say(f"{name} ({number} of {len(self.options.only)})")
                    row.bare_rps = loop.ceiling(self.plan.bare_s).rate
                    self._scenes(row, self._running(name, samples))
                self._keep(row)
            with suppress(StartError, TimeoutError):
                self._duel(loop, samples)

    def _provide(self) -> None:
        """Make the environments that are needed; what cannot be made is told and left out."""
        for name in dict.fromkeys(CONTESTANTS[name].environment for name in self.options.only):
            if name is None:
                continue
            say(f"environment {self.options.envs / name}")
            try:
                self.places[name] = provide(ENVIRONMENTS[name], self.options.envs)
            except NotInstalled as reason:
                self.failures[name] = f"not installed: {reason}"
                say(f"{name}: {self.failures[name]}")

    def _running(self, name: str, samples: Sequence[Sample]) -> Running:
        place = self.places[CONTESTANTS[name].environment or OURS]
        return Running(CONTESTANTS[name], place, self.options.models, samples, self.options.serve_args)

    def _new_row(self, contestant: Contestant, capacity: float) -> Row:
        if contestant.environment is None:
            known = version(contestant.package)
        else:
            place = self.places.get(contestant.environment)
            known = installed_version(place, contestant.package) if place else ""
        return Row(
            name=contestant.name,
            is_ours=contestant.is_ours,
            is_tuned=contestant.is_tuned,
            package=contestant.package,
            version=known,
            settings=contestant.settings,
            capacity=capacity,
            failure=self.failures.get(contestant.environment or OURS, ""),
        )

    def _keep(self, row: Row) -> None:
        write_row(self.options.raw, row)
        write_run(self.options.raw, self.run)

    def _scenes(self, row: Row, running: Running) -> None:
        began = time.monotonic()
        try:
            with running:
                self._all_scenes(row, running)
        except (StartError, TimeoutError) as failure:
            row.failure = str(failure) or "stopped answering"
            say(f"{row.name}: {row.failure}")
        finally:
            row.seconds = time.monotonic() - began
            self._keep(row)

    def _all_scenes(self, row: Row, running: Running) -> None:
        plan, seed = self.plan, self.options.seed
        row.first_answer_s = running.server.first_answer_s
        say(f"  first answer after {row.first_answer_s:.2f} s")
        scenes.closed_loop(running, BUSY, plan.warm_s)  # caches fill, and who learns may learn
        for concurrency, seconds in plan.closed_s.items():
            row.closed.append(scenes.closed_loop(running, concurrency, seconds))
            say(f"  closed loop, c={concurrency}: {row.closed[-1].rps:.1f}/s, {row.closed[-1].errors} errors")
        row.pss_mib, row.processes = running.server.pss_mib(), running.server.process_count()
        row.poison = scenes.poison(running)
        say(f"  poison: {row.poison.good_answered} of {row.poison.good} good ones answered, {row.pss_mib:.0f} MiB")
        for load in plan.levels:
            self._keep(row)
            seconds = plan.edge_s if load == 1.0 else plan.level_s
            seen = scenes.overload(running, load, row.capacity, seconds, seed)
            row.overload.append(seen)
            say(f"  {load:.1f}x: goodput {seen.level.goodput:.3f}, worked {seen.worked_per_answer:.2f} per answer")
        if plan.kill_s:
            row.kill = scenes.kill(running, row.capacity, plan.kill_s, seed)
            say(f"  kill: goodput {row.kill.goodput:.3f}, {row.kill.failed_attempts} attempts failed")

    def _duel(self, loop: BareLoop, samples: Sequence[Sample]) -> None:
        """Timebound and the fastest peers in turn, so that the machine's moods hit all alike."""
        paces = {row.name: row.closed_rps(BUSY) / row.bare_rps for row in self.run.rows if row.bare_rps}
        peers = [name for name in paces if not CONTESTANTS[name].is_ours and paces[name]]
        # Who refuses most of them is not fast.
        peers = [name for name in peers if paces[name] > 0.5 * max(map(paces.__getitem__, peers))]
        fastest = sorted(peers, key=lambda name: paces[name], reverse=True)[:DUELLISTS]
        if OURS not in paces or not fastest:
            return
        say(f"{' and '.join([OURS, *fastest])} in turn, c={BUSY}")
        rates: dict[str, list[float]] = {name: [] for name in (OURS, *fastest)}
        bare: list[float] = []
        with ExitStack() as stack:
            all_running = {name: stack.enter_context(self._running(name, samples)) for name in rates}
            for running in all_running.values():
                scenes.closed_loop(running, BUSY, WAKING_S)  # learning what batches cost
            for number in range(self.plan.duel_rounds):
                bare.append(loop.ceiling(self.plan.bare_s).rate)
                for name in all_running if number % 2 else reversed(all_running):
                    with ExitStack() as others:
                        for other in all_running.values():
                            if other is not all_running[name]:
                                others.enter_context(other.at_rest())
                        scenes.closed_loop(all_running[name], BUSY, WAKING_S)
                        rates[name].append(scenes.closed_loop(all_running[name], BUSY, self.plan.duel_s).rps)
        self.run.duels = [Duel(name, rates[OURS], rates[name], bare) for name in fastest]
        write_run(self.options.raw, self.run)
