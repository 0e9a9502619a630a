"""A model's `fetch` waits for the world without a slot: many at once, in time, called off, and again after a loss."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import MODELS, Serving, eventually

import timebound as tb

pytestmark = pytest.mark.live

TARGET = MODELS / "fetches.py"
PATH = "/predictions/fetches"


@pytest.fixture(scope="module")
def fetching() -> Iterator[Serving]:
    with Serving(TARGET, "--workers", "1", "--slots", "1") as serving:
        yield serving


def words(log: Path) -> list[str]:
    return log.read_text().split("\n")[:-1] if log.exists() else []


def fetcher(serving: Serving) -> int:
    found = [worker["pid"] for worker in serving.workers() if worker["role"] == "fetcher" and worker["is_up"]]
    return int(found[0]) if found else 0


def test_200_that_wait_300_ms_are_done_within_a_second_and_hold_no_slot(fetching: Serving) -> None:
    took, beside_s, answers = min((asyncio.run(flood(fetching.port)) for _ in range(3)), key=lambda run: run[0])
    assert [answer["page"] for answer in answers] == [f"page of {number}" for number in range(200)]
    assert took < 1.0
    assert beside_s < 0.3, "the one slot was free while they waited"


async def flood(port: int) -> tuple[float, float, list[Any]]:
    """How long 200 took, and one beside them that waits for nothing; and what they were answered."""
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(201)]

    async def ask(place: int, body: Any) -> tuple[float, Any]:
        reader, writer = lines[place]
        data = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        writer.write(head.encode() + b"\r\n\r\n" + data)
        said = await reader.readuntil(b"\r\n\r\n")
        length = int(said.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return time.monotonic(), json.loads(await reader.readexactly(length))

    start = time.monotonic()
    slow = [asyncio.create_task(ask(place, {"wait": 0.3, "what": str(place)})) for place in range(200)]
    await asyncio.sleep(0)
    beside = await ask(200, {"what": "beside"})
    answers = [await each for each in slow]
    for _, writer in lines:
        writer.close()
    return max(at for at, _ in answers) - start, beside[0] - start, [answer for _, answer in answers]


def test_what_goes_wrong_costs_its_own_request_alone(fetching: Serving) -> None:
    bodies = [{"what": "bad"}, {"what": "fine"}, {"what": "broken"}, {"what": "fine too"}]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: fetching.http.post(PATH, json=body), bodies))
    assert [answer.status_code for answer in answers] == [422, 200, 500, 200]
    assert answers[0].json()["field"] == "what"
    assert answers[2].json()["code"] == "model_failed"


def test_it_is_called_off_when_the_deadline_is_over_and_the_refusal_is_in_time(
    fetching: Serving, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    answer = fetching.http.post(PATH, json={"wait": 30, "log": str(log)}, headers={"Timebound-Timeout-Ms": "400"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_missed")
    assert "while what it needs was fetched" in answer.json()["detail"]
    assert answer.elapsed.total_seconds() < 0.6
    eventually(lambda: words(log) == ["begun", "called off"], "that it was called off")


def test_it_is_called_off_when_the_client_leaves(fetching: Serving, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with httpx.Client(base_url=fetching.url, timeout=0.3) as client, pytest.raises(httpx.ReadTimeout):
        client.post(PATH, json={"wait": 30, "log": str(log)}, headers={"Timebound-Timeout-Ms": "60000"})
    eventually(lambda: words(log) == ["begun", "called off"], "that it was called off")


def test_a_retry_with_the_same_key_joins_what_is_fetched(fetching: Serving, tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = {"wait": 0.5, "what": "once", "id": "one", "log": str(log)}
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: fetching.http.post(PATH, json=body), range(2)))
    assert [answer.json()["page"] for answer in answers] == ["page of once"] * 2
    assert {answer.headers["timebound-source"] for answer in answers} == {"computed", "joined"}
    assert words(log) == ["begun"]
    assert fetching.http.post(PATH, json=body).headers["timebound-source"] == "stored"


def test_a_killed_process_is_replaced_and_what_it_fetched_is_fetched_again(fetching: Serving, tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = {"wait": 1.0, "what": "again", "log": str(log)}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fetching.http.post, PATH, json=body, headers={"Timebound-Timeout-Ms": "20000"})
        eventually(lambda: words(log) == ["begun"], "that it is fetched")
        os.kill(before := fetcher(fetching), signal.SIGKILL)
        assert answer.result().json()["page"] == "page of again"
    assert words(log) == ["begun", "begun"]
    assert eventually(lambda: fetcher(fetching), "the next process") != before


def test_an_exit_in_a_task_of_one_costs_the_others_no_answer(fetching: Serving, tmp_path: Path) -> None:
    log, limit = tmp_path / "log", {"Timebound-Timeout-Ms": "20000"}
    body = {"wait": 1.0, "what": "beside an exit", "log": str(log)}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(fetching.http.post, PATH, json=body, headers=limit)
        eventually(lambda: words(log) == ["begun"], "that it is fetched")
        soon = {"Timebound-Timeout-Ms": "100"}
        assert fetching.http.post(PATH, json={"what": "exits beside"}, headers=soon).status_code >= 500
        assert answer.result().json().get("page") == "page of beside an exit"


def test_a_fetch_that_holds_up_all_others_ends_its_process_and_later_ones_are_served(fetching: Serving) -> None:
    answer = fetching.http.post(PATH, json={"what": "holds up"})
    assert answer.status_code in (500, 504)
    assert answer.elapsed.total_seconds() < 2.2
    later = fetching.http.post(PATH, json={"what": "later"}, headers={"Timebound-Timeout-Ms": "20000"})
    assert later.json()["page"] == "page of later"


def test_a_request_that_ends_the_process_costs_the_others_no_answer_and_is_found_out(tmp_path: Path) -> None:
    log, limit = tmp_path / "log", {"Timebound-Timeout-Ms": "20000"}
    deadly = {"what": "ends it"}
    with Serving(TARGET, "--workers", "1", "--slots", "1") as serving, ThreadPoolExecutor(2) as pool:
        body = {"wait": 1.0, "what": "beside", "log": str(log)}
        answer = pool.submit(serving.http.post, PATH, json=body, headers=limit)
        eventually(lambda: words(log) == ["begun"], "that it is fetched")
        found = serving.http.post(PATH, json=deadly, headers=limit)
        assert (found.status_code, found.json()["code"]) == (500, "crashes_worker")
        assert answer.result().json().get("page") == "page of beside"
        assert len(words(log)) == 3, "what ended twice was alone to blame, and is not tried a third time"
        before = eventually(lambda: fetcher(serving), "the next process")
        assert serving.http.post(PATH, json=deadly, headers=limit).json()["code"] == "crashes_worker"
        assert fetcher(serving) == before


def test_of_requests_that_are_much_alike_those_that_end_the_process_are_told_from_the_others() -> None:
    limit = {"Timebound-Timeout-Ms": "20000"}
    with Serving(TARGET, "--workers", "1", "--slots", "1") as serving:
        for number in range(6):
            deadly = serving.http.post(PATH, json={"what": "ends it", "wait": number / 1e3}, headers=limit)
            assert deadly.json()["code"] == "crashes_worker"
            for other in range(10):
                body = {"what": "is fine", "wait": (10 * number + other) / 1e4}
                assert serving.http.post(PATH, json=body, headers=limit).json().get("page") == "page of is fine"


def test_it_works_by_query_by_list_and_through_a_reload(fetching: Serving) -> None:
    assert fetching.http.get(PATH, params={"what": "asked"}).json()["page"] == "page of asked"
    several = fetching.http.post(f"{PATH}:batch", json=[{"what": "a"}, {"what": "bad"}])
    assert (several.json()[0]["page"], several.json()[1]["error"]["code"]) == ("page of a", "bad_input")
    with ThreadPoolExecutor(1) as pool:
        limit = {"Timebound-Timeout-Ms": "20000"}
        slow = pool.submit(fetching.http.post, PATH, json={"wait": 1.5, "what": "during"}, headers=limit)
        assert fetching.operator.post("/v1/reload").status_code == 200
        assert slow.result().json()["page"] == "page of during"
    assert fetching.http.post(PATH, json={"what": "after"}).json()["page"] == "page of after"


def test_it_works_in_a_gateway_without_a_port() -> None:
    async def ask() -> Any:
        async with tb.Gateway(TARGET, workers=1) as gateway:
            return (await gateway.ask("fetches", {"what": "inside"})).value

    assert asyncio.run(ask())["page"] == "page of inside"
