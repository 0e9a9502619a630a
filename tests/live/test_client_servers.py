"""A client of several servers: all is answered while one is killed, keys find their server, also behind nginx."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.live.serving import MODELS, Serving, eventually
from tests.live.test_up import Up
from tests.redis_server import RedisServer, free_port

from timebound import AsyncClient, Client
from timebound.client import Answer, Unreachable
from timebound.client.address import read_address
from timebound.client.call import preferred

pytestmark = pytest.mark.live

AT_ONCE = 8
"""Calls in work at the same time, where a server is killed."""


@pytest.mark.parametrize("is_async", [False, True])
def test_all_is_answered_while_one_of_two_servers_is_killed(redis: RedisServer, tmp_path: Path, is_async: bool) -> None:
    # Given: two servers on one Redis, and one client of both
    namespace = f"client-{tmp_path.name}"
    store = ("--store", redis.url, "--store-namespace", namespace, "--store-lease", "1", "--workers", "1")
    environment = {"COMPUTED": str(tmp_path / "computed")}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(Serving(MODELS / "counts.py", *store, environment=environment)) for _ in range(2)
        )
        values = range(1, 201)

        # When: one of them is killed in the middle of 200 calls
        def has_answered() -> bool:
            lines = one.http.get("/metrics").text.splitlines()
            return any(line.startswith("timebound_due_total") and float(line.split()[-1]) > 10 for line in lines)

        def kill() -> None:
            eventually(has_answered, "some of its answers")
            os.kill(one.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        answers = many([one.url, two.url], values, is_async=is_async)
        killer.join()

        # Then: every one has its answer, from both until then, and from the other one after
        assert [answer.value["value"] for answer in answers] == list(values)
        assert {answer.server for answer in answers} == {one.url, two.url}
        assert all(answer.elapsed < 20.0 for answer in answers)
        assert max(answer.attempts for answer in answers) > 1
        with Client(one.url, two.url) as client:
            again = [client.ask("counts", {"value": value, "takes": 0.01}, key=f"k{value}") for value in values]
        # Results are written after the answer: at most those of the killed server's last moment may be missing.
        assert sum(answer.source == "stored" for answer in again) >= len(values) - AT_ONCE


def many(urls: list[str], values: range, *, is_async: bool) -> list[Answer[Any]]:
    """One call per value, a few at a time, by one client."""
    if not is_async:
        with Client(*urls, deadline=20.0) as client, ThreadPoolExecutor(AT_ONCE) as pool:
            return list(
                pool.map(lambda value: client.ask("counts", {"value": value, "takes": 0.01}, key=f"k{value}"), values)
            )

    async def asked() -> list[Answer[Any]]:
        async with AsyncClient(*urls, deadline=20.0, connections=AT_ONCE) as client:
            return await asyncio.gather(
                *(client.ask("counts", {"value": value, "takes": 0.01}, key=f"k{value}") for value in values)
            )

    return asyncio.run(asked())


def test_a_key_comes_back_to_its_server_though_they_share_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        environment = {"COMPUTED": str(tmp_path / "computed")}
        pair = [
            stack.enter_context(Serving(MODELS / "counts.py", "--workers", "1", environment=environment))
            for _ in range(2)
        ]
        urls = [serving.url for serving in pair]
        with Client(*urls) as client, Client(*reversed(urls)) as other:
            first = [client.ask("counts", {"value": value}, key=f"k{value}") for value in range(1, 31)]
            again = [other.ask("counts", {"value": value}, key=f"k{value}") for value in range(1, 31)]
            assert {answer.server for answer in first} == set(urls)
            assert [answer.server for answer in again] == [answer.server for answer in first]
            assert {answer.source for answer in again} == {"stored"}

            # A result is found also where it lies with the server that is not the key's first.
            place = preferred([read_address(url) for url in urls], "elsewhere", lambda: 0.0)[1]
            with Client(urls[place]) as direct:
                direct.ask("counts", {"value": 99}, key="elsewhere")
            assert client.result("counts", "elsewhere").value["value"] == 99


def test_nobody_there_is_said_with_every_address() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with Client(*urls) as client, pytest.raises(Unreachable) as raised:
        client.ask("any", {}, deadline=1.0)
    assert all(f"{url}: connection refused" in str(raised.value) for url in urls)
    assert raised.value.attempts > 2


def test_behind_nginx_all_is_answered_while_a_server_is_killed_and_kept(tmp_path: Path) -> None:
    with Up(tmp_path) as up, Client(f"http://127.0.0.1:{up.port}", deadline=20.0) as client:
        eventually(lambda: len(up.servers()) == 2, "two servers")

        def ask(value: int) -> Answer[Any]:
            return client.ask("counts", {"value": value}, key=f"k{value}")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(ask, range(1, 301))
            os.kill(up.servers()[0], signal.SIGKILL)
            assert [answer.value["value"] for answer in answers] == list(range(1, 301))
            kept = sum(answer.source == "stored" for answer in pool.map(ask, range(1, 301)))
            assert kept >= 300 - AT_ONCE  # all but what the killed server had no time to write
