"""What Ray Serve costs Timebound, and what of the promises is left there: plain and on Ray, in turn, on one machine.

Parts: `cost` (10 ms of work per item, one replica, beside `timebound serve`; echo, beside the echo of Ray alone),
`overload` (1.2x of two replicas that share a Redis; clients leave at 250 ms and send again, twice), `kill` (kill -9 of
one of them at half load) and `reload` (another user_config at half load). There is one node: Ray's ingress, the
replicas, Redis and the clients share the cores.

The exit code is 1 if Ray takes more than a twentieth of the throughput or more than 2 ms, if a request is not answered,
computed twice or, but for one in a thousand, late; or if a reload makes one late.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT, timebound
from benchmarks.tools.load import HOST, EchoTraffic, Traffic, answers_right, free_port, measure
from benchmarks.tools.openloop import Record, drive
from benchmarks.tools.processes import Server, StartError
from benchmarks.tools.ray_cluster import Cluster, is_installed, timebound_app
from benchmarks.tools.seen import SEEN_ENV, count_seen, repeats
from benchmarks.tools.services import Redis
from timebound.lab.load.attempts import End
from timebound.lab.load.schedule import Phase

PARTS = ("cost", "overload", "reload", "kill")  # the last one leaves one replica
OVERLOAD = 1.2
HALF = 0.5
UNHURRIED = "Timebound-Timeout-Ms: 30000\r\n"
BARS = (
    # Short rounds differ by more than what is measured.
    Bar("ray_ratio", at_least=0.95, is_quick=False),
    Bar("ray_c1_added_ms", at_most=2.0, is_quick=False),
    Bar("ray_echo_ratio", at_least=0.9, is_quick=False),
    *zero("ray_unanswered", "ray_twice"),
    # A short run has fewer than a thousand attempts.
    Bar("ray_late_share", at_most=0.001, is_quick=False),
    *zero("ray_kill_unanswered", "ray_reload_unanswered"),
    Bar("ray_reload_late", at_most=0, is_quick=False),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/ray_check.py --quick
  python benchmarks/serving/ray_check.py --json out.json
  python benchmarks/serving/ray_check.py --only overload,kill
"""


@dataclass(frozen=True)
class Plan:
    """For how long, in seconds, and how often."""

    rounds: int
    closed_s: float
    overload_s: float
    fault_s: float


FULL = Plan(rounds=3, closed_s=4.0, overload_s=30.0, fault_s=20.0)
QUICK = Plan(rounds=1, closed_s=0.6, overload_s=3.0, fault_s=4.5)


