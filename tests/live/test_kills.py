"""A process is killed at every step of start, reload, recycling and stop: the right number of workers, nothing lost."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.live.serving import eventually
from tests.live.stages import Askers, Later, Stages, at_the_door, kill, settle, understudy, up

pytestmark = pytest.mark.live

LOADING = ("import", "load", "warm-up")


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


# ---------------------------------------------------------------------- start


@pytest.mark.parametrize("step", LOADING)
def test_a_first_worker_killed_before_it_has_loaded_ends_the_start_with_a_sentence(stages: Stages, step: str) -> None:
    with stages.held(step) as open_gate, stages.serve(until_ready=False) as serving:
        kill(stages.await_step(step, after=[]))
        open_gate()
        assert serving.wait() == 2
        assert "the worker process ended before it was ready" in serving.said
        assert serving.processes_left() == []


@pytest.mark.parametrize("step", ["import", "rehearsal"])
def test_an_understudy_killed_at_start_ends_the_start_with_a_sentence(stages: Stages, step: str) -> None:
    with stages.held(step) as open_gate, stages.serve(until_ready=False) as serving:
        first = 0
        if step == "import":
            first = stages.await_step(step, after=[])
            stages.let_through(first)
        kill(stages.await_step(step, after=[first]))
        open_gate()
        assert serving.wait() == 2
        assert "the worker process ended before it was ready" in serving.said
        assert serving.processes_left() == []


def test_a_first_worker_killed_at_the_door_is_replaced_before_the_server_is_ready(stages: Stages) -> None:
    with stages.held("rehearsal") as open_gate, stages.serve(until_ready=False) as serving:
        [first] = eventually(lambda: at_the_door(serving, 1), "the worker at the door, waiting for the understudy")
        kill(first)
        open_gate()
        serving.wait_for_line("ready")
        assert serving.is_ready()
        assert serving.http.post("/predictions/steps", json={"n": 4}).json()["double"] == 8
        settle(serving, 2, generation=1)


@pytest.mark.parametrize("step", LOADING)
def test_a_further_worker_killed_while_it_loads_is_replaced(stages: Stages, step: str) -> None:
    with stages.held(step) as open_gate, stages.serve(until_ready=False) as serving:
        before = [stages.await_step(step, after=[])]
        stages.let_through(before[0])
        if step == "import":
            before.append(stages.await_step(step, after=before))
            stages.let_through(before[1])
        eventually(lambda: up(serving), "the first worker")
        with Askers(serving) as askers:
            kill(stages.await_step(step, after=before))
            open_gate()
            settle(serving, 2, generation=1)
            askers.more()
        askers.check()


def test_workers_killed_with_their_first_batch_are_replaced_and_it_is_answered(stages: Stages) -> None:
    with stages.held("batch") as open_gate, stages.serve() as serving:
        settle(serving, 2, generation=1)
        asked = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "batch"})
        kill(stages.await_step("batch", after=[]))
        open_gate()
        assert asked.answer().json()["double"] == 6
        settle(serving, 2, generation=1)


def test_a_killed_understudy_is_replaced(stages: Stages) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        pid = understudy(serving, 1)
        kill(pid)
        eventually(lambda: understudy(serving, 1) not in (0, pid), "another understudy")
        settle(serving, 2, generation=1)
        askers.more()
    askers.check()


# ---------------------------------------------------------------------- reload


@pytest.mark.parametrize("step", LOADING)
@pytest.mark.parametrize("place", [0, 1])
def test_a_worker_killed_while_a_reload_loads_it_fails_the_reload_and_changes_nothing(
    stages: Stages, step: str, place: int
) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        before, stayed = stages.reached(step), up(serving)
        stages.say("two")
        with stages.held(step) as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            victim = stages.await_step(step, after=before)
            if place:
                stages.let_through(victim)
                before = [*before, victim, eventually(lambda: understudy(serving, 2), "the understudy")]
                stages.let_through(before[-1])
                victim = stages.await_step(step, after=before)
            kill(victim)
            open_gate()
            answer = reload.answer()
        assert (answer.status_code, answer.json()["code"]) == (409, "reload_failed")
        assert "nothing has changed: the worker process ended before it was ready" in answer.json()["detail"]
        settle(serving, 2, generation=1)
        assert up(serving) == stayed
        askers.more()
        # And the next one is as if nothing had been.
        assert serving.operator.post("/v1/reload").status_code == 200
        settle(serving, 2, generation=2)
        askers.more()
    askers.check()
    assert askers.words_since(-3) == {"two"}


@pytest.mark.parametrize("step", ["import", "rehearsal"])
def test_an_understudy_killed_while_a_reload_loads_it_fails_the_reload(stages: Stages, step: str) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        before = stages.reached("import")
        with stages.held(step) as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            if step == "import":
                stages.let_through(stages.await_step(step, after=before))
            pid = eventually(lambda: understudy(serving, 2), "the understudy of the reload")
            eventually(lambda: pid in stages.reached(step), "the understudy at the gate")
            kill(pid)
            open_gate()
            assert reload.answer().status_code == 409
        settle(serving, 2, generation=1)
        askers.more()
    askers.check()
    assert askers.words_since(0) == {"one"}


@pytest.mark.parametrize("victims", [[0], [1], [0, 1]])
def test_workers_killed_at_the_door_of_a_reload_are_replaced_before_it_is_done(
    stages: Stages, victims: list[int]
) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        stages.say("two")
        with stages.held("rehearsal") as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            eventually(lambda: len(at_the_door(serving, 2)) == 2, "both at the door, waiting for the understudy")
            pids = at_the_door(serving, 2)
            for place in victims:
                kill(pids[place])
            killed = {pids[place] for place in victims}
            eventually(lambda: not killed & set(at_the_door(serving, 2)), "the system to tell of their deaths")
            open_gate()
            answer = reload.answer()
        assert answer.status_code == 200, answer.text
        assert len(up(serving, 2)) == 2, "the full number when it says so"
        place = len(askers.answers) + 3
        settle(serving, 2, generation=2)
        askers.more()
    askers.check()
    assert askers.words_since(place) == {"two"}


def test_old_workers_killed_while_they_retire_lose_nothing(stages: Stages) -> None:
    with stages.held("batch") as open_gate, stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "batch"})
        busy = stages.await_step("batch", after=[])
        stages.say("two")
        assert serving.operator.post("/v1/reload").status_code == 200
        eventually(lambda: [w for w in serving.workers() if w["pid"] == busy and w["is_leaving"]], "it is leaving")
        kill(busy)
        open_gate()
        assert held.answer().json() | {"pid": 0} == {"double": 6, "word": "two", "pid": 0}
        settle(serving, 2, generation=2)
        askers.more()
    askers.check()


def test_an_old_worker_killed_while_a_reload_loads_is_replaced_by_new_code_in_the_end(stages: Stages) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        stages.say("two")
        before = stages.reached("load")
        with stages.held("load") as open_gate:
            reload = Later(serving.operator, "/v1/reload")
            stages.let_through(stages.await_step("load", after=before))
            kill(up(serving, 1)[0])  # its replacement, of the old generation, comes to the gate too
            eventually(lambda: len(stages.reached("load")) == len(before) + 3, "two more loading")
            open_gate()
            assert reload.answer().status_code == 200
        settle(serving, 2, generation=2)
        place = len(askers.answers) + 3
        askers.more()
    askers.check()
    assert askers.words_since(place) == {"two"}


# ---------------------------------------------------------------------- recycling


@pytest.mark.parametrize("step", LOADING)
@pytest.mark.parametrize("whom", ["spare", "old", "both"])
def test_a_worker_killed_while_it_is_recycled_leaves_the_right_number(stages: Stages, step: str, whom: str) -> None:
    with stages.serve("--recycle-requests", "50", workers=1) as serving:
        settle(serving, 1, generation=1)
        [old], before = up(serving), stages.reached(step)
        with stages.held(step) as open_gate, Askers(serving) as askers:
            spare = stages.await_step(step, after=before)
            for victim in {"spare": [spare], "old": [old], "both": [spare, old]}[whom]:
                kill(victim)
            open_gate()
            eventually(lambda: spare not in up(serving) or whom == "old", "the spare is gone")
            eventually(lambda: old not in up(serving) or whom == "spare", "the old one is gone")
        settle(serving, 1, generation=1)
        askers.check()


def test_a_recycled_worker_killed_while_it_retires_loses_nothing(stages: Stages) -> None:
    with stages.held("batch") as open_gate, stages.serve("--recycle-after", "2", workers=1) as serving:
        settle(serving, 1, generation=1)
        [old] = up(serving)
        held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "batch"})
        stages.await_step("batch", after=[])
        eventually(lambda: [w for w in serving.workers() if w["pid"] == old and w["is_leaving"]], "it is leaving")
        kill(old)
        open_gate()
        assert held.answer().json()["double"] == 6
        eventually(lambda: len(up(serving)) == 1, "one worker")


# ---------------------------------------------------------------------- stop


@pytest.mark.parametrize("whom", ["worker", "understudy", "other"])
def test_who_is_killed_while_the_server_drains_loses_nothing(stages: Stages, whom: str) -> None:
    with stages.held("batch") as open_gate, stages.serve() as serving:
        settle(serving, 2, generation=1)
        held = Later(serving.http, "/predictions/steps", {"n": 3, "gate": "batch"})
        busy = stages.await_step("batch", after=[])
        others = [pid for pid in up(serving) if pid != busy]
        aide = understudy(serving, 1)
        serving.signal(signal.SIGTERM)
        serving.wait_for_line("finishing open requests")
        kill({"worker": busy, "understudy": aide, "other": others[0]}[whom])
        open_gate()
        assert held.answer().json()["double"] == 6
        assert serving.wait() == 0
        assert serving.processes_left() == []


@pytest.mark.parametrize("step", [*LOADING, "rehearsal"])
@pytest.mark.parametrize("when", ["start", "reload"])
def test_a_stop_while_something_loads_leaves_nobody_behind(stages: Stages, step: str, when: str) -> None:
    with ExitStack() as stack:
        if when == "start":
            stack.enter_context(stages.held(step))
        serving = stack.enter_context(stages.serve(until_ready=when == "reload"))
        if when == "reload":
            settle(serving, 2, generation=1)
        before = stages.reached(step) if when == "reload" else []
        with stages.held(step):
            if when == "reload":
                reload = Later(serving.operator, "/v1/reload")
            stages.await_step(step, after=before)
            serving.signal(signal.SIGTERM)
            if when == "reload":
                answer = reload.answer()
                assert (answer.status_code, answer.json()["code"]) == (409, "reload_failed")
                assert "the server is stopping" in answer.json()["detail"]
            assert serving.wait() == 0
            assert serving.processes_left() == []
        assert "Traceback" not in serving.said
