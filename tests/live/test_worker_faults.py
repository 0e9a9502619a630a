"""Batches that kill their worker or hang, in real processes: nothing is lost, and only the guilty suffers."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.live.gate import Gate
from tests.live.serving import MODELS, Serving, eventually
from tests.live.wire import Wire, post
from tests.models.onnx_files import save_doubler

from timebound.workers.child import is_stopped

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
        eventually(lambda: is_stopped(pid), "the worker to stand still")
        answer = ask(serving, 7)
        assert (answer.status_code, answer.json()) == (200, 7)
        assert pid not in worker_pids(serving)
        assert serving.wait_for_line("a batch was lost")["loss"] == "stopped"


@pytest.mark.parametrize("harm", ["crash", "exit"])
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
        assert (answers[3].status, answers[3].json()["code"]) == (500, "crashes_worker")
        # And the same body is told so at once, without another death
        deaths = serving.gauge("worker_deaths_total")
        again = ask(serving, 3, harm)
        assert (again.status_code, again.json()["code"]) == (500, "crashes_worker")
        assert ask(serving, 8).json() == 8
        assert serving.gauge("worker_deaths_total") == deaths <= 4


def test_a_process_that_the_model_forks_answers_nobody_and_computes_nothing_again(gate: Gate) -> None:
    with Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1") as serving, ThreadPoolExecutor(9) as pool:
        before, (worker,) = serving.processes_left(), serving.workers()
        first = pool.submit(serving.http.post, PATH, json={"value": 0, "gate": str(gate.path)})
        eventually(lambda: serving.is_holding(running=1), "that the first is computed")
        forking = [pool.submit(serving.http.post, PATH, json={"value": n, "harm": "fork"}) for n in range(1, 9)]
        eventually(lambda: serving.is_holding(running=1, queued=8), "that the others wait")
        gate.open()
        assert [answer.result().json() for answer in (first, *forking)] == [*range(9)]
        eventually(lambda: sorted(serving.processes_left()) == sorted(before), "that what was forked has left")
        assert serving.workers()[0]["pid"] == worker["pid"]
        assert not serving.lines("slot 1.0 breaks")


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
        assert guilty.read().json()["code"] == "crashes_worker"


def test_other_workers_serve_while_one_is_being_killed() -> None:
    flags = ("--workers", "2", "--slots", "1", "--deadline", "2")
    with Serving(MODELS / "breaks.py", *flags) as serving, serving.wire() as wire:
        eventually(lambda: serving.gauge("workers_up") == 2, "both workers")
        teach(serving)
        wire.send(post(PATH, {"value": 1, "harm": "hang"}))
        eventually(lambda: serving.is_holding(running=1), "it is in its worker, alone")
        for value in range(30):
            assert ask(serving, value).json() == value
            assert serving.is_ready()
        assert wire.read().status == 504


def test_a_batch_too_large_for_the_memory_is_computed_in_parts_and_the_next_are_smaller(gate: Gate) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1"))
        teach(serving)
        wires: list[Wire] = [stack.enter_context(serving.wire()) for _ in range(9)]
        wires[0].send(post(PATH, {"value": 0, "gate": str(gate.path)}))
        eventually(lambda: serving.is_holding(running=1), "the first request in the worker")
        for value in range(1, 9):
            wires[value].send(post(PATH, {"value": value, "harm": "memory"}))
        eventually(lambda: serving.gauge("requests_pending") == 9, "all requests")
        gate.open()
        assert [wire.read().json() for wire in wires] == list(range(9))
        assert serving.wait_for_line("memory is short")["most"] <= 4
        assert serving.gauge("worker_deaths_total") == 0


@pytest.mark.parametrize(
    ("flags", "harm"), [(("--recycle-requests", "20"), ""), (("--recycle-memory", "250MB"), "leak")]
)
def test_a_worker_past_its_limit_is_replaced_and_nobody_notices(flags: tuple[str, str], harm: str) -> None:
    with Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1", *flags) as serving:
        (old,) = serving.workers()
        assert old["memory_bytes"] > 1_000_000
        assert f'timebound_worker_memory_bytes{{worker="{old["worker"]}"}}' in serving.http.get("/metrics").text
        for value in range(25):
            assert ask(serving, value, harm if value in (1, 2) else "").json() == value

        def is_replaced() -> bool:
            assert ask(serving, 1).json() == 1
            assert serving.is_ready()
            return old["pid"] not in [worker["pid"] for worker in serving.workers()]

        eventually(is_replaced, "another worker in its place")
        assert serving.gauge("worker_deaths_total") == 0
        assert serving.wait_for_line("recycling a worker")["worker"] == old["worker"]


def test_readiness_says_which_worker_ended_and_how() -> None:
    with Serving(MODELS / "breaks.py", "--workers", "1", "--slots", "1") as serving:
        for number in range(3):  # until the pause before the next one is long enough to be seen
            (pid,) = eventually(lambda: worker_pids(serving), "a worker")
            os.kill(pid, signal.SIGKILL)
            eventually(partial(is_gone, serving, pid), "its end")
            if number < 2:
                eventually(serving.is_ready, "the next one")
        reason = eventually(lambda: _reason(serving), "the reason")
        assert "was ended by SIGKILL" in reason
        assert "the next one starts in" in reason


def is_gone(serving: Serving, pid: int) -> bool:
    return pid not in worker_pids(serving)


def _reason(serving: Serving) -> str:
    answer = serving.http.get("/readyz")
    return answer.text if "SIGKILL" in answer.text else ""


def test_a_worker_comes_back_though_a_model_that_an_engine_is_for_has_gone(tmp_path: Path) -> None:
    save_doubler(tmp_path / "stays.onnx")
    save_doubler(tmp_path / "goes.onnx")
    with Serving(tmp_path, "--workers", "1", "--engine", "goes=onnxruntime") as serving:
        (pid,) = worker_pids(serving)
        (tmp_path / "goes.onnx").unlink()
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: worker_pids(serving) not in ([], [pid]), "another worker")
        assert serving.is_ready()
