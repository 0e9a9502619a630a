"""Two servers, one Redis, and what may happen to each: answers go on, in time, and keys are shared again soon."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import Answer, post
from tests.redis_server import RedisServer

pytestmark = pytest.mark.live

LEASE_S = 1.0
LIMIT_MS = 3000
"""What clients ask for in these tests; an answer that takes longer is late."""


class World:
    """A Redis of our own, two servers on it, and what their models computed."""

    def __init__(self, redis: RedisServer, one: Serving, two: Serving, computed: Path) -> None:
        self.redis, self.one, self.two = redis, one, two
        self._path = computed
        self._keys = 0

    def computed(self) -> Counter[int]:
        lines = self._path.read_text().split() if self._path.exists() else []
        return Counter(map(int, lines))

    def new_key(self) -> str:
        self._keys += 1
        return f"key-{self._keys}"

    def is_shared(self) -> bool:
        """Whether what the one server computes the other gives."""
        content = {"value": 77, "id": self.new_key()}
        sources = [ask(serving, content).headers.get("timebound-source") for serving in (self.one, self.two)]
        return sources[0] == "computed" and sources[1] in ("stored", "joined")

    def degraded(self) -> list[str | None]:
        """What /readyz says of the store, server by server; both are ready."""
        answers = [serving.http.get("/readyz") for serving in (self.one, self.two)]
        assert [answer.status_code for answer in answers] == [200, 200]
        return [answer.json().get("degraded") for answer in answers]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with start_world(tmp_path_factory.mktemp("faults") / "computed") as world:
        yield world


@contextmanager
def start_world(computed: Path) -> Iterator[World]:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        options = ("--store", redis.url, "--store-lease", str(LEASE_S), "--store-patience", "300ms", "--workers", "1")
        one, two = (
            stack.enter_context(Serving(MODELS / "counts.py", *options, environment={"COMPUTED": str(computed)}))
            for _ in range(2)
        )
        yield World(redis, one, two, computed)


def ask(serving: Serving, content: Any, limit_ms: int = LIMIT_MS) -> Answer:
    with serving.wire() as wire:
        started = time.monotonic()
        wire.send(post("/count", content, f"Timebound-Timeout-Ms: {limit_ms}"))
        answer = wire.read()
        took_s = time.monotonic() - started
    assert took_s < limit_ms / 1e3 + 0.5, f"late: {took_s:.3f} s"  # half a second for a busy machine
    return answer


def kill_and_start_again(redis: RedisServer) -> Callable[[], None]:
    redis.kill()
    return redis.start


def pause(redis: RedisServer) -> Callable[[], None]:
    redis.pause()
    return redis.resume


def fill(redis: RedisServer) -> Callable[[], None]:
    redis.ask("CONFIG", "SET", "maxmemory", "1")
    return lambda: redis.ask("CONFIG", "SET", "maxmemory", "0")


def make_replica(redis: RedisServer) -> Callable[[], None]:
    redis.ask("REPLICAOF", "127.0.0.1", "1")
    return lambda: redis.ask("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("hurt", [kill_and_start_again, pause, fill, make_replica], ids=lambda hurt: hurt.__name__)
def test_answers_go_on_while_redis_is_in_trouble_and_are_shared_again_after(
    shared: World, hurt: Callable[[RedisServer], Callable[[], None]]
) -> None:
    eventually(shared.is_shared, "sharing at first")
    with ThreadPoolExecutor(8) as pool:
        # Given clients that ask both servers all the time, always with new keys
        contents = [{"value": 5, "id": shared.new_key(), "takes": 0.005} for _ in range(100)]
        before = [pool.submit(ask, (shared.one, shared.two)[n % 2], content) for n, content in enumerate(contents[:40])]
        heal = hurt(shared.redis)
        during = [pool.submit(ask, (shared.one, shared.two)[n % 2], content) for n, content in enumerate(contents[40:])]
        answers = [answer.result() for answer in (*before, *during)]
    # Then each is answered in time, by the model
    assert {answer.status for answer in answers} == {200}
    # And who looks is told, but nobody is sent away
    eventually(lambda: all(shared.degraded()), "word of the trouble")
    assert {serving.gauge("store_up") for serving in (shared.one, shared.two)} == {0.0}
    # When it is over, keys are shared again
    heal()
    healed = time.monotonic()
    eventually(lambda: not any(shared.degraded()), "the end of the trouble")
    assert time.monotonic() - healed < 2 + 3  # two seconds are promised, three are for a busy machine
    eventually(shared.is_shared, "sharing again")


@pytest.mark.parametrize(
    "command",
    [("FLUSHALL",), ("SCRIPT", "FLUSH"), ("CLIENT", "KILL", "TYPE", "pubsub")],
    ids=" ".join,
)
def test_what_an_operator_does_to_redis_costs_no_answer(shared: World, command: tuple[str, ...]) -> None:
    eventually(shared.is_shared, "sharing at first")
    contents = [{"value": 6, "id": shared.new_key(), "takes": 0.005} for _ in range(40)]
    with ThreadPoolExecutor(16) as pool:
        futures: list[Future[Answer]] = []
        for number, content in enumerate(contents):
            futures += [pool.submit(ask, serving, content, 6000) for serving in (shared.one, shared.two)]
            if number % 10 == 5:
                shared.redis.ask(*command)
        answers = [future.result() for future in futures]
    assert {answer.status for answer in answers} == {200}
    eventually(shared.is_shared, "sharing again")


def test_a_server_that_starts_without_redis_is_ready_and_shares_when_it_comes(tmp_path: Path) -> None:
    with RedisServer() as redis:
        redis.kill()
        environment = {"COMPUTED": str(tmp_path / "computed")}
        with Serving(MODELS / "counts.py", "--store", redis.url, "--workers", "1", environment=environment) as serving:
            ready = serving.http.get("/readyz")
            assert ready.status_code == 200
            assert "refused" in ready.json()["degraded"].lower()
            assert ask(serving, {"value": 1, "id": "early"}).status == 200
            redis.start()
            eventually(lambda: redis.ask("EXISTS", "timebound:r:counts:early"), "what was computed before, in Redis")
            assert "degraded" not in serving.http.get("/readyz").json()
            assert len(serving.lines("the store cannot be reached")) == 1


def test_a_killed_servers_keys_are_answered_by_the_other(tmp_path: Path, gate: Gate) -> None:
    with start_world(tmp_path / "computed") as world, ThreadPoolExecutor(8) as pool:
        # Given one server that owns keys, in its model and in its queue
        contents = [{"value": value, "id": f"key-{value}", "gate": str(gate.path)} for value in range(1, 5)]
        wires = [world.one.wire() for _ in contents]
        for wire, content in zip(wires, contents, strict=True):
            wire.send(post("/count", content))
        eventually(lambda: world.one.gauge("requests_pending") == 4 and world.computed()[1], "all of them in work")
        # When it is killed, and their clients ask the other one
        world.one.signal(signal.SIGKILL)
        killed = time.monotonic()
        gate.open()
        answers = list(pool.map(lambda content: ask(world.two, {**content, "retry": 1}, 10_000), contents))
        # Then they are answered as soon as the lease is over
        assert [answer.json()["value"] for answer in answers] == [1, 2, 3, 4]
        assert time.monotonic() - killed < LEASE_S + 4
        for wire in wires:
            wire.close()


def test_a_server_that_leaves_frees_its_keys_at_once(tmp_path: Path, gate: Gate) -> None:
    with RedisServer() as redis, ExitStack() as stack:
        # Given a lease that nobody would want to wait for, and a server that is told to stop without grace
        options = ("--store", redis.url, "--store-lease", "60s", "--workers", "1", "--grace", "0")
        environment = {"COMPUTED": str(tmp_path / "computed")}
        one, two = (
            stack.enter_context(Serving(MODELS / "counts.py", *options, environment=environment)) for _ in range(2)
        )
        content = {"value": 1, "id": "left", "gate": str(gate.path)}
        first, second = stack.enter_context(one.wire()), stack.enter_context(two.wire())
        first.send(post("/count", content))
        eventually(lambda: redis.ask("EXISTS", "timebound:c:counts:left"), "the claim")
        second.send(post("/count", content))
        eventually(lambda: redis.ask("HEXISTS", "timebound:c:counts:left", "w"), "the other one waiting")
        # When it leaves
        one.signal(signal.SIGTERM)
        assert one.wait() == 3  # its own client was left without an answer
        gate.open()
        # Then the other one computes what it waited for
        answer = second.read()
        assert (answer.status, answer.json()["value"]) == (200, 1)
        assert answer.headers["timebound-source"] == "computed"
