"""Reloads that are asked for together, or hang: one after the other, and always the newest code that can be loaded."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.live.serving import Serving, eventually
from tests.live.stages import Askers, Stages, kill, settle, up
from tests.live.test_reload import write

pytestmark = pytest.mark.live


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


@contextmanager
def reloading(serving: Serving, times: int) -> Iterator[list[httpx.Response]]:
    """So many reloads at once, each on a connection of its own; their answers are there after the block."""
    answers: list[httpx.Response] = []

    def reload() -> None:
        with serving.by_socket(timeout=60) as client:
            answers.append(client.post("/v1/reload"))

    threads = [threading.Thread(target=reload) for _ in range(times)]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join()


def test_reloads_that_race_each_other_end_with_the_wanted_number_of_the_newest_code(stages: Stages) -> None:
    with stages.serve() as serving, Askers(serving) as askers:
        settle(serving, 2, generation=1)
        # Given a reload that holds at its door, with the code of then
        stages.say("two")
        with stages.held("rehearsal") as open_gate, reloading(serving, 1) as first:
            eventually(lambda: any(w["generation"] == 2 and w["slots"] for w in serving.workers()), "the reload")
            # When others are asked for in every way, after the code has changed again
            stages.say("three")
            with reloading(serving, 8) as others:
                serving.signal(signal.SIGHUP)
                serving.signal(signal.SIGHUP)
                open_gate()
        # Then all are done, and they shared what they could share: all they asked for is the newest code
        assert [answer.status_code for answer in (*first, *others)] == [200] * 9
        eventually(lambda: {w["generation"] for w in serving.workers()} <= {3, 4}, "one or two more generations")
        generation = max(w["generation"] for w in serving.workers())
        settle(serving, 2, generation)
        place = len(askers.answers) + 3
        askers.more(50)
    askers.check()
    assert askers.words_since(place) == {"three"}


def test_what_is_asked_for_while_the_server_starts_waits_until_it_has_started(stages: Stages) -> None:
    with stages.held("load") as open_gate, stages.serve(until_ready=False) as serving:
        stages.await_step("load", [])
        with reloading(serving, 2) as answers:
            serving.signal(signal.SIGHUP)
            for _ in range(3):
                assert serving.operator.get("/livez").status_code == 200  # by now it has heard the others
            stages.say("two")
            open_gate()
        assert [answer.status_code for answer in answers] == [200, 200]
        settle(serving, 2, generation=2)  # one for all: none was begun before the first was there
        assert serving.http.post("/predictions/steps", json={"n": 1}).json()["word"] == "two"


def test_a_load_that_hangs_fails_the_reload_in_time_and_the_next_one_is_done(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file, "--workers", "2", "--load-timeout", "3") as serving:
        settle(serving, 2, generation=1)
        stayed = up(serving)
        loads = tmp_path / "loads"
        write(file, "two", load=f"open({str(loads)!r}, 'w').close(); time.sleep(1000)")
        with reloading(serving, 1) as hung:
            eventually(loads.exists, "the reload hangs")
            write(file, "three")
            with reloading(serving, 1) as second:  # asked for while the other one hangs
                pass
        assert (hung[0].status_code, hung[0].json()["code"]) == (409, "reload_failed")
        assert "after 3 s (--load-timeout)" in hung[0].json()["detail"]
        assert second[0].status_code == 200
        assert serving.http.post("/predictions/word", json={"n": 1}).json()["word"] == "three"
        eventually(lambda: not set(stayed) & set(up(serving)), "the old ones are gone")
        settle(serving, 2, generation=max(worker["generation"] for worker in serving.workers()))


def test_a_load_that_hangs_at_start_ends_it_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one", load="time.sleep(1000)")
    with Serving(file, "--load-timeout", "1", until_ready=False) as serving:
        assert serving.wait() == 2
        assert "after 1 s (--load-timeout)" in serving.said
        assert serving.processes_left() == []


PREPARES = """
import time
import timebound as tb
from timebound.devices.base import expect

class Long:
    def settle(self, most, in_flight, tell):
        for turn in range({turns}):
            tell(f"capturing, about {{{turns} - turn}} s left")
            time.sleep({pause})

class Word(tb.Model):
    example = {{"n": 1}}

    class Request(tb.Struct):
        n: int

    def load(self):
        expect(Long())

    def infer(self, batch):
        return [{{"word": "one"}} for _ in batch]
"""


def test_a_worker_that_says_how_far_it_is_may_take_longer_and_readyz_says_it_too(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(PREPARES.format(turns=5, pause=1.0))
    with Serving(file, "--workers", "1", "--load-timeout", "3", until_ready=False) as serving:
        told = eventually(lambda: serving.http.get("/readyz").json().get("progress"), "how far it is")
        assert re.fullmatch(r"word: capturing, about \d s left", told)
        eventually(serving.is_ready, "a worker that took five seconds")


def test_a_worker_that_hangs_after_a_word_is_ended_with_that_word(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(PREPARES.format(turns=1, pause=1000))
    with Serving(file, "--load-timeout", "2", until_ready=False) as serving:
        assert serving.wait() == 2
        assert "after 2 s (--load-timeout); it last said: word: capturing, about 1 s left" in serving.said


def test_a_replacement_that_hangs_while_loading_is_ended_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    write(file, "one")
    with Serving(file, "--workers", "1", "--load-timeout", "2") as serving:
        settle(serving, 1, generation=1)
        write(file, "one", load="time.sleep(1000)")
        kill(up(serving)[0])
        assert "(--load-timeout)" in serving.wait_for_line("worker 3 cannot load")["message"]
        write(file, "one")
        eventually(serving.is_ready, "a worker that loads")


def test_a_change_seen_while_a_reload_is_under_way_is_loaded_after_it(tmp_path: Path) -> None:
    """`--watch` must not forget a change because somebody else's reload was in the way."""
    file = tmp_path / "app.py"
    gate, loads = tmp_path / "gate", tmp_path / "loads"
    gate.touch()
    write(file, "one")
    slow = (
        f"import os; open({str(loads)!r}, 'w').close()\n        while os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    with Serving(file, "--workers", "1", "--watch") as serving:
        write(file, "two", load=slow)
        eventually(loads.exists, "the change is seen, and loads")
        with reloading(serving, 1) as asked:
            write(file, "three")
            gate.unlink()
        assert asked[0].status_code == 200

        def word() -> Any:
            return serving.http.post("/predictions/word", json={"n": 1}).json()["word"]

        eventually(lambda: word() == "three", "the newest code")
