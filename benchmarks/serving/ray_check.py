"""What Ray Serve costs Timebound, and what of the promises is left there: plain and on Ray, in turn, on one machine.

Parts: `cost` (10 ms of work per item, one replica, beside `timebound serve`; echo, beside the echo of Ray alone),
`overload` (1.2x of two replicas that share a Redis; clients leave at 250 ms and send again, twice), `reload` (another
user_config at half load), `surge` (new code at half load: new replicas before the old ones go), `kill` (kill -9 of one
of them at half load), `scale` (Ray's autoscaler by our policy: 1.5 times what one replica can do, until there are two,
for whom that is 0.75) and `nodes` (a head and two nodes in networks of their own, a replica on each: the overload
again, and every process of one node killed at 0.4 times the load). Ray's ingress, the replicas, Redis and the clients
share the cores. `nodes` needs root and iproute2, and is left out where it cannot run.

The exit code is 1 if Ray takes more than a twentieth of the throughput or more than 2 ms, if a request is not answered,
computed twice or, but for one in a thousand, late; if a reload makes one late; if the second replica is not started
within 15 s, or one is taken away under the same load; or if a dead replica or node makes more
late, or has more computed twice, than can have been in work there.
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
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import ROOT, timebound
from benchmarks.tools.load import HOST, EchoTraffic, Traffic, answers_right, free_port, measure
from benchmarks.tools.namespaces import Namespace, join, may_make_networks
from benchmarks.tools.openloop import DEADLINE_S, Record, drive
from benchmarks.tools.processes import Absent, Server, StartError
from benchmarks.tools.ray_cluster import Cluster, is_installed, timebound_app
from benchmarks.tools.ray_scaling import watch_scaling
from benchmarks.tools.seen import SEEN_ENV, count_seen, repeats
from benchmarks.tools.services import Redis, RedisByFile
from timebound.lab.load.attempts import End
from timebound.lab.load.schedule import Phase

PARTS = ("cost", "overload", "reload", "surge", "kill", "scale", "nodes")  # `kill` leaves one replica
OVERLOAD = 1.2
HALF = 0.5
# What one node can do when the other is gone.
NODE_LOAD = 0.4
HEAD, NODES = "10.77.0.1", ("10.77.0.2", "10.77.0.3")
# Ray needs so long to start two replicas and have two others leave.
SURGE_S = 24.0
LAST_WORK_S = 1.0
UNHURRIED = "Timebound-Timeout-Ms: 30000\r\n"
BARS = (
    # Short rounds differ by more than what is measured.
    Bar("ray_ratio", at_least=0.95, is_quick=False),
    Bar("ray_c1_added_ms", at_most=2.0, is_quick=False),
    Bar("ray_echo_ratio", at_least=0.9, is_quick=False),
    *zero("ray_unanswered", "ray_twice"),
    # A short run has fewer than a thousand attempts.
    Bar("ray_late_share", at_most=0.001, is_quick=False),
    *zero("ray_kill_unanswered", "ray_reload_unanswered", "ray_surge_unanswered", "ray_surge_twice"),
    Bar("ray_reload_late", at_most=0, is_quick=False),
    # Of what can have been in work at the dead one: its share of what comes within a deadline.
    Bar("ray_kill_late_of_flight", at_most=1),
    Bar("ray_kill_twice_of_flight", at_most=1),
    Bar("ray_scale_up_s", at_most=15, is_quick=False),
    *zero("ray_scale_downs"),
    *zero("ray_nodes_unanswered", "ray_nodes_twice"),
    Bar("ray_nodes_late_share", at_most=0.001, is_quick=False),
    *zero("ray_node_lost_unanswered"),
    Bar("ray_node_lost_late_of_flight", at_most=1),
    Bar("ray_node_lost_twice_of_flight", at_most=1),
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
    before_scale_s: float
    """The load is told over ten seconds: so long a usual one, before it is too much."""
    scale_s: float


FULL = Plan(rounds=3, closed_s=4.0, overload_s=30.0, fault_s=20.0, before_scale_s=12.0, scale_s=80.0)
QUICK = Plan(rounds=1, closed_s=0.6, overload_s=3.0, fault_s=4.5, before_scale_s=1.5, scale_s=20.0)


class Run:
    """One run of the benchmark; `figures` fills up as parts end."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._parts: list[str] = options.only
        self._serve_args: list[str] = options.serve_args
        self._seed: int = options.seed
        self._plan = plan
        self._release = 0
        self._grace = 10
        self.figures: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Every part that was asked for."""
        here = [part for part in self._parts if part not in ("scale", "nodes")]
        if here:
            self._on_one_node(here)
        if "scale" in self._parts:
            say(f"scale: one replica with 1.5 times its work, for {self._plan.scale_s:.0f} s")
            self.figures |= watch_scaling(self._plan.before_scale_s, self._plan.scale_s, self._seed)
        if "nodes" in self._parts:
            try:
                self._nodes()
            except Absent as reason:
                say(f"nodes: left out: {reason}")
        return self.figures

    def _on_one_node(self, parts: Sequence[str]) -> None:
        with ExitStack() as running, Redis() as redis:
            self._prepare(running, redis.url)
            say("starting Ray with its ingress and the replicas")
            # More cores than there are, so that new replicas find room beside the old ones.
            self._cluster = running.enter_context(Cluster(4, {SEEN_ENV: str(self._seen)}))
            self._deploy()
            for part in parts:
                getattr(self, f"_{part}")()

    def _prepare(self, running: ExitStack, store: str) -> None:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="ray-check-")))
        self._store = store
        self._seen = folder / "seen"
        self._seen.mkdir()

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
                rows.add("ray_echo_c1_ms", measure(echo, 1, plan.closed_s).p50_ms)
                for name, traffic in (("ray_echo", echo), ("rays_echo", rays_echo)):
                    before_s = self._cluster.cpu_s()
                    rps = _rps(traffic, 50, plan.closed_s)
                    used_s = self._cluster.cpu_s() - before_s
                    rows.add(f"{name}_rps", rps)
                    rows.add(f"{name}_core_ms", 1e3 * used_s / max(1.0, rps * plan.closed_s))
        self.figures |= rows.medians() | {"ray_node_mb": round(self._cluster.memory_mb())}

    def _overload(self) -> None:
        self._overloaded("ray_", self._capacity())

    def _overloaded(self, prefix: str, capacity: float) -> None:
        rate = OVERLOAD * capacity
        say(f"overload: {OVERLOAD}x, {rate:.0f}/s for {self._plan.overload_s:.0f} s")
        before = self._repeats()
        record = drive(OnceTraffic(self._cluster.port), [Phase(rate, self._plan.overload_s)], self._seed)
        attempts = [attempt for question in record.questions for attempt in question.attempts]
        self.figures[f"{prefix}overload_attempts"] = len(attempts)
        self.figures[f"{prefix}unanswered"] = _unanswered(record)
        self.figures[f"{prefix}twice"] = self._repeats() - before
        self.figures[f"{prefix}late_share"] = _late(record) / len(attempts)
        self.figures[f"{prefix}full_share"] = sum(attempt.quality == "full" for attempt in attempts) / len(attempts)

    def _reload(self) -> None:
        say("reload: another user_config at half load")
        before = self._workers()
        record = self._disturbed(HALF * self._capacity(), lambda: self._deploy(is_up=lambda: True))
        if self._workers() & before:
            raise StartError("Ray did not bring the new user_config to both replicas")
        self.figures["ray_reload_unanswered"] = _unanswered(record)
        self.figures["ray_reload_late"] = _late(record)

    def _surge(self) -> None:
        say("surge: new code at half load")
        before, twice = self._replicas(), self._repeats()
        self._grace += 1  # another argument is as good as other code: Ray replaces the replicas

        def deploy() -> None:
            self._deploy(is_up=lambda: len(now := self._replicas()) == 2 and not now & before)

        record = self._disturbed(HALF * self._capacity(), deploy, SURGE_S)
        self.figures["ray_surge_unanswered"] = _unanswered(record)
        self.figures["ray_surge_late"] = _late(record)
        self.figures["ray_surge_twice"] = self._repeats() - twice

    def _kill(self) -> None:
        victim = min(self._replicas())
        say("kill: one of two replicas at half load")
        self._lost("ray_kill", HALF, lambda: os.kill(victim, signal.SIGKILL))

    def _lost(self, prefix: str, load: float, trouble: Callable[[], object]) -> None:
        """One of two dies under load."""
        rate, twice = load * self._capacity(), self._repeats()
        record = self._disturbed(rate, trouble)
        in_flight = max(1.0, rate * DEADLINE_S / 2)
        self.figures[f"{prefix}_unanswered"] = _unanswered(record)
        self.figures[f"{prefix}_late"] = _late(record)
        self.figures[f"{prefix}_cut"] = _count(record, End.LOST)
        self.figures[f"{prefix}_late_of_flight"] = _late(record) / in_flight
        self.figures[f"{prefix}_twice_of_flight"] = (self._repeats() - twice) / in_flight

    def _disturbed(self, rate: float, trouble: Callable[[], object], seconds: float = 0.0) -> Record:
        """So many requests a second, and the trouble when a third of the time is over."""
        seconds = max(seconds, self._plan.fault_s)
        timer = threading.Timer(seconds / 3, trouble)
        timer.start()
        try:
            return drive(OnceTraffic(self._cluster.port), [Phase(rate, seconds)], self._seed)
        finally:
            timer.join()

    def _nodes(self) -> None:
        if not may_make_networks():
            raise Absent("it makes networks, which needs root and /dev/net/tun")
        say("nodes: a head and two nodes in networks of their own, with a replica on each")
        with ExitStack() as running:
            enter = running.enter_context
            head, *nodes = (enter(Namespace(name)) for name in ("head", "node1", "node2"))
            join(head, nodes, (HEAD, *NODES))
            redis = enter(RedisByFile())
            self._prepare(running, redis.url)
            variables = {SEEN_ENV: str(self._seen)}
            self._cluster = enter(Cluster(0, variables, host=HEAD, network=head))
            for number, (node, host) in enumerate(zip(nodes, NODES, strict=True), 1):
                self._cluster.add_node(f"node{number}", node, host, cores=1)
            with head.entered():
                once = self._once(cores=1)
                self._cluster.deploy(once, is_up=lambda: self._seen_from(head))
                self._overloaded("ray_nodes_", self._capacity())
                say("nodes: one of two is lost")
                self._lost("ray_node_lost", NODE_LOAD, nodes[1].kill)

    def _seen_from(self, network: Namespace) -> bool:
        with network.entered():
            return len(self._replicas()) == 2

    def _repeats(self) -> int:
        time.sleep(LAST_WORK_S)  # what runs is finished, and counted
        return repeats(count_seen(self._seen))

    # ------------------------------------------------------------------ servers

    def _deploy(self, is_up: Callable[[], bool] | None = None) -> None:
        """All applications; the two replicas of the first load their code again if they are up."""
        self._release += 1
        apps = ROOT / "benchmarks/serving/apps"
        one = timebound_app(apps / "once_app.py", options={"slots": 1}, cores=0.1)
        echo = timebound_app(apps / "echo_app.py", options={"slots": 1}, cores=0.1)
        rays = {"import_path": "benchmarks.serving.apps.ray_echo_app:app", "args": {}}
        own: dict[str, Any] = {"deployments": [{"name": "Echo", "ray_actor_options": {"num_cpus": 0.1}}]}
        self._cluster.deploy(
            {**self._once(cores=0.5), "name": "once", "route_prefix": "/"},
            {**one, "name": "one", "route_prefix": "/one"},
            {**echo, "name": "echo", "route_prefix": "/echo"},
            {**rays, **own, "name": "ray", "route_prefix": "/ray"},
            is_up=is_up or self._is_up,
        )

    def _once(self, *, cores: float) -> dict[str, Any]:
        """Two replicas that share the Redis; new ones come before old ones go."""
        shared = {"store": self._store, "slots": 1, "grace": self._grace}
        config = {"user_config": {"release": self._release}, "max_surge_percent": 100}
        return timebound_app(ROOT / "benchmarks/serving/apps/once_app.py", 2, options=shared, cores=cores, **config)

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
