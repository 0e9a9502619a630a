"""Those beside the workers are killed as well: the fetcher, a reload's understudy, a spare between its last steps."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.live.serving import Serving, eventually
from tests.live.stages import Askers, Later, Stages, beside, kill, settle, understudy, up

pytestmark = pytest.mark.live

LOADING = ("import", "load", "warm-up")


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


def state_of(pid: int) -> str:
    """As the kernel tells it; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def await_rest(pid: int) -> None:
    """Return when this process has done all that it can do by itself: it has used no processor for half a second."""

    def used() -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]

    before, looks, pause = used(), 0, threading.Event()
    while looks < 25:
        pause.wait(0.02)  # that it stands still can only be seen by looking again
        before, looks = (now := used()), looks + 1 if now == before else 0


def the_fetcher(serving: Serving, generation: int) -> int:
    return eventually(lambda: beside(serving, "fetcher", generation), f"the fetcher of generation {generation}")


# ---------------------------------------------------------------------- the fetcher


def test_a_fetcher_killed_at_start_ends_the_start_with_a_sentence(stages: Stages) -> None:
    with stages.held("import") as open_gate, stages.serve(until_ready=False, fetches=True) as serving:
        stages.let_through(stages.await_step("import", after=[]))
        pid = the_fetcher(serving, 1)
        eventually(lambda: pid in stages.reached("import"), "the fetcher at the gate")
        kill(pid)
        open_gate()
        assert serving.wait() == 2
        assert "the worker process ended before it was ready" in serving.said
        assert serving.processes_left() == []


def test_a_fetcher_killed_while_a_reload_loads_it_fails_the_reload(stages: Stages) -> None:
    with stages.serve(fetches=True) as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1, others=2)
        before = stages.reached("import")
        with stages.held("import") as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            stages.let_through(stages.await_step("import", after=before))
            pid = the_fetcher(serving, 2)
            eventually(lambda: pid in stages.reached("import"), "the fetcher at the gate")
            kill(pid)
            open_gate()
            assert reload.answer().status_code == 409
        settle(serving, 2, generation=1, others=2)
        askers.more()
    askers.check()


def test_a_fetcher_killed_with_a_request_is_replaced_and_it_is_fetched_again(stages: Stages) -> None:
    with stages.held("fetch") as open_gate, stages.serve(fetches=True) as serving:
        settle(serving, 2, generation=1, others=2)
        held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "fetch"})
        kill(stages.await_step("fetch", after=[]))
        open_gate()
        assert held.answer().json()["double"] == 6
        settle(serving, 2, generation=1, others=2)


def test_a_fetcher_killed_while_the_server_drains_loses_nothing(stages: Stages) -> None:
    with stages.held("fetch") as open_gate, stages.serve(fetches=True) as serving:
        settle(serving, 2, generation=1, others=2)
        held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "fetch"})
        pid = stages.await_step("fetch", after=[])
        serving.signal(signal.SIGTERM)
        serving.wait_for_line("finishing open requests")
        kill(pid)
        open_gate()
        assert held.answer().json()["double"] == 6
        assert serving.wait() == 0
        assert serving.processes_left() == []


# ---------------------------------------------------------------------- the understudy of a reload


@pytest.mark.parametrize("when", ["at the door", "as it opens"])
def test_an_understudy_killed_when_the_doors_change_is_replaced_and_the_reload_is_done(
    stages: Stages, when: str
) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        stages.say("two")
        before = stages.reached("load")
        with stages.held("load") as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            first = stages.await_step("load", after=before)
            stages.let_through(first)
            last = stages.await_step("load", after=[*before, first, understudy(serving, 2)])
            pid = eventually(lambda: understudy(serving, 2), "the understudy of the reload")
            stages.let_through(pid)
            eventually(lambda: pid in stages.reached("rehearsal"), "its rehearsal")
            await_rest(pid)
            if when == "at the door":
                kill(pid)
                eventually(lambda: understudy(serving, 2) != pid, "the system to tell of its death")
            stages.let_through(last)
            if when == "as it opens":
                eventually(lambda: up(serving, 2), "the first new worker that takes batches")
                kill(pid)
            open_gate()
            assert reload.answer().status_code == 200
        eventually(lambda: understudy(serving, 2) not in (0, pid), "another understudy")
        settle(serving, 2, generation=2)
        askers.more()
    askers.check()
    assert askers.words_since(-3) == {"two"}


# ---------------------------------------------------------------------- recycling


def test_a_spare_killed_between_ready_and_taking_over_leaves_the_right_number(stages: Stages) -> None:
    with stages.serve("--recycle-requests", "50", workers=1) as serving:
        settle(serving, 1, generation=1)
        [old], before = up(serving), stages.reached("warm-up")
        with stages.held("warm-up") as open_gate, Askers(serving) as askers:
            spare = stages.await_step("warm-up", after=before)
            os.kill(serving.pid, signal.SIGSTOP)  # it reads that the spare is ready only when that is dead
            open_gate()
            await_rest(spare)
            kill(spare)
            eventually(lambda: state_of(spare) in "ZX", "its end")
            serving.signal(signal.SIGCONT)
            eventually(lambda: old not in up(serving), "another one that took over")
            askers.more()
        settle(serving, 1, generation=1)
        askers.check()


@pytest.mark.parametrize("step", LOADING)
def test_a_stop_while_a_worker_is_recycled_answers_what_is_open_and_leaves_nobody_behind(
    stages: Stages, step: str
) -> None:
    with stages.serve("--recycle-after", "1", workers=1) as serving:
        settle(serving, 1, generation=1)
        before = stages.reached(step)
        with stages.held(step), stages.held("batch") as open_gate:
            held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "batch"})
            stages.await_step("batch", after=[])
            stages.await_step(step, after=before)
            serving.signal(signal.SIGTERM)
            serving.wait_for_line("finishing open requests")
            open_gate()
            assert held.answer().json()["double"] == 6
            assert serving.wait() == 0
            assert serving.processes_left() == []
        assert "Traceback" not in serving.said
