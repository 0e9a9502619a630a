"""What is promised for a request holds whichever way it comes in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.live.gate import Gate
from tests.live.serving import Serving, eventually
from tests.live.ways import HTTP, TOO_LARGE, WAYS, ByGateway, ByGrpc, ByHttp, Told, Way, open_way, serving_all

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with serving_all() as serving:
        yield serving


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    if request.param in HTTP:
        yield ByHttp(request.getfixturevalue("serving").port, request.param)
        return
    if request.param == "by gRPC":
        with closing(ByGrpc(request.getfixturevalue("serving"))) as by_grpc:
            yield by_grpc
        return
    folder: Path = tmp_path_factory.mktemp("way")
    with open_way(request.param, folder) as opened:
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
    assert way.ask({"value": 1, "gate": "x" * TOO_LARGE}) == Told("body_too_large")


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
