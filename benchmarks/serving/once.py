"""Is every request computed once? Two servers that share a real Redis, real processes, counted in the model.

Parts: `sharing` (1,000 keys, each sent three times at once to both servers), `contest` (clients that leave at their
limit and send again, twice, at 1.2 times the capacity, through nginx), `death` (one server is killed while it owns 100
keys), `faults` (Redis killed, paused and restarted under load), `cost` (what a key costs, and what a replay saves).
The model spins 10 ms per item, in `death` 100 ms per batch; no server knows what another has learned. Late and failed
are counted by a client that waits no longer than the deadline.

The exit code is 1 if a key is computed twice, not answered, or answered wrongly or differently; if a request is late or
fails while Redis does; if a dead server's keys take longer than half a second and a batch; or if Redis adds more than
1 ms.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.serving.apps.once_app import BATCH_ENV, WORK_S
from benchmarks.tools.asking import Answer, OnceTraffic, ask
from benchmarks.tools.bars import Bar, conclude, zero
from benchmarks.tools.commandline import Failed, add_choice, finish, options_parser, say
from benchmarks.tools.contestants import timebound
from benchmarks.tools.load import HOST, EchoTraffic, answers_right, free_port, measure
from benchmarks.tools.openloop import DEADLINE_S, Record, drive
from benchmarks.tools.processes import Server
from benchmarks.tools.seen import SEEN_ENV, count_seen, repeats
from benchmarks.tools.services import Cluster, Nginx, Redis
from benchmarks.tools.table import table
from timebound.lab.load.attempts import End, Exchange
from timebound.lab.load.schedule import Phase

PARTS = ("sharing", "contest", "death", "faults", "cost")
COPIES = 3
KEYS_AT_ONCE = 20
OWNED = 100
LEASE_S = 2.0
# A dead process's keys are free so soon after its last renewal; who waits looks twice as often as that.
DEAF_S = 0.5
DEATH_BATCH_S = 0.1
# A replica of a cluster's primary waits for a second, and then asks the others for their votes.
FAILOVER_S = 3.0
OVERLOAD = 1.2
FAULT_LOAD = 0.5
UNHURRIED = "Timebound-Timeout-Ms: 30000\r\n"
BARS = (
    *zero("computed_twice", "unanswered", "wrong", "late_redis_faults", "failed_redis_faults"),
    Bar("failovers", at_least=1),
    Bar("sharing_equal", at_least=1),
    Bar("taken_over", at_least=1),
    # The first keys that are free start a batch, the others wait for it: one more batch. Busy cores add 0.05 s.
    Bar("take_over_s", at_most=DEAF_S + DEATH_BATCH_S, noise=DEATH_BATCH_S + 0.05),
    # The difference of two medians; rounds of 0.6 s are too short for it.
    Bar("redis_added_ms", at_most=1.0, is_quick=False),
)

EXAMPLES = """\
examples:
  python benchmarks/serving/once.py --quick
  python benchmarks/serving/once.py --json out.json
  python benchmarks/serving/once.py --only faults
  python benchmarks/serving/once.py --store cluster --only sharing,contest,faults
