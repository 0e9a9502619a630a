"""With `Accept: text/event-stream` a client gets each better answer, or each piece, as soon as it is there."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, PATIENCE_S, Serving, eventually, memory_of
from tests.live.test_guest import hosted
from tests.live.wire import post

from timebound import AsyncClient, Client
from timebound.client import BadRequest, ModelFailed

pytestmark = pytest.mark.live

EVENTS = {"Accept": "text/event-stream"}
BETTER, SPEAKS = "/predictions/better", "/predictions/speaks"


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(MODELS / "streams.py", "--workers", "1", "--slots", "1") as serving:
        yield serving


@pytest.fixture
def alone() -> Iterator[Serving]:
    """A server of a test's own: requests like those that hung or killed a worker are suspects there from then on."""
    with Serving(MODELS / "streams.py", "--workers", "1", "--slots", "1") as serving:
        yield serving


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "second") as closed:
        yield closed


def events_of(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer.iter_lines():
        word, _, rest = line.partition(": ")
        if word == "event":
            name = rest
        elif word == "data":
            yield name, json.loads(rest)


@contextmanager
def asking(
    serving: Serving, path: str, body: Any, **headers: str
) -> Iterator[tuple[httpx.Response, Iterator[tuple[str, Any]]]]:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    with serving.http.stream("POST", path, json=body, headers=EVENTS | more) as answer:
        yield answer, events_of(answer)


def members(event: tuple[str, Any]) -> tuple[str, str, int, int, Any]:
    name, said = event
    return name, said["quality"], said["members"], said["of_members"], said["answer"]


def pieces(events: Iterator[tuple[str, Any]]) -> tuple[list[Any], tuple[str, Any]]:
    """Every piece that still comes, and the event after the last."""
    found: list[Any] = []
    for name, said in events:
        if name != "piece":
            return found, (name, said)
        found.append(said["piece"])
    raise AssertionError(f"the stream ended without an event that says so, after {found}")


def test_an_ensemble_sends_each_better_answer_as_its_members_finish(serving: Serving, gate: Gate, second: Gate) -> None:
    body = {"value": 10, "gates": {"2": str(gate.path), "3": str(second.path)}}
    with asking(serving, BETTER, body) as (answer, events):
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert members(next(events)) == ("answer", "partial", 1, 3, {"mean": 11.0})
        gate.open()
        assert members(next(events)) == ("answer", "partial", 2, 3, {"mean": 11.5})
        second.open()
        assert members(next(events)) == ("final", "full", 3, 3, {"mean": 12.0})
        assert list(events) == []
    assert serving.http.post(BETTER, json={"value": 10}).json() == {"mean": 12.0}


def test_at_the_deadline_the_stream_ends_with_the_best_there_is(alone: Serving, gate: Gate) -> None:
    body = {"value": 10, "gates": {"3": str(gate.path)}}
    with asking(alone, BETTER, body, timebound_timeout_ms="3000") as (_, events):
        told = [members(event) for event in events]
    assert told[-1] == ("final", "partial", 2, 3, {"mean": 11.5})
    assert [name for name, *_ in told[:-1]] == ["answer", "answer"]


def test_what_goes_wrong_before_the_first_event_is_an_ordinary_error(alone: Serving, gate: Gate) -> None:
    wrong = alone.http.post(BETTER, json={"value": "x"}, headers=EVENTS)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "bad_input")
    late = alone.http.post(
        BETTER, json={"value": 1, "gates": {"1": str(gate.path)}}, headers={**EVENTS, "Timebound-Timeout-Ms": "500"}
    )
    assert (late.status_code, late.json()["code"]) == (504, "deadline_missed")


def test_a_browser_can_follow_a_get(serving: Serving) -> None:
    with serving.http.stream("GET", "/better?value=1", headers=EVENTS) as answer:
        assert members(list(events_of(answer))[-1]) == ("final", "full", 3, 3, {"mean": 3.0})


def test_a_finish_that_yields_sends_each_piece_when_it_is_there(serving: Serving, gate: Gate) -> None:
    with asking(serving, SPEAKS, {"say": ["one", " two"], "gates": {"1": str(gate.path)}}) as (_, events):
        assert next(events) == ("piece", {"piece": "one"})
        gate.open()
        assert next(events) == ("piece", {"piece": " two"})
        name, said = next(events)
        assert (name, said["quality"], said["pieces"], "answer" in said) == ("final", "full", 2, False)


