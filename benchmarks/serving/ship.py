"""Does it ship? Whole stacks under load, as plain processes and in containers, on slow lines and on part of a machine.

Parts: `processes` (nginx, two servers and Redis by `timebound up`), `link` (one of the two servers at the end of a line
with a round trip of 50 ms; then the same with losses), `quota` (one core of several by control group, beside one core
by affinity), `containers` (the folder that `timebound pack` writes: built, weighed, run by podman-compose), `autoscale`
(what the usual autoscalers would do with the signals of real servers), `guest` (callers of `tb.asgi` who give up).

The contest: a model that takes 10 ms an item and has 250 ms, clients that leave then and send again with the same key,
twice. `processes` and `containers` play the same scenes: 1.2 times the capacity; one server killed, one stopped, both
restarted at once, one more and one fewer, all at 0.4 times the capacity.

`link` and `quota` need root; `containers` needs root and what it names if that is missing, and is left out of a short
run unless it is asked for by --only. A part that cannot run here says why and is left out.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.apps.shipped.app import WORK_S
from benchmarks.tools.apart import Apart
from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.callers import give_up_on
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.composed import Composed
from benchmarks.tools.engine import Engine
from benchmarks.tools.images import BUILT, beside_the_contest, pack, time_builds
from benchmarks.tools.load import answers_right, free_port
from benchmarks.tools.namespaces import may_make_networks
from benchmarks.tools.openloop import DEADLINE_S, Record, drive
from benchmarks.tools.processes import Absent, Server
from benchmarks.tools.quota import CoreQuota
from benchmarks.tools.rehearsal import OVERLOAD, Lengths, Rehearsal, attempts_of, capacity, late, unanswered
from benchmarks.tools.scaling import (
    Recorded,
    all_flaps,
    as_figure,
    hpa_more_s,
    ray_more_s,
    rule_says_more_s,
    tracking_more_s,
)
from benchmarks.tools.table import table
from benchmarks.tools.upstack import APP, UpStack, read_metric
from timebound.lab.load.attempts import End, Manners
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.load.schedule import Phase

PARTS = ("processes", "link", "quota", "containers", "autoscale", "guest")
ROUND_TRIP_S = 0.05
# Of the packets in each direction.
LOSS = 0.02
LOSSY_LOAD = 0.3
LOSSY_DEADLINE_S = 1.0
# More than one core can do with 10 ms an item.
QUOTA_RATE = 120.0
USUAL_LOAD, SCALE_UP_LOAD, STEADY_LOAD = 0.5, 1.5, 0.75
CALLERS = 1000
IMAGE = "localhost/once"


def _scenes(prefix: str) -> tuple[Bar, ...]:
    """What a stack is held to, whatever it is made of."""
    counts = ("unanswered", "computed_twice", "wrong", "kill_unanswered", "stop_late", "stop_failed", "scale_failed")
    return (
        *zero(*(prefix + name for name in counts)),
        Bar(f"{prefix}late_share", at_most=0.001),
        Bar(f"{prefix}kill_again_of_flight", at_most=1),
        Bar(f"{prefix}restart_recovered_s", at_most=5.0),
    )


BARS = (
    *_scenes(""),
    *zero("link_late", "link_unanswered"),
    # A packet in fifty is lost: some hundred requests of a short run tell nothing about one in a thousand.
    Bar("link_in_time", at_least=0.999, is_quick=False),
    Bar("quota_slots", at_least=1, at_most=1),
    # The ratio of two runs that follow each other on a machine that is not always equally fast.
    Bar("quota_full_ratio", at_least=1.0, noise=0.05, is_quick=False),
    *_scenes("container_"),
    Bar("image_mb", at_most=500),
    Bar("rebuild_model_s", at_most=15),
    Bar("rebuild_code_s", at_most=15),
    Bar("scale_up_s", at_most=15),
    Bar("scale_up_ray_s", at_most=15),
    # It asks every 15 s: as long as that later, at the worst.
    Bar("scale_up_hpa_s", at_most=30),
    # A short run begins while the signals are still of what was before.
    Bar("scale_flaps", at_most=0, is_quick=False),
    *zero("guest_exceptions", "guest_workers_lost", "guest_failed"),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/ship.py --quick
  python benchmarks/serving/ship.py --json out.json
  python benchmarks/serving/ship.py --only containers
"""


