"""Work that is slow for an honest reason is waited for: no worker is killed for it, and nobody is called poison."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
import pytest
from tests.live.serving import MODELS, Serving

pytestmark = pytest.mark.live

PATH = "/predictions/patient"


async def ask_for(seconds: float, serving: Serving) -> list[tuple[float, str]]:
    """Bursts of all sizes up to twelve: of each request when it was sent, and its quality."""
    answers: list[tuple[float, str]] = []
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=serving.url, timeout=30.0, trust_env=False) as client:

        async def one(value: int) -> None:
            sent = time.monotonic()
            answer = await client.post(PATH, json={"value": value})
            quality = answer.headers.get("timebound-quality", str(answer.status_code))
            assert answer.json() == value or quality != "full"
            answers.append((sent - began, quality))

        async with asyncio.TaskGroup() as tasks:
            turn = 0
            while (passed := time.monotonic() - began) < seconds:
                for value in range(1 + turn % 12):
                    tasks.create_task(one(100 * turn + value))
                turn += 1
                await asyncio.sleep(max(0.0, 0.2 * turn - passed))
    return answers


def counted(serving: Serving, name: str) -> float:
    """A counter over all versions: a 504 is nobody's answer, and has none."""
    lines = serving.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(f"timebound_{name}"))


def test_a_model_that_is_slow_once_at_each_batch_size_comes_up_and_serves() -> None:
    flags = ("--workers", "1", "--slots", "1")
    with Serving(MODELS / "patient.py", *flags, environment={"FIRST_S": "1.2"}) as serving:
        answers = asyncio.run(ask_for(12.0, serving))
        assert serving.gauge("worker_deaths_total") == 0
        assert counted(serving, 'request_seconds_count{model="patient"') == len(answers)
        # A few 504s and late answers are no wonder where other tests take the cores from whoever computes fallbacks
        assert counted(serving, 'request_seconds_bucket{le="1.0",model="patient"') > 0.97 * len(answers)
    # Everybody was told in time, with the fallback's quality while it warmed up and the model's from then on
    counts = Counter(quality for _, quality in answers)
    assert counts["full"] + counts["fallback"] > 0.97 * len(answers)
    assert counts.keys() <= {"full", "fallback", "504"}
    assert Counter(quality for sent, quality in answers if sent > 10.5).keys() == {"full"}


def test_a_slow_request_among_fast_ones_has_the_time_it_asked_for_and_is_never_poison() -> None:
    flags = ("--workers", "1", "--slots", "1")
    with Serving(MODELS / "patient.py", *flags, environment={"LOAD_S": "1"}) as serving:
        for value in range(50):
            assert serving.http.post(PATH, json={"value": value}).json() == value
        for _ in range(3):
            slow = serving.http.post(PATH, json={"value": 7, "takes_s": 2.0}, headers={"Timebound-Timeout-Ms": "10000"})
            assert (slow.status_code, slow.json()) == (200, 7)
            assert slow.headers["timebound-quality"] == "full"
            assert serving.http.post(PATH, json={"value": 8}).json() == 8
        assert serving.gauge("worker_deaths_total") == 0