def test_without_the_header_pieces_are_joined(serving: Serving) -> None:
    def ask(*say: Any) -> httpx.Response:
        return serving.http.post(SPEAKS, json={"say": say})

    assert ask("one", " two\n").json() == "one two\n"
    assert ask({"n": 1}, "two").json() == [{"n": 1}, "two"]
    assert (ask("bytes", "bytes").content, ask("bytes").headers["content-type"]) == (
        b"\0\1\0\1",
        "application/octet-stream",
    )


def test_pieces_of_bytes_come_as_base64(serving: Serving) -> None:
    with asking(serving, SPEAKS, {"say": ["bytes"]}) as (_, events):
        name, said = next(events)
    assert (name, base64.b64decode(said["data"])) == ("piece", b"\0\1")


def test_at_the_deadline_pieces_end_with_word_that_they_are_not_all(alone: Serving, gate: Gate) -> None:
    body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
    with asking(alone, SPEAKS, body, timebound_timeout_ms="2000") as (_, events):
        found, (name, said) = pieces(events)
    assert (found, name, said["quality"], said["pieces"]) == (["one"], "final", "partial", 1)


def test_at_the_deadline_those_who_take_no_events_get_the_pieces_so_far(alone: Serving, gate: Gate) -> None:
    body = {"say": ["one ", "two ", "three"], "gates": {"2": str(gate.path)}}
    answer = alone.http.post(SPEAKS, json=body, headers={"Timebound-Timeout-Ms": "2000"})
    assert (answer.json(), answer.headers["timebound-quality"]) == ("one two ", "partial")


def test_what_goes_wrong_after_the_first_piece_is_an_event(serving: Serving) -> None:
    with asking(serving, SPEAKS, {"say": ["one", "fail"]}) as (answer, events):
        assert answer.status_code == 200
        found, (name, said) = pieces(events)
    assert (found, name, said["code"], said["status"]) == (["one"], "error", "model_failed", 500)
    assert serving.http.post(SPEAKS, json={"say": ["one", "fail"]}).status_code == 500


