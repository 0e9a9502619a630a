"""Batches that kill their worker or hang, in real processes: nothing is lost, and only the guilty suffers."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import Wire, post

pytestmark = pytest.mark.live

PATH = "/predictions/breaks"


def ask(serving: Serving, value: int, harm: str = "") -> httpx.Response:
    return serving.http.post(PATH, json={"value": value, "harm": harm})


def teach(serving: Serving) -> None:
    """Let it see how long batches take, so that it can tell a hang."""
    for value in range(6):
        assert ask(serving, value).json() == value


def worker_pids(serving: Serving) -> list[int]:
    return [worker["pid"] for worker in serving.workers() if worker["is_up"] and not worker["is_understudy"]]


def test_a_worker_that_was_stopped_is_replaced_and_its_request_answered() -> None:
    with Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1") as serving:
        teach(serving)
        (pid,) = worker_pids(serving)
        os.kill(pid, signal.SIGSTOP)
        answer = ask(serving, 7)
        assert (answer.status_code, answer.json()) == (200, 7)
        assert pid not in worker_pids(serving)
        assert serving.lines("a batch was lost")[0]["loss"] == "stopped"


@pytest.mark.parametrize("harm", ["hang", "crash", "exit"])
def test_only_the_guilty_item_of_a_batch_fails_and_it_is_not_run_again(gate: Gate, harm: str) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1"))
        teach(serving)
        wires: list[Wire] = [stack.enter_context(serving.wire()) for _ in range(6)]
        # Given a batch that has one harmful item among others
        wires[0].send(post(PATH, {"value": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        for value in range(1, 6):
            wires[value].send(post(PATH, {"value": value, "harm": harm if value == 3 else ""}))
        eventually(lambda: serving.gauge("requests_pending") == 6, "all requests")
        gate.open()
        # Then the others are answered by the model
        answers = [wire.read() for wire in wires]
        assert [answer.json() for value, answer in enumerate(answers) if value != 3] == [0, 1, 2, 4, 5]
        assert (answers[3].status, answers[3].json()["code"]) == (500, "poison")
        # And the same body is told so at once, without another death
        deaths = serving.gauge("worker_deaths_total")
        again = ask(serving, 3, harm)
        assert (again.status_code, again.json()["code"]) == (500, "poison")
        assert ask(serving, 8).json() == 8
        assert serving.gauge("worker_deaths_total") == deaths <= 4


def test_a_request_in_another_slot_of_the_worker_is_answered(gate: Gate) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "2"))
        teach(serving)
        innocent, guilty = (stack.enter_context(serving.wire()) for _ in range(2))
        innocent.send(post(PATH, {"value": 1, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the innocent request in the worker")
        guilty.send(post(PATH, {"value": 2, "harm": "crash"}))
        serving.wait_for_line("a batch was lost")
        gate.open()
        assert innocent.read().json() == 1
        assert guilty.read().json()["code"] == "poison"


def test_other_workers_serve_while_one_is_being_killed() -> None:
    with Serving(MODELS / "breaks.py", "--workers", "2", "--slots", "1") as serving, serving.wire() as wire:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers")
        teach(serving)
        wire.send(post(PATH, {"value": 1, "harm": "hang"}))
        for value in range(30):
            assert ask(serving, value).json() == value
            assert serving.is_ready()
        assert wire.read().json()["code"] == "poison"