class Run:
    """One run of the benchmark; `figures` fills up as parts end."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._parts: list[str] = options.only
        self._serve_args: list[str] = options.serve_args
        self._seed: int = options.seed
        self._plan = plan
        self._release = 0
        self.figures: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Every part that was asked for."""
        with ExitStack() as running:
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="ray-check-")))
            self._seen = folder / "seen"
            self._seen.mkdir()
            self._redis = running.enter_context(Redis())
            say("starting Ray with its ingress and the replicas")
            self._cluster = running.enter_context(Cluster(variables={SEEN_ENV: str(self._seen)}))
            self._deploy()
            for part in self._parts:
                getattr(self, f"_{part}")()
        return self.figures

    # ------------------------------------------------------------------ parts

    def _cost(self) -> None:
        plan, port, rows = self._plan, self._cluster.port, _Rows()
        with self._plain("once") as once:
            plain, on_ray = OnceTraffic(once, UNHURRIED), OnceTraffic(port, UNHURRIED, prefix="/one")
            echo, rays_echo = EchoTraffic(port, prefix="/echo"), EchoTraffic(port, prefix="/ray")
            for each in (plain, on_ray, echo, rays_echo):  # they learn what they can do
                measure(each, 10, 0.5)
            for number in range(plan.rounds):
                say(f"cost: round {number + 1} of {plan.rounds}")
                rows.ratio("ray_ratio", _rps(on_ray, 50, plan.closed_s), _rps(plain, 50, plan.closed_s))
                rows.ratio("ray_echo_ratio", _rps(echo, 50, plan.closed_s), _rps(rays_echo, 50, plan.closed_s))
                alone, added = (measure(each, 1, plan.closed_s).p50_ms for each in (plain, on_ray))
                rows.add("plain_c1_ms", alone)
                rows.add("ray_c1_added_ms", added - alone)
                rows.add("ray_echo_rps", _rps(echo, 50, plan.closed_s))
                rows.add("ray_echo_c1_ms", measure(echo, 1, plan.closed_s).p50_ms)
        self.figures |= rows.medians()

    def _overload(self) -> None:
        rate = OVERLOAD * self._capacity
        say(f"overload: {OVERLOAD}x, {rate:.0f}/s for {self._plan.overload_s:.0f} s")
        before = repeats(count_seen(self._seen))
        record = drive(OnceTraffic(self._cluster.port), [Phase(rate, self._plan.overload_s)], self._seed)
        time.sleep(1.0)  # what runs is finished, and counted
        attempts = [attempt for question in record.questions for attempt in question.attempts]
        self.figures["ray_overload_attempts"] = len(attempts)
        self.figures["ray_unanswered"] = _unanswered(record)
        self.figures["ray_twice"] = repeats(count_seen(self._seen)) - before
        self.figures["ray_late_share"] = _late(record) / len(attempts)
        self.figures["ray_full_share"] = sum(attempt.quality == "full" for attempt in attempts) / len(attempts)

    def _kill(self) -> None:
        victim = min(self._replicas())
        say("kill: one of two replicas at half load")
        record = self._disturbed(lambda: os.kill(victim, signal.SIGKILL))
        self.figures["ray_kill_unanswered"] = _unanswered(record)
        self.figures["ray_kill_late"] = _late(record)
        self.figures["ray_kill_lost"] = _count(record, End.LOST)

    def _reload(self) -> None:
        say("reload: another user_config at half load")
        before = self._workers()
        record = self._disturbed(lambda: self._deploy(is_up=lambda: True))
        if self._workers() & before:
            raise StartError("Ray did not bring the new user_config to both replicas")
        self.figures["ray_reload_unanswered"] = _unanswered(record)
        self.figures["ray_reload_late"] = _late(record)

    def _disturbed(self, trouble: Callable[[], object]) -> Record:
        """Half load, and the trouble when a third of it is over."""
        rate, seconds = HALF * self._capacity, self._plan.fault_s
        timer = threading.Timer(seconds / 3, trouble)
        timer.start()
        try:
            return drive(OnceTraffic(self._cluster.port), [Phase(rate, seconds)], self._seed)
        finally:
            timer.join()

    # ------------------------------------------------------------------ servers

    def _deploy(self, is_up: Callable[[], bool] | None = None) -> None:
        """All applications; the two replicas of the first load their code again if they are up."""
        self._release += 1
        apps = ROOT / "benchmarks/serving/apps"
        shared = {"store": self._redis.url, "slots": 1}
        once = timebound_app(apps / "once_app.py", 2, options=shared, user_config={"release": self._release}, cores=0.5)
        one = timebound_app(apps / "once_app.py", options={"slots": 1}, cores=0.1)
        echo = timebound_app(apps / "echo_app.py", options={"slots": 1}, cores=0.1)
        rays = {"import_path": "benchmarks.serving.apps.ray_echo_app:app", "args": {}}
        own: dict[str, Any] = {"deployments": [{"name": "Echo", "ray_actor_options": {"num_cpus": 0.1}}]}
        self._cluster.deploy(
            {**once, "name": "once", "route_prefix": "/"},
            {**one, "name": "one", "route_prefix": "/one"},
            {**echo, "name": "echo", "route_prefix": "/echo"},
            {**rays, **own, "name": "ray", "route_prefix": "/ray"},
            is_up=is_up or self._is_up,
        )

    def _is_up(self) -> bool:
        port = self._cluster.port
        others = (OnceTraffic(port, prefix="/one"), EchoTraffic(port, prefix="/echo"), EchoTraffic(port, prefix="/ray"))
        return len(self._replicas()) == 2 and all(answers_right(each) for each in others)

    def _replicas(self) -> set[int]:
        """The processes of the replicas that answer."""
        return {int(status["pid"]) for status in self._statuses()}

    def _workers(self) -> set[int]:
        """The processes of their workers."""
        return {int(worker["pid"]) for status in self._statuses() for worker in status["workers"]}

    def _statuses(self) -> list[dict[str, Any]]:
        try:
            with httpx.Client(base_url=f"http://{HOST}:{self._cluster.port}", trust_env=False) as client:
                found = [client.get("/v1/models").json() for _ in range(6)]
                return [status for status in found if "pid" in status]
        except (httpx.HTTPError, ValueError):
            return []

    @contextmanager
    def _plain(self, app: str) -> Iterator[int]:
        port = free_port()
        flags = ["--profiles", "none", "--workers", "1", "--slots", "1", "--port", str(port), *self._serve_args]
        with Server(app, timebound(app, flags), {}, lambda: answers_right(OnceTraffic(port))):
            yield port

    @cached_property
    def _capacity(self) -> float:
        """What the two replicas compute together, in full and without hurry."""
        traffic = OnceTraffic(self._cluster.port, UNHURRIED)
        measure(traffic, 32, 1.0)
        return _rps(traffic, 32, max(1.0, self._plan.closed_s))


class _Rows:
    """Figures of several rounds by name."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}

    def add(self, name: str, figure: float) -> None:
        self._found.setdefault(name, []).append(figure)

    def ratio(self, name: str, ours: float, theirs: float) -> None:
        self.add(name, ours / theirs if theirs else 0.0)

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(found) for name, found in self._found.items()}


def _rps(traffic: Traffic, concurrency: int, seconds: float) -> float:
    return measure(traffic, concurrency, seconds).rps


def _unanswered(record: Record) -> int:
    return sum(question.last.end is not End.ANSWERED for question in record.questions)


def _late(record: Record) -> int:
    return _count(record, End.TIMED_OUT)


def _count(record: Record, end: End) -> int:
    return sum(attempt.end is end for question in record.questions for attempt in question.attempts)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    add_choice(parser, "--only", PARTS, "parts")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if not is_installed():
        print("ray_check: Ray is not installed; write: pip install 'timebound[ray]'", file=sys.stderr)
        return 1
    run = Run(options, QUICK if options.quick else FULL)
    try:
        figures = finish("ray_check", run.all)
    except Failed as failure:
        return failure.code
    width = max(map(len, figures))
    print("\n".join(f"{name:{width}}  {value:,.4f}".rstrip("0").rstrip(".") for name, value in figures.items()), "\n")
    return conclude("ray_check", options, figures, BARS)


if __name__ == "__main__":
    sys.exit(main())
