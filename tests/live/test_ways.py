"""What is promised for a request holds whichever way it comes in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.terms import LARGE, USUAL, Terms, Told
from tests.live.ways import WAYS, ByGateway, ByHttp, ByStream, Way, serving_all, way_to

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_all(tmp_path_factory.mktemp("all")) as serving:
        yield serving


@pytest.fixture(scope="module")
def large_serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving_all(tmp_path_factory.mktemp("all"), LARGE) as serving:
        yield serving


@pytest.fixture(scope="module", params=[*WAYS, *(f"large, {way}" for way in WAYS if way != "by a query")])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """Each of them, asked with small bodies and with those that are not looked at on the event loop."""
    size, _, name = request.param.rpartition(", ")
    serving = request.getfixturevalue("large_serving" if size else "serving")
    with way_to(name, serving, tmp_path_factory.mktemp("way"), LARGE if size else USUAL) as opened:
        yield opened


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Terms:
    """With API keys, and a model that has a fallback."""
    target = tmp_path_factory.mktemp("target") / "waits.py"
    fallback = (
        "\n    def fallback(self, request: Request) -> dict[str, Any]:\n        return {'value': -request.value}\n"
    )
    target.write_text((MODELS / "waits.py").read_text() + fallback)
    return Terms(key="tb_shop", target=target)


@pytest.fixture(scope="module")
def guarded_serving(tmp_path_factory: pytest.TempPathFactory, guarded: Terms) -> Iterator[Serving]:
    with serving_all(tmp_path_factory.mktemp("all"), guarded) as serving:
        yield serving


@pytest.fixture(scope="module", params=WAYS)
def guarded_way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, guarded: Terms, guarded_serving: Serving
) -> Iterator[Way]:
    with way_to(request.param, guarded_serving, tmp_path_factory.mktemp("way"), guarded) as opened:
        yield opened


def test_a_miss_is_told_by_the_limit_that_came_with_it(way: Way, gate: Gate) -> None:
    began = time.monotonic()
    assert way.ask({"value": 1, "gate": str(gate.path)}, limit_s=0.5) == Told("deadline_missed")
    assert time.monotonic() - began < 10, "the model's own deadline is 50 s"


def test_a_key_is_computed_once_and_not_used_for_another_body(way: Way) -> None:
    assert way.ask({"value": 1}, key="k") == Told("", {"value": 1}, "computed")
    assert way.ask({"value": 1}, key="k") == Told("", {"value": 1}, "stored")
    assert way.ask({"value": 2}, key="k") == Told("key_reused")


def test_who_leaves_waits_no_more(way: Way, gate: Gate) -> None:
    way.ask_and_leave({"value": 1, "gate": str(gate.path)})
    eventually(lambda: way.waiting() == 0, "nobody waits")


def test_a_bad_item_fails_alone(way: Way, gate: Gate) -> None:
    with ThreadPoolExecutor(4) as pool:
        held = pool.submit(way.ask, {"value": 0, "gate": str(gate.path)})
        eventually(lambda: way.waiting() == 1, "the worker is held")
        bodies = [{"value": 1}, {"value": 9, "gate": "/nowhere/at/all"}, {"value": 2}]
        asked = [pool.submit(way.ask, body) for body in bodies]
        eventually(lambda: way.waiting() == 4, "they wait together")
        gate.open()
        told = [each.result() for each in asked]
    assert held.result().value == {"value": 0}
    assert [each.code for each in told] == ["", "model_failed", ""]
    assert [each.value for each in told] == [{"value": 1}, None, {"value": 2}]


def test_a_body_has_a_bound(way: Way) -> None:
    if isinstance(way, ByGateway):
        pytest.skip("who asks from the same process has the body in its memory already")
    if isinstance(way, ByHttp) and way.is_by_query:
        assert way.ask({"value": 1, "gate": "x" * 9_000}) == Told("bad_input"), "a query has a bound of its own"
        return
    assert way.ask({"value": 1, "gate": "x" * way.terms.too_large}) == Told("body_too_large")


def test_a_retry_joins_the_request_that_is_in_work(way: Way, gate: Gate) -> None:
    body = {"value": 3, "gate": str(gate.path)}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(way.ask, body, key="joined")
        eventually(lambda: way.waiting() == 1, "it waits")
        again = pool.submit(way.ask, body, key="joined")
        eventually(lambda: way.waiting() == 2, "both wait")
        gate.open()
        assert first.result() == Told("", {"value": 3}, "computed")
        assert again.result() == Told("", {"value": 3}, "joined")


def test_a_retry_written_differently_is_the_same(way: Way) -> None:
    if isinstance(way, ByHttp) and not way.reads_bodies:
        pytest.skip("a handler may take anything: only the same bytes are the same")
    assert way.ask({"value": 4, "gate": ""}, key="written") == Told("", {"value": 4}, "computed")
    assert way.ask({"gate": "", "value": 4}, key="written") == Told("", {"value": 4}, "stored")


def test_a_request_keeps_its_id(way: Way, gate: Gate) -> None:
    if isinstance(way, ByGateway | ByStream):
        pytest.skip("there is nowhere to say one")
    gate.open()
    answered = way.ask({"value": 5, "gate": str(gate.path)}, id="order-66")
    assert (answered, answered.id) == (Told("", {"value": 5}, "computed"), "order-66")
    refused = way.ask({"value": 5, "gate": "/nowhere/at/all"}, id="order-67")
    assert (refused, refused.id) == (Told("model_failed"), "order-67")


def test_a_worker_that_is_killed_with_a_batch_costs_no_answer(way: Way, gate: Gate) -> None:
    killed = eventually(way.worker, "the worker")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(way.ask, {"value": 6, "gate": str(gate.path)})
        eventually(lambda: way.waiting() == 1, "it is computed")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: way.worker() not in (0, killed), "the next worker")
        gate.open()
        answered = asked.result()
    assert (answered, answered.quality) == (Told("", {"value": 6}, "computed"), "full")


def test_a_miss_is_the_fallback_with_its_quality(guarded_way: Way, gate: Gate) -> None:
    if isinstance(guarded_way, ByHttp) and not guarded_way.reads_bodies:
        pytest.skip("the handler of an archive has none")
    answered = guarded_way.ask({"value": 7, "gate": str(gate.path)}, limit_s=0.5)
    assert (answered.value, answered.quality) == ({"value": -7}, "fallback")


def test_who_has_no_api_key_is_not_answered(guarded_way: Way) -> None:
    if isinstance(guarded_way, ByGateway):
        pytest.skip("who asks from the same process needs none")
    assert guarded_way.ask({"value": 8}, is_known=False) == Told("unauthorized")
    assert guarded_way.ask({"value": 8}) == Told("", {"value": 8}, "computed")
