"""Each key is computed once: across two servers on one Redis, by header, by body field, by content; and read later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import Answer, post
from tests.redis_server import RedisServer, free_port

pytestmark = pytest.mark.live


class Pair:
    """Two servers on one Redis, and what their models computed."""

    def __init__(self, one: Serving, two: Serving, computed: Path) -> None:
        self.one, self.two = one, two
        self._computed = computed

    def computed(self) -> Counter[int]:
        """How often each input was computed so far, the warm-up's zero left out."""
        lines = self._computed.read_text().split() if self._computed.exists() else []
        return Counter(int(line) for line in lines if line != "0")


@pytest.fixture(scope="module")
def pair(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    computed = tmp_path_factory.mktemp("once") / "computed"
    store = ("--store", redis.url, "--store-namespace", "once", "--store-patience", "5", "--workers", "1")
    with ExitStack() as stack:
        one, two = (Serving(MODELS / "counts.py", *store, environment={"COMPUTED": str(computed)}) for _ in range(2))
        yield Pair(stack.enter_context(one), stack.enter_context(two), computed)


def ask(serving: Serving, content: Any, *headers: str, path: str = "/count") -> Answer:
    with serving.wire() as wire:
        wire.send(post(path, content, *headers))
        return wire.read()


def test_the_same_keys_sent_at_once_to_both_three_times_each_are_computed_once(pair: Pair) -> None:
    values = range(1000, 1100)
    requests: list[tuple[Serving, dict[str, Any]]] = [
        (serving, {"value": value, "id": f"storm-{value}", "retry": retry})
        for value in values
        for retry in range(3)
        for serving in (pair.one, pair.two)
    ]
    with ThreadPoolExecutor(48) as pool:
        answers = list(pool.map(lambda request: ask(*request), requests))
    assert {answer.status for answer in answers} == {200}
    bodies: dict[int, set[bytes]] = {}
    for (_, content), answer in zip(requests, answers, strict=True):
        bodies.setdefault(content["value"], set()).add(answer.body)
    assert {value: len(different) for value, different in bodies.items()} == dict.fromkeys(values, 1)
    computed = pair.computed()
    assert [computed[value] for value in values] == [1] * 100
    sources = Counter(answer.headers["timebound-source"] for answer in answers)
    assert sources["computed"] == 100


def test_who_joins_at_the_other_server_gets_the_answer_as_soon_as_it_is_there(pair: Pair, gate: Gate) -> None:
    content = {"value": 1, "id": "joined", "gate": str(gate.path)}
    with pair.one.wire() as first, pair.two.wire() as second:
        first.send(post("/count", content))
        eventually(lambda: pair.computed()[1], "the request in the model")
        second.send(post("/count", content))
        eventually(lambda: pair.two.gauge("requests_pending") == 1, "the other one waiting")
        gate.open()
        computed, joined = first.read(), second.read()
    assert computed.body == joined.body
    assert (computed.headers["timebound-source"], joined.headers["timebound-source"]) == ("computed", "joined")
    stored = ask(pair.two, content)
    assert (stored.headers["timebound-source"], stored.body) == ("stored", computed.body)
    assert pair.computed()[1] == 1


def test_a_retry_after_the_clients_timeout_gets_what_was_computed_meanwhile(pair: Pair, gate: Gate) -> None:
    content = {"value": 2, "id": "timeout", "gate": str(gate.path)}
    # Given a client that waits for less than the model takes, and leaves
    with pair.one.wire() as impatient:
        impatient.send(post("/count", content))
        eventually(lambda: pair.computed()[2], "the request in the model")
    # And one whose deadline passes
    late = ask(pair.one, content, "Timebound-Timeout-Ms: 200")
    assert (late.status, late.json()["code"]) == (504, "deadline_missed")
    # When the model is done
    gate.open()
    eventually(lambda: get(pair.two, "/v1/results/counts/timeout").status_code == 200, "the result")
    # Then a retry at either server gets its answer
    answers = [ask(serving, {**content, "retry": 1}) for serving in (pair.one, pair.two)]
    assert [answer.headers["timebound-source"] for answer in answers] == ["stored", "stored"]
    assert answers[0].body == answers[1].body
    assert pair.computed()[2] == 1


def test_a_key_in_the_header_beats_the_one_in_the_body(pair: Pair) -> None:
    first = ask(pair.one, {"value": 3, "id": "in-body"}, "Idempotency-Key: in-header")
    eventually(lambda: get(pair.two, "/v1/results/counts/in-header").status_code == 200, "the result")
    again = ask(pair.two, {"value": 3, "id": "in-body"}, "Idempotency-Key: in-header")
    other = ask(pair.two, {"value": 3, "id": "in-body"})
    assert (first.body, again.headers["timebound-source"]) == (again.body, "stored")
    assert other.headers["timebound-source"] == "computed"
    assert pair.computed()[3] == 2


def test_another_body_under_the_same_key_is_refused_but_for_ignored_fields(pair: Pair) -> None:
    ask(pair.one, {"value": 4, "id": "reused"})
    eventually(lambda: get(pair.two, "/v1/results/counts/reused").status_code == 200, "the result")
    for serving in (pair.one, pair.two):
        same = ask(serving, {"retry": 7, "id": "reused", "value": 4})
        assert (same.status, same.headers["timebound-source"]) == (200, "stored")
        other = ask(serving, {"value": 5, "id": "reused"})
        assert (other.status, other.json()["code"]) == (422, "key_reused")
    assert (pair.computed()[4], pair.computed()[5]) == (1, 0)


def test_another_body_is_refused_while_the_first_is_in_work(pair: Pair, gate: Gate) -> None:
    with pair.one.wire() as first:
        first.send(post("/count", {"value": 6, "id": "busy", "gate": str(gate.path)}))
        eventually(lambda: pair.computed()[6], "the request in the model")
        for serving in (pair.one, pair.two):
            other = ask(serving, {"value": 60, "id": "busy"})
            assert (other.status, other.json()["code"]) == (422, "key_reused")
        gate.open()
        assert first.read().status == 200


def test_equal_inputs_without_a_key_are_computed_once_if_the_model_caches_content(pair: Pair) -> None:
    answers = [ask(serving, {"value": 7}, path="/content") for serving in (pair.one, pair.two, pair.one)]
    assert len({answer.body for answer in answers}) == 1
    other = ask(pair.two, {"value": 8}, path="/content")
    assert other.headers["timebound-source"] == "computed"
    plain = [ask(serving, {"value": 9}) for serving in (pair.one, pair.two)]
    assert [answer.headers["timebound-source"] for answer in plain] == ["computed", "computed"]
    computed = pair.computed()
    assert (computed[7], computed[8], computed[9]) == (1, 1, 2)


@pytest.mark.parametrize("key", ["a/b:c d", "ünï-✓", "100%", "?&#=", "..", "a//b"])
def test_a_result_is_read_under_any_key_at_either_server(pair: Pair, key: str) -> None:
    by_header = ask(pair.one, {"value": 10}, f"Idempotency-Key: {key}")
    by_body = ask(pair.two, {"value": 10, "id": f"body {key}"})
    for name, answer in ((key, by_header), (f"body {key}", by_body)):
        path = f"/v1/results/counts/{quoted(name)}"
        for serving in (pair.one, pair.two):
            found = eventually_found(serving, path)
            assert found.content == answer.body
            assert found.headers["timebound-source"] == "stored"
            assert found.headers["timebound-quality"] == "full"
            assert found.headers["cache-control"] == "no-store"


def test_a_result_is_202_while_it_is_in_work_and_404_when_there_is_none(pair: Pair, gate: Gate) -> None:
    path = "/v1/results/counts/running"
    missing = get(pair.one, path)
    assert (missing.status_code, missing.json()["code"]) == (404, "no_result")
    with pair.one.wire() as first:
        first.send(post("/count", {"value": 11, "id": "running", "gate": str(gate.path)}))
        eventually(lambda: pair.computed()[11], "the request in the model")
        for serving in (pair.one, pair.two):
            running = get(serving, path)
            assert (running.status_code, running.json()) == (202, {"state": "running"})
        gate.open()
        assert first.read().body == eventually_found(pair.two, path).content


def test_the_operator_lists_and_clears_and_nobody_else(pair: Pair) -> None:
    for name in ("clear-1", "clear-2"):
        ask(pair.one, {"value": 12, "id": name})
    eventually_found(pair.two, "/v1/results/counts/clear-2")
    listed = pair.two.operator.get("/v1/results/counts").json()
    assert {"clear-1", "clear-2"} <= {entry["key"] for entry in listed["results"]}
    # Asked for through a proxy, or by a web page under another name, it is nobody's business
    foreign: list[dict[str, str]] = [
        {},
        {"X-Forwarded-For": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
        {"Via": "1.1 a"},
        {"Host": "evil.example"},
    ]
    for headers in foreign:
        for method, path in (("GET", "counts"), ("DELETE", "counts"), ("DELETE", "counts/clear-1"), ("DELETE", "")):
            url = f"{pair.one.url}/v1/results/{path}".rstrip("/")
            refused = pair.one.http.request(method, url, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    # By the operator's socket it is done, for both servers
    assert pair.one.operator.delete("/v1/results/counts/clear-1").json() == {"cleared": 1}
    assert get(pair.one, "/v1/results/counts/clear-1").status_code == 404
    eventually(lambda: get(pair.two, "/v1/results/counts/clear-1").status_code == 404, "the other server forgetting")
    assert get(pair.two, "/v1/results/counts/clear-2").status_code == 200
    assert pair.two.operator.delete("/v1/results/contents").json()["cleared"] >= 0
    assert ask(pair.two, {"value": 12, "id": "clear-1"}).headers["timebound-source"] == "computed"


def test_with_a_token_the_operator_may_come_from_anywhere(tmp_path: Path) -> None:
    environment = {"COMPUTED": str(tmp_path / "computed"), "TIMEBOUND_ADMIN_TOKEN": "tökén"}
    with Serving(MODELS / "counts.py", "--workers", "1", environment=environment) as serving:
        ask(serving, {"value": 1, "id": "a"})
        far = (b"X-Forwarded-For", b"10.0.0.1")
        for wrong in ("", "Bearer wrong", "tökén", "Bearer tökén2"):
            headers = [far, (b"Authorization", wrong.encode())]
            refused = serving.http.delete("/v1/results", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        headers = [far, (b"Authorization", "Bearer tökén".encode())]
        assert serving.http.delete("/v1/results", headers=headers).json() == {"cleared": 1}
        assert "tökén" not in serving.said


def test_two_servers_on_one_port_compute_each_key_once(redis: RedisServer, tmp_path: Path) -> None:
    computed, port = tmp_path / "computed", free_port()
    options = ("--store", redis.url, "--store-namespace", "port", "--store-patience", "5", "--workers", "1")
    environment = {"COMPUTED": str(computed)}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                Serving(MODELS / "counts.py", *options, "--reuse-port", environment=environment, port=port)
            )
            for _ in range(2)
        ]
        assert {serving.port for serving in servers} == {port}
        # The kernel deals connections out: with this many both servers get some.
        requests = [{"value": value, "id": f"port-{value}"} for value in range(1, 41)] * 3
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda content: ask(servers[0], content), requests))
        assert {answer.status for answer in answers} == {200}
        lines = Counter(computed.read_text().split())
        assert {lines[str(value)] for value in range(1, 41)} == {1}
        assert len({answer.json()["by"] for answer in answers}) == 2


def get(serving: Serving, path: str) -> httpx.Response:
    return serving.http.get(path)


def eventually_found(serving: Serving, path: str) -> httpx.Response:
    """Results are written after the answer: at the other server it may take a moment."""

    def look() -> httpx.Response | None:
        found = serving.http.get(path)
        return found if found.status_code == 200 else None

    found = eventually(look, path)
    assert found is not None
    return found


def quoted(key: str) -> str:
    return "".join(f"%{byte:02X}" for byte in key.encode())