@dataclass(frozen=True)
class Plan:
    """How long things take, in seconds."""

    scenes: Lengths
    link_s: float
    quota_s: float
    before_s: float
    """The signals are of the last ten seconds: before they are looked at, so long a load of which they are then."""
    scale_up_s: float
    steady_s: float


FULL = Plan(Lengths(3.0, 20.0, 6.0, 10.0), link_s=30.0, quota_s=10.0, before_s=12.0, scale_up_s=20.0, steady_s=60.0)
QUICK = Plan(Lengths(0.8, 2.5, 1.2, 6.0), link_s=2.0, quota_s=1.5, before_s=1.5, scale_up_s=4.0, steady_s=2.0)


class Run:
    """One run of the benchmark; `figures` fills up as parts end."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._is_quick: bool = options.quick
        self._parts: list[str] = options.only or [
            part for part in PARTS if not (options.quick and part == "containers")
        ]
        self._serve_args: list[str] = options.serve_args
        self._seed: int = options.seed
        self._store: Path = options.store
        self._plan = plan
        self.figures: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Every part that was asked for."""
        others = ForeignLoad()
        for part in self._parts:
            try:
                getattr(self, f"_{part}")()
            except Absent as reason:
                say(f"{part}: left out: {reason}")
        if "containers" not in self._parts:  # those are no children of ours, and would count as others
            self.figures["foreign_cores"] = round(others.cores(), 3)
        return self.figures

    # ------------------------------------------------------------------ parts

    def _processes(self) -> None:
        say("processes: nginx, two servers and Redis by `timebound up`")
        with UpStack(self._serve_args) as stack:
            self.figures |= Rehearsal(stack, self._plan.scenes, seed=self._seed).all()

    def _link(self) -> None:
        record = self._over_the_line(OVERLOAD, DEADLINE_S, loss=0.0)
        self.figures["link_asked"] = len(record.questions)
        self.figures["link_late"] = late(attempts_of(record))
        self.figures["link_unanswered"] = unanswered(record)
        record = self._over_the_line(LOSSY_LOAD, LOSSY_DEADLINE_S, loss=LOSS)
        in_time = sum(question.attempts[0].end is End.ANSWERED for question in record.questions)
        self.figures["link_lossy_asked"] = len(record.questions)
        self.figures["link_in_time"] = in_time / max(1, len(record.questions))
        if not self._is_quick:
            record = self._over_the_line(OVERLOAD, DEADLINE_S, loss=0.0, is_believed=False)
            self.figures["link_late_unstamped"] = late(attempts_of(record))

    def _over_the_line(self, load: float, deadline_s: float, *, loss: float, is_believed: bool = True) -> Record:
        self._need_root()
        apart = Apart(self._serve_args, round_trip_s=ROUND_TRIP_S, loss=loss, is_believed=is_believed)
        with apart, apart.reach():
            rate = load * capacity(apart.port, self._plan.scenes.closed_s)
            told = f"{load}x, {rate:.0f}/s for {self._plan.link_s:.0f} s, {loss:.0%} lost"
            say(f"link: {told}{'' if is_believed else ', the stamp not believed'}")
            traffic = OnceTraffic(apart.port, f"Timebound-Timeout-Ms: {deadline_s * 1e3:.0f}\r\n")
            return drive(traffic, [Phase(rate, self._plan.link_s)], self._seed, Manners(deadline_s, resends=2))

    def _quota(self) -> None:
        self._need_root()
        with CoreQuota(1) as group:
            full, self.figures["quota_slots"] = self._full_answers("one core of several", group.inside())
        one, _ = self._full_answers("one core alone", ["taskset", "-c", "0"])
        self.figures["quota_full"], self.figures["quota_one_core_full"] = full, one
        self.figures["quota_full_ratio"] = round(full / max(1, one), 4)

    def _full_answers(self, what: str, before: Sequence[str]) -> tuple[int, float]:
        """How many full answers there were, and the slots that the server took."""
        traffic = OnceTraffic(free_port())
        serve = [sys.executable, "-m", "timebound", "serve", str(APP), "--profiles", "none", *self._serve_args]
        command = [*before, *serve, "--port", str(traffic.port)]
        say(f"quota: {what}, {QUOTA_RATE:.0f}/s for {self._plan.quota_s:.0f} s")
        with Server(what, command, {}, lambda: answers_right(traffic)):
            drive(traffic, [Phase(QUOTA_RATE, 1.0)], self._seed)  # it learns what batches cost
            record = drive(traffic, [Phase(QUOTA_RATE, self._plan.quota_s)], self._seed)
            slots = read_metric(traffic.port, "slots_up")
        return sum(attempt.quality == "full" for attempt in attempts_of(record)), slots

    def _containers(self) -> None:
        engine = Engine(self._store)
        engine.prepare()
        with tempfile.TemporaryDirectory(prefix="ship-", dir=self._store) as folder:
            try:
                figures, wheel = time_builds(engine, Path(folder))
                self.figures |= figures
                say("containers: nginx, two servers and Redis by podman-compose")
                pack(APP, "once", Path(folder) / "once", wheel)
                engine.build(Path(folder) / "once", f"{IMAGE}:latest")
                with Composed(engine, Path(folder) / "once", IMAGE) as stack:
                    self.figures["container_first_answer_s"] = round(stack.first_answer_s, 3)
                    self.figures |= Rehearsal(stack, self._plan.scenes, seed=self._seed, prefix="container_").all()
            finally:
                engine.remove(f"{IMAGE}:latest", *BUILT)

    def _autoscale(self) -> None:
        plan = self._plan
        with UpStack(self._serve_args, replicas=1) as stack:
            busier = self._signals(stack, SCALE_UP_LOAD, plan.scale_up_s, before=USUAL_LOAD)
            stack.grow()
            steady = self._signals(stack, STEADY_LOAD, plan.steady_s, before=STEADY_LOAD)
        self.figures["scale_up_s"] = as_figure(rule_says_more_s(busier))
        self.figures["scale_up_hpa_s"] = as_figure(hpa_more_s(busier))
        self.figures["scale_up_ray_s"] = as_figure(ray_more_s(busier))
        self.figures["scale_up_tracking_s"] = as_figure(tracking_more_s(busier))
        self.figures["scale_flaps"] = all_flaps(steady)
        self.figures["scale_steady_load_ratio"] = round(fmean(steady.ratios), 4)

    def _signals(self, stack: UpStack, load: float, seconds: float, *, before: float) -> Recorded:
        """The load that the servers themselves tell, second by second, from when it is `load`; until then `before`."""
        full = stack.replicas / WORK_S  # one core each, and an item takes so long
        traffic = OnceTraffic(stack.port)
        drive(traffic, [Phase(before * full, self._plan.before_s)], self._seed)
        say(f"autoscale: {load}x of {stack.replicas}, {load * full:.0f}/s for {seconds:.0f} s")
        looker = _Looker(lambda: fmean(stack.signals("load_ratio")), seconds)
        looker.start()
        drive(traffic, [Phase(load * full, seconds)], self._seed)
        looker.join()
        return Recorded(stack.replicas, looker.seen)

    def _guest(self) -> None:
        say(f"guest: {CALLERS} callers of `tb.asgi` give up")
        logging.disable(logging.CRITICAL)
        path, item = "/predictions/once", lambda number: {"uuid": f"g-{number // 3}", "n": number // 3}
        left = asyncio.run(give_up_on(APP, path, item, CALLERS))
        logging.disable(logging.NOTSET)
        self.figures["guest_exceptions"] = len(left.exceptions)
        self.figures["guest_workers_lost"] = left.workers_lost
        self.figures["guest_failed"] = len(left.statuses - {200}) + left.waiting

    def _need_root(self) -> None:
        if not may_make_networks():
            raise Absent("it makes networks and control groups, which needs root and /dev/net/tun")


class _Looker(threading.Thread):
    """Asks for a number once a second, so many times."""

    def __init__(self, ask: Callable[[], float], seconds: float) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._times = int(seconds) + 1
        self.seen: list[float] = []

    def run(self) -> None:
        began = time.monotonic()
        for number in range(self._times):
            time.sleep(max(0.0, began + number - time.monotonic()))
            self.seen.append(self._ask())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path.home() / ".cache/timebound-ship",
        metavar="FOLDER",
        help="where images are kept; default: %(default)s",
    )
    add_choice(parser, "--only", PARTS, "parts")
    parser.set_defaults(only=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(options, QUICK if options.quick else FULL)
    try:
        figures = finish("ship", run.all)
    except Failed as failure:
        return failure.code
    print(table(figures), "\n")
    print(beside_the_contest(figures), end="")
    return conclude("ship", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
