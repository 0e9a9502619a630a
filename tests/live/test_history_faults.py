"""A history that cannot be written, and a server that is killed: answers go on, and hardly anything is lost."""

from __future__ import annotations

import resource
import signal
import time
from pathlib import Path

import httpx
import pytest
from tests.live.serving import MODELS, Serving, eventually
from tests.observe.damage import damage
from tests.observe.test_journal import World

from timebound.observe.filter import filter_of
from timebound.observe.history import History
from timebound.observe.ledger import files

pytestmark = pytest.mark.live

BODY = {"x": 1.0, "secret": "", "id": None}


def ask(serving: Serving, name: str) -> int:
    """A request of this id, under no key; its status."""
    return serving.http.post("/votes", json=BODY, headers={"X-Request-Id": name}).status_code


def kept(folder: Path) -> set[str]:
    """The ids of all requests in the files."""
    return {row["request"] for row in History(folder).each(filter_of({}))}


def test_a_full_disk_costs_no_answer_and_what_is_left_out_is_counted_until_there_is_room_again(tmp_path: Path) -> None:
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", tmp_path) as serving:
        assert ask(serving, "before") == 200
        eventually(lambda: serving.gauge("history_written_total") == 1, "the first is written")
        _, most = resource.prlimit(serving.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(serving.pid, resource.RLIMIT_FSIZE, (4_096, most))
        assert [ask(serving, f"full-{number}") for number in range(20)] == [200] * 20
        eventually(lambda: serving.gauge("history_dropped_total") > 0, "some are left out")
        assert ask(serving, "still full") == 200
        resource.prlimit(serving.pid, resource.RLIMIT_FSIZE, (most, most))

        def is_written_again() -> bool:
            serving.http.post("/votes", json=BODY).raise_for_status()
            return serving.gauge("history_written_total") > 1

        eventually(is_written_again, "there is room again")
        dropped = serving.gauge("history_dropped_total")
        assert ask(serving, "after") == 200
        eventually(lambda: "after" in kept(tmp_path), "the last is written")
        assert serving.gauge("history_dropped_total") == dropped
        assert serving.wait_for_line("the history cannot be written")
        assert serving.wait_for_line("the history is written again")
    assert {"before", "after"} <= kept(tmp_path)


def test_of_a_killed_server_the_history_opens_and_lacks_the_last_second_at_most(tmp_path: Path) -> None:
    answered: dict[str, float] = {}
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", tmp_path) as serving:
        end = time.monotonic() + 3.0
        with httpx.Client(base_url=serving.url, trust_env=False) as client:
            while time.monotonic() < end:
                name = f"r{len(answered)}"
                client.post("/votes", json=BODY, headers={"X-Request-Id": name}).raise_for_status()
                answered[name] = time.monotonic()
        killed = time.monotonic()
        serving.signal(signal.SIGKILL)
        serving.process.wait(20)
    found = kept(tmp_path)
    assert found
    assert [name for name, at in answered.items() if name not in found and at < killed - 1.0] == []
    assert list(History(tmp_path).counts(filter_of({}), "model")) == [("votes", len(found))]


def test_a_damaged_file_is_named_in_the_answer_and_once_in_the_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.wall = time.time()
    with world.writing():
        for number in range(60):
            world.answer(str(number))
    (bad,) = files(tmp_path)
    damage(bad)
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", tmp_path) as serving:
        rows, counts = (serving.operator.get(f"/v1/history{path}") for path in ("", "/counts"))
        assert rows.json() == {"outcomes": [], "damaged": [bad.name]}
        assert (counts.json()["counts"], counts.json()["damaged"]) == ([], [bad.name])
        assert serving.operator.get("/v1/history/export").status_code == 200
        assert serving.wait_for_line("the history's file")
        assert len(serving.lines("the history's file")) == 1


def test_a_damaged_file_of_words_is_set_aside_and_said_once_and_words_are_taken_again(tmp_path: Path) -> None:
    (tmp_path / "feedback.sqlite").write_bytes(b"no file of SQLite " * 1_000)
    with Serving(MODELS / "watched.py", "--workers", "1", "--history", tmp_path) as serving:
        serving.http.post("/votes", json=BODY, headers={"Idempotency-Key": "k"}).raise_for_status()
        serving.http.post("/v1/feedback/votes/k", json={"verdict": "wrong"}).raise_for_status()
        eventually(lambda: History(tmp_path).counts(filter_of({}), "verdict") == [("wrong", 1)], "the word is found")
        assert serving.gauge("history_set_aside_total") == 1
        assert len(serving.lines("the history's file")) == 1
    assert (tmp_path / "feedback.damaged").read_bytes().startswith(b"no file")