def test_a_client_that_leaves_ends_the_generator(alone: Serving, gate: Gate, tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = {"say": ["word"], "times": 1_000_000, "gates": {"3": str(gate.path)}, "left": str(left)}
    with asking(alone, SPEAKS, body) as (_, events):
        next(events)
    eventually(lambda: alone.gauge("requests_pending") == 0, "the request forgotten")
    gate.open()
    eventually(left.exists, "the generator closed")
    assert alone.http.post(SPEAKS, json={"say": ["next"]}).json() == "next"


def test_an_answer_with_a_key_is_ended_at_its_deadline_and_others_have_the_slot(alone: Serving, tmp_path: Path) -> None:
    left, workers = tmp_path / "left", alone.workers()
    body = {"say": ["word"], "times": 5_000_000, "left": str(left), "key": "endless"}
    answer = alone.http.post(SPEAKS, json=body, headers={"Timebound-Timeout-Ms": "500"})
    assert answer.headers["timebound-quality"] == "partial"
    eventually(left.exists, "the generator closed")
    assert alone.http.post(SPEAKS, json={"say": ["next"]}).json() == "next"
    again = alone.http.post(SPEAKS, json=body)
    assert (again.headers["timebound-quality"], again.headers["timebound-source"]) == ("partial", "stored")
    assert [each["pid"] for each in alone.workers()] == [each["pid"] for each in workers]


def test_an_answer_of_more_pieces_than_are_kept_is_an_error(serving: Serving, tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = {"say": ["x"], "times": 3000, "size": 100_000, "left": str(left)}
    answer = serving.http.post(SPEAKS, json=body)
    assert (answer.status_code, answer.json()["code"]) == (500, "model_failed")
    eventually(left.exists, "the generator closed")


def test_pieces_that_are_kept_for_who_comes_by_the_key_count_in_max_held(gate: Gate) -> None:
    with Serving(MODELS / "streams.py", "--workers", "1", "--max-held", "2000000", "--max-body", "1000000") as serving:

        def held() -> float:
            lines = serving.http.get("/metrics").text.splitlines()
            return float(next(line.split()[1] for line in lines if line.startswith("timebound_held_bytes")))

        body = {"say": ["x"], "times": 10, "size": 100_000, "gates": {"9": str(gate.path)}, "key": "k"}
        with asking(serving, SPEAKS, body) as (_, events):
            assert {next(events)[0] for _ in range(9)} == {"piece"}
            eventually(lambda: held() > 800_000, "the pieces in the count")
        gate.open()
        eventually(lambda: held() < 100_000, "all given back")
        # More than there is room for
        told = serving.http.post(SPEAKS, json={"say": ["x"], "times": 30, "size": 100_000, "key": "l"})
        assert (told.status_code, told.json()["code"]) == (503, "memory_full")
        eventually(lambda: held() < 100_000, "all given back")


def test_a_retry_gets_the_kept_answer_as_one_event_and_so_does_who_joins(serving: Serving, gate: Gate) -> None:
    body = {"say": ["one", "two"], "key": "k1", "gates": {"1": str(gate.path)}}
    with ThreadPoolExecutor(1) as pool, asking(serving, SPEAKS, body) as (_, events):
        assert next(events) == ("piece", {"piece": "one"})

        def join() -> list[tuple[str, Any]]:
            with asking(serving, SPEAKS, body) as (_, events):
                return list(events)

        joined = pool.submit(join)
        eventually(lambda: serving.gauge("requests_pending") == 2, "two who wait")
        gate.open()
        pieces(events)
    ((name, said),) = joined.result(PATIENCE_S)
    assert (name, said["answer"], said["source"]) == ("final", "onetwo", "joined")
    with asking(serving, SPEAKS, body) as (_, events):
        ((name, said),) = list(events)
    assert (name, said["answer"], said["source"]) == ("final", "onetwo", "stored")


def test_a_stream_goes_on_where_it_was_after_its_worker_was_killed(alone: Serving, gate: Gate) -> None:
    for path, body in (
        (SPEAKS, {"say": ["one", "two", "three"], "gates": {"2": str(gate.path)}}),
        (BETTER, {"value": 1, "gates": {"2": str(gate.path)}}),
    ):
        gate.open()
        gate.shut()
        with asking(alone, path, body) as (_, events):
            told = [next(events)]
            if path == SPEAKS:
                told.append(next(events))
            (worker,) = alone.workers()
            os.kill(worker["pid"], signal.SIGKILL)
            gate.open()
            told += events
        names = [name for name, _ in told]
        if path == SPEAKS:
            assert (names, [said.get("piece") for _, said in told[:3]]) == (
                ["piece", "piece", "piece", "final"],
                ["one", "two", "three"],
            )
        else:
            assert (names, members(told[-1])) == (["answer", "answer", "final"], members(told[-1]))
            assert [said["members"] for _, said in told] == [1, 2, 3]


def test_a_client_of_http_1_0_gets_events_up_to_the_end_of_the_connection(serving: Serving) -> None:
    request = post(SPEAKS, {"say": ["one"]}, "Accept: text/event-stream").replace(b"HTTP/1.1", b"HTTP/1.0")
    with serving.wire() as wire:
        wire.send(request)
        head, _, body = wire.read_to_end().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body.startswith(b'event: piece\ndata: {"piece":"one"}\n\nevent: final\n')


def test_pipelined_requests_wait_for_the_end_of_a_stream(serving: Serving, gate: Gate) -> None:
    body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
    with serving.wire() as wire:
        wire.send(post(SPEAKS, body, "Accept: text/event-stream"), post(SPEAKS, {"say": ["next"]}, "Connection: close"))
        eventually(lambda: serving.is_holding(running=1), "the first running")
        gate.open()
        said = wire.read_to_end()
    assert said.index(b'"two"') < said.index(b"0\r\n\r\nHTTP/1.1 200") < said.index(b'"next"')


def test_a_reload_lets_a_stream_end(serving: Serving, gate: Gate) -> None:
    body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
    with asking(serving, SPEAKS, body) as (_, events):
        next(events)
        assert serving.operator.post("/v1/reload").status_code == 200
        gate.open()
        found, (name, _) = pieces(events)
    assert (found, name) == (["two"], "final")


def test_a_reader_that_stands_still_is_cut_off_and_memory_stays(serving: Serving, tmp_path: Path) -> None:
    left = tmp_path / "left"
    serving.http.post(SPEAKS, json={"say": ["x"], "times": 5, "size": 100_000})
    before = memory_of(serving.pid)
    with serving.wire() as wire:
        body = {"say": ["x"], "times": 4000, "size": 100_000, "left": str(left)}
        wire.send(post(SPEAKS, body, "Accept: text/event-stream"))
        eventually(left.exists, "the generator closed")
        assert memory_of(serving.pid) - before < 64 << 20  # all of it are 400 MB
        said = wire.read_to_end()
    assert b"event: final" not in said


def test_the_client_for_python_gives_each_event_and_raises_what_goes_wrong(serving: Serving, gate: Gate) -> None:
    with Client(serving.url) as client:
        told = [(event.kind, event.members, event.value) for event in client.stream("better", {"value": 1})]
        assert told[-1] == ("final", 3, {"mean": 3.0})
        body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
        stream = client.stream("speaks", body, key=None)
        assert next(stream).value == "one"
        gate.open()
        assert [(event.kind, event.value, event.is_final) for event in stream] == [
            ("piece", "two", False),
            ("final", None, True),
        ]
        with pytest.raises(ModelFailed):
            list(client.stream("speaks", {"say": ["one", "fail"]}, key=None))
        with pytest.raises(BadRequest) as refused:
            next(client.stream("better", {"value": "x"}))
        assert refused.value.field == "value"


def test_the_awaited_client_gives_each_event_and_raises_what_goes_wrong(serving: Serving, gate: Gate) -> None:
    async def talk() -> None:
        async with AsyncClient(serving.url) as client:
            told = [(event.kind, event.members, event.value) async for event in client.stream("better", {"value": 1})]
            assert told[-1] == ("final", 3, {"mean": 3.0})
            body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
            stream = client.stream("speaks", body, key=None)
            assert (await anext(stream)).value == "one"
            assert {served.name for served in await client.models()} == {"better", "speaks"}, (
                "the loop is free meanwhile"
            )
            gate.open()
            assert [(event.kind, event.value, event.is_final) async for event in stream] == [
                ("piece", "two", False),
                ("final", None, True),
            ]
            with pytest.raises(ModelFailed):
                [event async for event in client.stream("speaks", {"say": ["one", "fail"]}, key=None)]
            with pytest.raises(BadRequest) as refused:
                await anext(client.stream("better", {"value": "x"}))
            assert refused.value.field == "value"

    asyncio.run(talk())


def test_who_leaves_the_awaited_stream_ends_the_generator(alone: Serving, gate: Gate, tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = {"say": ["one", "two"], "times": 1000, "size": 1000, "left": str(left)}

    async def leave() -> None:
        async with AsyncClient(alone.url) as client:
            stream = client.stream("speaks", body, key=None)
            assert (await anext(stream)).kind == "piece"
            await stream.aclose()
            eventually(left.exists, "the generator closed")

    asyncio.run(leave())


def test_a_deadline_between_two_events_is_told_by_the_awaited_client(alone: Serving, gate: Gate) -> None:
    async def wait() -> list[Any]:
        body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
        async with AsyncClient(alone.url) as client:
            return [event async for event in client.stream("speaks", body, key=None, deadline=0.5)]

    events = asyncio.run(wait())
    assert [(event.kind, event.quality) for event in events][-1] == ("final", "partial")


def test_the_api_document_says_that_there_are_events(serving: Serving) -> None:
    paths = serving.http.get("/openapi.json").json()["paths"]
    assert "text/event-stream" in paths[SPEAKS]["post"]["responses"]["200"]["content"]


def test_behind_another_asgi_server_events_come_as_they_are_made(gate: Gate, tmp_path: Path) -> None:
    with hosted(tmp_path, MODELS / "streams.py") as (_, port), httpx.Client(trust_env=False) as http:
        url = f"http://127.0.0.1:{port}"

        def is_up() -> bool:
            try:
                return http.get(f"{url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        eventually(is_up, "the server up", 60)
        body = {"say": ["one", "two"], "gates": {"1": str(gate.path)}}
        with http.stream("POST", f"{url}{SPEAKS}", json=body, headers=EVENTS, timeout=PATIENCE_S) as answer:
            events = events_of(answer)
            assert next(events) == ("piece", {"piece": "one"})
            gate.open()
            assert [name for name, _ in events] == ["piece", "final"]