"""


@dataclass(frozen=True)
class Plan:
    """What is measured, and for how long in seconds."""

    keys: int
    contest_s: float
    fault_s: float
    rounds: int
    closed_s: float
    replayed: int
    """Keys that are asked for again and again."""


FULL = Plan(keys=1000, contest_s=30.0, fault_s=3.0, rounds=5, closed_s=2.0, replayed=500)
QUICK = Plan(keys=200, contest_s=4.0, fault_s=1.2, rounds=2, closed_s=0.6, replayed=100)


class Run:
    """One run of the benchmark; `figures` fills up as parts end."""

    def __init__(self, options: argparse.Namespace, plan: Plan) -> None:
        self._parts: list[str] = options.only
        self._serve_args: list[str] = options.serve_args
        self._seed: int = options.seed
        self._is_cluster: bool = options.store == "cluster"
        self._plan = plan
        self.figures: dict[str, float] = {}

    def all(self) -> dict[str, float]:
        """Every part that was asked for."""
        for part in self._parts:
            getattr(self, f"_{part}")()
        return self.figures

    def _add(self, name: str, value: float) -> None:
        self.figures[name] = self.figures.get(name, 0) + value

    # ------------------------------------------------------------------ parts

    def _sharing(self) -> None:
        plan = self._plan
        say(f"sharing: {plan.keys} keys, {COPIES} times each to two servers at once")
        with self._store() as redis, self._two(redis) as (ports, seen):
            answers = asyncio.run(_send_copies(ports, plan.keys))
            counted = count_seen(seen)
        bodies = {uuid: {a.reply.body for a in got if a.reply is not None} for uuid, got in answers.items()}
        right = sum(a.is_full for got in answers.values() for a in got)
        self.figures["sharing_answers"] = right
        self.figures["sharing_equal"] = float(all(len(found) == 1 for found in bodies.values()))
        self.figures["sharing_computed"] = sum(counted[uuid] for uuid in answers)
        self._add("computed_twice", sum(max(0, counted[uuid] - 1) for uuid in answers))
        self._add("unanswered", plan.keys * COPIES * 2 - right)

    def _contest(self) -> None:
        plan = self._plan
        with self._store() as redis, self._two(redis) as (ports, seen), Nginx(ports) as nginx:
            capacity = self._capacity(nginx.port)
            rate = OVERLOAD * capacity
            say(f"contest: {OVERLOAD}x, {rate:.0f}/s for {plan.contest_s:.0f} s through nginx")
            record = drive(OnceTraffic(nginx.port), [Phase(rate, plan.contest_s)], self._seed)
            time.sleep(1.0)  # what runs is finished, and counted
            counted = count_seen(seen)
        self.figures["contest_requests"] = len(record.questions)
        self.figures["contest_resent"] = sum(len(q.attempts) > 1 for q in record.questions)
        self._add("computed_twice", repeats(counted))
        self._add("unanswered", sum(q.last.end is not End.ANSWERED for q in record.questions))
        self._note_wrong(record)

    def _death(self) -> None:
        say(f"death: a server is killed while it owns {OWNED} keys")
        with Redis() as redis, self._two(redis, {BATCH_ENV: str(DEATH_BATCH_S)}) as (ports, _):
            answers = asyncio.run(self._kill_owner(ports))
            taken_over = _taken_over(ports[1])
        within = [a.seconds for a in answers if a.is_full]
        self._add("unanswered", OWNED - len(within))
        self.figures["taken_over"] = taken_over
        self.figures["take_over_s"] = max(within, default=0.0)
        self.figures["take_over_limit_s"] = DEAF_S + DEATH_BATCH_S

    async def _kill_owner(self, ports: Sequence[int]) -> list[Answer]:
        traffic = [OnceTraffic(port, UNHURRIED) for port in ports]
        for each in traffic:  # both learn what large batches cost
            await asyncio.gather(*(ask(each.port, each.next()) for _ in range(2 * OWNED)))
        first = [asyncio.create_task(ask(ports[0], _numbered(traffic[0], "owned", n))) for n in range(OWNED)]
        await asyncio.sleep(DEATH_BATCH_S / 2)  # they are claimed, and the first batches run
        os.kill(self._servers[0].pid, signal.SIGKILL)
        retries = [ask(ports[1], _numbered(traffic[1], "owned", n)) for n in range(OWNED)]
        answers = await asyncio.gather(*retries)
        for task in first:
            task.cancel()
        return answers

    def _faults(self) -> None:
        plan = self._plan
        with self._store() as redis, self._two(redis) as (ports, _), Nginx(ports) as nginx:
            rate = FAULT_LOAD * self._capacity(nginx.port)
            each_s = max(plan.fault_s, FAILOVER_S) if self._is_cluster else plan.fault_s
            troubles = _Troubles(redis, ports, each_s)
            say(f"faults: {rate:.0f}/s for {troubles.seconds:.0f} s; Redis is killed, restarted, paused and resumed")
            troubles.start()
            record = drive(OnceTraffic(nginx.port), [Phase(rate, troubles.seconds)], self._seed)
            troubles.join()
            if isinstance(redis, Cluster):
                self.figures["failovers"] = redis.failovers
        attempts = [attempt for question in record.questions for attempt in question.attempts]
        self.figures["fault_requests"] = len(record.questions)
        self.figures["fault_fallbacks"] = sum(attempt.quality == "fallback" for attempt in attempts)
        self._add("late_redis_faults", sum(attempt.end is End.TIMED_OUT for attempt in attempts))
        self._add("failed_redis_faults", sum(attempt.end in (End.LOST, End.REFUSED) for attempt in attempts))
        self.figures["sharing_again_s"] = max(troubles.sharing_again_s)
        self._note_wrong(record)

    def _cost(self) -> None:
        say("cost: replay, computed and echo with the memory store; computed with Redis")
        plan = self._plan
        with Redis() as redis, ExitStack() as running:
            near, _ = self._serve(running, "once", [])
            shared, _ = self._serve(running, "once", ["--store", redis.url])
            echo = EchoTraffic(free_port())
            self._start(running, "echo", echo, [])
            replay = OnceTraffic(near, UNHURRIED, keys=plan.replayed)
            computed = OnceTraffic(near, UNHURRIED)
            measure(replay, 50, 1.0 + plan.replayed * WORK_S)  # every key is computed, and the servers are warm
            rows: dict[str, list[float]] = {}
            for number in range(plan.rounds):
                say(f"cost: round {number + 1} of {plan.rounds}")
                rows.setdefault("replay", []).append(measure(replay, 64, plan.closed_s).rps)
                rows.setdefault("echo", []).append(measure(echo, 64, plan.closed_s).rps)
                rows.setdefault("computed", []).append(measure(computed, 64, plan.closed_s).rps)
                rows.setdefault("alone_ms", []).append(measure(computed, 1, plan.closed_s).p50_ms)
                with_redis = OnceTraffic(shared, UNHURRIED)
                rows.setdefault("redis_ms", []).append(measure(with_redis, 1, plan.closed_s).p50_ms)
        typical = {name: statistics.median(values) for name, values in rows.items()}
        self.figures["replay_rps"] = typical["replay"]
        self.figures["computed_rps"] = typical["computed"]
        self.figures["echo_rps"] = typical["echo"]
        self.figures["replay_over_computed"] = typical["replay"] / typical["computed"]
        self.figures["replay_over_echo"] = typical["replay"] / typical["echo"]
        self.figures["redis_added_ms"] = typical["redis_ms"] - typical["alone_ms"]

    # ------------------------------------------------------------------ servers

    def _store(self) -> Redis | Cluster:
        return Cluster() if self._is_cluster else Redis()

    @contextmanager
    def _two(self, redis: Redis | Cluster, env: dict[str, str] | None = None) -> Iterator[tuple[list[int], Path]]:
        """Two servers of one worker each that share this Redis; their ports and where they note what they compute."""
        with tempfile.TemporaryDirectory(prefix="once-") as folder, ExitStack() as running:
            arguments = ["--workers", "1", "--store", redis.url, "--store-lease", str(LEASE_S)]
            self._servers: list[Server] = []
            ports = []
            for _ in range(2):
                port, server = self._serve(running, "once", arguments, {SEEN_ENV: folder, **(env or {})})
                ports.append(port)
                self._servers.append(server)
            yield ports, Path(folder)

    def _serve(
        self, running: ExitStack, app: str, arguments: Sequence[str], env: dict[str, str] | None = None
    ) -> tuple[int, Server]:
        traffic = OnceTraffic(free_port())
        return traffic.port, self._start(running, app, traffic, arguments, env)

    def _start(
        self,
        running: ExitStack,
        app: str,
        traffic: OnceTraffic | EchoTraffic,
        arguments: Sequence[str],
        env: dict[str, str] | None = None,
    ) -> Server:
        # Parts differ in what a batch costs: what one has learned, or a run before, is wrong for the next.
        command = [*timebound(app, ["--profiles", "none", *self._serve_args]), *arguments, "--port", str(traffic.port)]
        return running.enter_context(Server(app, command, env or {}, lambda: answers_right(traffic)))

    def _capacity(self, port: int) -> float:
        """What the two servers compute together, in full and without hurry."""
        traffic = OnceTraffic(port, UNHURRIED)
        measure(traffic, 32, 1.0)
        return measure(traffic, 32, max(1.0, self._plan.closed_s)).rps

    def _note_wrong(self, record: Record) -> None:
        self._add("wrong", sum(not a.is_right for q in record.questions for a in q.attempts))


class _Troubles(threading.Thread):
    """Kills, restarts, pauses and resumes Redis, and finds out how soon servers share again."""

    def __init__(self, redis: Redis | Cluster, ports: Sequence[int], each_s: float) -> None:
        super().__init__(daemon=True)
        self._redis = redis
        self._ports = ports
        self._each_s = each_s
        self.seconds = 6 * each_s
        self.sharing_again_s: list[float] = []

    def run(self) -> None:
        redis = self._redis
        for trouble, cure in ((redis.kill, redis.start), (redis.pause, redis.resume)):
            time.sleep(self._each_s)
            trouble()
            time.sleep(self._each_s)
            cure()
            self._wait_for_sharing()

    def _wait_for_sharing(self) -> None:
        """Ask one server something new and then the other one for the same, until that knows it."""
        began, number = time.perf_counter(), 0
        one, other = (OnceTraffic(port, UNHURRIED) for port in self._ports)
        while True:
            number += 1
            name = f"again-{began}"
            asyncio.run(ask(self._ports[0], _numbered(one, name, number)))
            second = asyncio.run(ask(self._ports[1], _numbered(other, name, number)))
            if second.source in ("stored", "joined"):
                self.sharing_again_s.append(time.perf_counter() - began)
                return


def _taken_over(port: int) -> float:
    """How many keys of a dead server this one has taken over."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("timebound_take_overs_total{"))


def _numbered(traffic: OnceTraffic, name: str, number: int) -> Exchange:
    return traffic.exchange(f"{name}-{number}", number)


async def _send_copies(ports: Sequence[int], keys: int) -> dict[str, list[Answer]]:
    """Every key three times to each port, all six at once, some keys at a time."""
    answers: dict[str, list[Answer]] = {}
    room = asyncio.Semaphore(KEYS_AT_ONCE)
    traffic = [OnceTraffic(port, UNHURRIED) for port in ports]

    async def one_key(number: int) -> None:
        async with room:
            copies = [(each.port, each.exchange(f"copy-{number}", number)) for each in traffic] * COPIES
            answers[f"copy-{number}"] = await asyncio.gather(*(ask(port, exchange) for port, exchange in copies))

    await asyncio.gather(*(one_key(number) for number in range(keys)))
    return answers


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_parser(__doc__, EXAMPLES)
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; default: %(default)s")
    parser.add_argument(
        "--store",
        choices=("redis", "cluster"),
        default="redis",
        help="what sharing, contest and faults share; faults kills a primary of a cluster; default: %(default)s",
    )
    add_choice(parser, "--only", PARTS, "parts")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(options, QUICK if options.quick else FULL)
    try:
        figures = finish("once", run.all)
    except Failed as failure:
        return failure.code
    print(f"deadline {DEADLINE_S * 1e3:.0f} ms, {WORK_S * 1e3:.0f} ms of work per item, lease {LEASE_S:.0f} s\n")
    print(table(figures), "\n")
    held_to = [bar for bar in BARS if options.store == "cluster" or bar.name != "failovers"]  # one server has no other
    return conclude("once", options, figures, held_to)


if __name__ == "__main__":
    sys.exit(main())
