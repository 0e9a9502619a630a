"""What the live page is given, from events on a manual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.live.serving import eventually

from timebound.catalogue import Catalogue
from timebound.clock import ManualClock
from timebound.errors import Refusal
from timebound.events import (
    Answered,
    BatchesShrunk,
    BatchFinished,
    BatchLost,
    BatchStarted,
    Divided,
    Events,
    Refused,
    Reloaded,
    ReloadFailed,
    TurnedAway,
    WorkerDown,
)
from timebound.machine.nvml import Card
from timebound.observe.drift import Drift
from timebound.observe.gpus import GpuNumbers
from timebound.observe.live import Live
from timebound.observe.pace import REASONS
from timebound.observe.stream import Stream
from timebound.observe.versions import Versions
from timebound.types import Loss, ModelInfo, Outcome, Quality, Question, Report, Result, Run, Source, Timing

WALL_AHEAD = 1000.0
TIMING = Timing(0.001, 0.005, 0.002, (0.002, 0.0025))
RUN = Run(7, "m", "slot 1.0", 2, "best_rate", 100.0, 0.012, 100.4)


class World:
    """A live view of a gateway that does nothing but tell."""

    def __init__(self, gpus: GpuNumbers | None = None) -> None:
        self.usage = {"1": (5e6, 0.0)}
        self.clock, self.events = ManualClock(100.0), Events()
        worker = {"worker": 1, "slots": 1, "is_up": True, "is_understudy": False}
        gateway = SimpleNamespace(
            clock=self.clock,
            events=self.events,
            requests=SimpleNamespace(queued=lambda: 3, waiting=4, margin_s=0.01),
            supervisor=SimpleNamespace(usage=lambda: self.usage, describe=lambda: [worker]),
            catalogue=Catalogue(self.clock),
        )
        self.catalogue = gateway.catalogue
        signals = {"load_ratio": 0.5, "in_time_ratio": 1.0, "utilisation": 0.25, "queue_seconds": 0.125}

        def wall() -> float:
            return self.clock.now() + WALL_AHEAD

        self.drift = Drift(self.events, models={}, wall=wall)
        versions = Versions(self.events, dict, wall)
        self.live = Live(gateway, lambda: signals, wall, drift=self.drift, versions=versions, gpus=gpus)

    def answer(self, name: str = "r", seconds: float = 0.02, **facts: Any) -> None:
        question = Question(name, "m", b"", 100.0, 100.5)
        result = Result(Outcome(b""), **{"queue_s": 0.004, "timing": TIMING, "run": RUN, **facts})
        self.events.emit(Answered(question, result, 200, seconds))

    def refuse(
        self, name: str, code: str = "overloaded", predicted_s: float | None = 0.7, run: Run | None = None
    ) -> None:
        error = Refusal("no", code=code)
        error.predicted_s, error.run = predicted_s, run
        question = Question(name, "m", b"", 100.0, 100.5)
        self.events.emit(Refused("m", name, code, 429, 0.003, question=question, error=error))

    def turn(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.live.tick(self.clock.now())


def test_ten_minutes_are_kept_and_no_more() -> None:
    world = World()
    world.answer()
    world.turn(700)
    past = world.live.past()
    assert len(past["at"]) == 600
    assert past["at"][-1] == 800.0 + WALL_AHEAD
    assert {len(column) for column in past["columns"].values()} == {600}
    assert {len(column) for column in world.live.past("m")["columns"].values()} == {600}


def test_ten_full_minutes_are_given_out_in_less_than_300_kb_and_a_tenth_of_a_second() -> None:
    world = World()
    for number in range(600):
        world.answer(f"a{number}", 0.01 + number / 10_000)
        world.refuse(f"r{number}")
        world.events.emit(BatchFinished.of(RUN, Report([], TIMING, 1, 1), 0.02, "complete"))
        world.events.emit(BatchLost("m", 2, Loss.CRASHED))
        world.turn()
    for model in ("", "m"):
        began = time.perf_counter()
        told = msgspec.json.encode(world.live.past(model))
        assert time.perf_counter() - began < 0.1
        assert 100_000 < len(told) < 300_000


def test_a_second_has_what_came_and_what_became_of_it() -> None:
    world = World()
    for seconds in (0.01, 0.02, 0.6):
        world.answer(seconds=seconds)
    world.answer(source=Source.JOINED)
    world.refuse("x")
    world.turn()
    last = {name: column[-1] for name, column in world.live.past()["columns"].items()}
    assert (last["asked"], last["due"], last["in_time"], last["refused"]) == (5, 5, 3, 1)
    assert (last["full"], last["computed"], last["joined"], last["code_overloaded"]) == (4, 3, 1, 1)
    assert last["p50_ms"] == pytest.approx(20, rel=0.09)
    assert last["p99_ms"] == pytest.approx(600, rel=0.09)
    assert (last["queue_s"], last["load"], last["queued"]) == (0.125, 0.5, 3)


def test_a_model_that_is_asked_late_has_a_past_as_long_as_the_others() -> None:
    world = World()
    world.turn(5)
    world.answer()
    world.turn()
    assert world.live.past("m")["columns"]["asked"] == [0, 0, 0, 0, 0, 1]


def test_models_that_are_gone_make_room_for_others_and_their_charts_do_not_pile_up() -> None:
    world = World()
    for number in range(100):
        world.catalogue.update([ModelInfo(name=f"m{number}")], {})
        world.events.emit(Answered(Question("r", f"m{number}", b"", 0.0, 1.0), Result(Outcome(b"")), 200, 0.02))
        world.turn()
        assert world.live.past(f"m{number}")["columns"]["asked"][-1] == 1
    assert len(world.live.past()["models"]) == 32
    world.answer()
    world.turn()
    assert world.live.past("m")["columns"] == {}, "what is not served takes nobody's place"
    assert world.live.past()["columns"]["asked"][-1] == 1


def test_a_full_answer_in_time_needs_no_explanation_and_everything_else_has_one() -> None:
    world = World()
    world.answer("plain")
    world.answer("part", quality=Quality.PARTIAL, reason="guard", members=1, of_members=3)
    world.answer("late", seconds=0.9)
    world.answer("twin", source=Source.JOINED)
    world.refuse("refused")
    found = world.live.decided(reason="", model="", request="", most=50)
    reasons = {made["request"]: (made["kind"], made["reason"]) for made in found}
    assert reasons == {
        "part": ("partial", "guard"),
        "late": ("late", "computed"),
        "twin": ("joined", "joined"),
        "refused": ("refused", "overloaded"),
    }


def test_a_refusal_is_found_by_its_id_with_what_was_predicted_and_what_was_left() -> None:
    world = World()
    world.refuse("wanted")
    for number in range(100):
        world.refuse(f"other{number}")
    found = world.live.request("wanted")
    assert found is not None
    assert (found["predicted_ms"], found["total_ms"], found["deadline_ms"]) == (700.0, 3.0, 500.0)
    assert found["decisions"][0]["reason"] == "overloaded"
    assert world.live.request("nobody") is None


@pytest.mark.parametrize(
    ("facts", "last"),
    [({}, "way"), ({"source": Source.JOINED}, "joined"), ({"source": Source.STORED}, "store")],
)
def test_the_parts_of_a_budget_add_up(facts: dict[str, Any], last: str) -> None:
    world = World()
    world.answer("one", 0.02, **facts)
    found = world.live.request("one")
    assert found is not None
    assert sum(part["ms"] for part in found["parts"]) == pytest.approx(20.0)
    assert found["parts"][-1]["part"] == last
    if not facts:
        parts = {part["part"]: part["ms"] for part in found["parts"]}
        assert (parts["queue"], parts["member 1"], parts["infer"], parts["way"]) == (4.0, 2.0, 0.5, 8.0)


def test_members_that_ran_side_by_side_overlap_within_the_parts() -> None:
    world = World()
    world.answer("one", 0.02, timing=Timing(0.001, 0.005, 0.002, (), ((0.0, 0.004), (0.0005, 0.0045))))
    found = world.live.request("one")
    assert found is not None
    assert sum(part["ms"] for part in found["parts"]) == pytest.approx(20.0)
    assert found["beside"] == [
        {"part": "member 1", "from_ms": 5.0, "ms": 4.0}, {"part": "member 2", "from_ms": 5.5, "ms": 4.5},
    ]  # fmt: skip


def test_a_batch_is_shown_while_it_runs_and_kept_when_it_is_over() -> None:
    world = World()
    world.events.emit(BatchStarted.of(RUN, 5))
    (slot,) = world.live.past()["slots"]
    assert (slot["slot"], slot["batch"], slot["since"]) == ("slot 1.0", 7, 100.0 + WALL_AHEAD)
    world.events.emit(BatchFinished.of(RUN, Report([], TIMING, 1, 1), 0.02, "complete"))
    (batch,) = world.live.past()["batches"]
    assert (batch["ms"], batch["predicted_ms"], batch["queued"], batch["infer_ms"]) == (20.0, 12.0, 5, 5.0)
    assert world.live.past()["slots"] == [{"slot": "slot 1.0"}]
    (made,) = world.live.decided(reason="best_rate", model="m", request="", most=5)
    assert (made["kind"], made["batch"]) == ("batch", 7)


def test_what_changes_leaves_a_mark() -> None:
    world = World()
    world.events.emit(WorkerDown(3, 99, -9, was_asked=False))
    world.events.emit(WorkerDown(4, 98, 0, was_asked=True))
    world.events.emit(BatchLost("m", 2, Loss.CRASHED, RUN))
    world.events.emit(BatchesShrunk("m@2", 8))
    world.events.emit(Reloaded(["m", "other"]))
    world.events.emit(ReloadFailed("app.py cannot be read: " + "x" * 1000))
    world.events.emit(Divided("m", {"1": 87.5, "2": 12.5}, ["3"]))
    marks = world.live.past()["marks"]
    assert [mark.kind for mark in marks] == [
        "divided", "reload_failed", "reload", "shrunk", "batch_lost", "worker_down",
    ]  # fmt: skip
    assert [mark.detail for mark in marks if mark.kind in ("divided", "reload", "shrunk")] == [
        "1 87.5 %, 2 12.5 %, 3 +", "m, other", "8",
    ]  # fmt: skip
    assert max(len(mark.detail) for mark in marks) == 200


def test_only_versions_that_come_or_go_are_marked_and_a_reload_of_all_marks_none_as_new() -> None:
    world = World()

    def marked() -> list[tuple[str, str, str]]:
        before = len(world.live.past()["marks"])
        world.turn()
        marks = world.live.past()["marks"]
        return sorted((mark.kind, mark.model, mark.detail) for mark in marks[: len(marks) - before])

    one, two = ModelInfo(name="m", version="1"), ModelInfo(name="m@2", version="2")
    world.catalogue.update([one, ModelInfo(name="other")], {})
    assert marked() == [("model", "m", "1"), ("model", "other", "1")]
    world.catalogue.update([one, ModelInfo(name="other")], {})
    assert marked() == [], "a reload"
    world.catalogue.update([one, two, ModelInfo(name="other")], {})
    assert marked() == [("model", "m", "2")]
    world.catalogue.update([ModelInfo(name="m", version="2"), ModelInfo(name="other")], {})
    assert marked() == [("model_gone", "m", "1")], "the second version is the main one now, and was served before"
    world.catalogue.update([ModelInfo(name="m", version="2")], {})
    assert marked() == [("model_gone", "other", "1")]


def test_every_refusal_has_a_column_also_of_clients_that_were_stopped_on_their_connection() -> None:
    world = World()
    for code in REASONS:
        world.refuse(code, code)
    world.refuse("x", "of another kind")
    world.events.emit(TurnedAway("too_many_connections"))
    world.events.emit(TurnedAway("tls_handshake"))
    world.turn()
    last = {name: column[-1] for name, column in world.live.past()["columns"].items()}
    assert {name.removeprefix("code_"): count for name, count in last.items() if name.startswith("code_")} == {
        **dict.fromkeys(REASONS, 1), "too_many_connections": 2, "other": 2,
    }  # fmt: skip
    assert (last["turned_away"], last["asked"]) == (2, len(REASONS) + 1)
    world.turn()
    assert world.live.past()["columns"]["turned_away"] == [2, 0]


def test_workers_have_the_cores_they_use_and_gpus_a_past_of_their_own() -> None:
    class Two:
        def __init__(self) -> None:
            self.names: list[str] = ["0", "3"]

        def read(self) -> list[Card]:
            return [Card("a", 0.25, 10_000_000, 100), Card("b", 0.5, 20_000_000, 200)]

    gpus = GpuNumbers(Two())
    world = World(gpus)
    eventually(gpus.read, "the first look")
    world.turn()
    world.usage = {"1": (5e6, 0.75)}
    world.turn()
    assert [worker["cores"] for worker in world.live.past()["workers"]] == [0.75]
    columns = world.live.past()["columns"]
    assert (columns["gpu_0_busy"], columns["gpu_3_mb"]) == ([0.25, 0.25], [20.0, 20.0])
    assert "gpu_0_busy" not in world.live.past("m")["columns"]


def test_a_request_that_is_given_up_in_a_batch_is_told_with_that_batch() -> None:
    world = World()
    world.refuse("inside", "deadline_missed", None, run=RUN)
    (made,) = world.live.decided(reason="deadline_missed", model="", request="", most=5)
    assert (made["batch"], made["size"], made["predicted_ms"]) == (7, 2, 12.0)
    found = world.live.request("inside")
    assert found is not None
    assert (found["batch"], found["slot"]) == (7, "slot 1.0")


def test_everybody_who_watches_gets_the_same_bytes_and_who_is_behind_is_let_go() -> None:
    async def run() -> None:
        world = World()
        one, two = world.live.stream.watch(), world.live.stream.watch()
        firsts = [asyncio.ensure_future(anext(each)) for each in (one, two)]
        await asyncio.sleep(0)
        assert len(world.live.stream) == 2
        world.refuse("x")
        world.turn()
        message = await firsts[0]
        assert message is await firsts[1]
        told = msgspec.json.decode(message.removeprefix(b"data: "))
        assert (told["all"]["refused"], told["decisions"][0]["request"]) == (1, "x")
        world.turn(10)
        assert len(world.live.stream) == 0
        assert len([each async for each in one]) < 10

    asyncio.run(run())


async def watching(stream: Stream, *whose: bytes) -> list[tuple[AsyncIterator[bytes], asyncio.Future[bytes]]]:
    """Pages of these holders of passes, each of which waits for its first message."""
    pages = [stream.watch(one) for one in whose]
    waiting = [asyncio.ensure_future(anext(page)) for page in pages]
    await asyncio.sleep(0)
    return list(zip(pages, waiting, strict=True))


def test_of_full_places_the_newcomer_gets_that_of_a_holder_of_many_and_the_operator_that_of_any_pass() -> None:
    async def run() -> None:
        stream = Stream()
        kept = await watching(stream, b"", b"few", *[b"many"] * 62)
        assert not stream.has_room(b"many"), "its own pages have them"
        assert stream.has_room(b"other")
        assert len(stream) == 63
        kept += await watching(stream, b"other")
        assert stream.has_room(), "the operator"
        assert len(stream) == 63
        assert [page[1].done() for page in kept[:2]] == [False, False], "nobody else lost a place"

    asyncio.run(run())


def test_holders_of_one_place_each_do_not_take_them_from_each_other_but_the_operator_does() -> None:
    async def run() -> None:
        stream = Stream()
        kept = await watching(stream, *(b"%d" % number for number in range(64)))
        assert not stream.has_room(b"another")
        assert stream.has_room(b"")
        assert len(kept) == 64

    asyncio.run(run())


def test_of_full_places_who_does_not_read_loses_the_first() -> None:
    async def run() -> None:
        stream = Stream()
        (silent, first), *others = await watching(stream, *[b"same"] * 64)
        readers = [page for page, _ in others]
        waiting = [message for _, message in others]
        for _ in range(3):
            stream.tell(b"x")
            await asyncio.gather(*waiting)
            waiting = [asyncio.ensure_future(anext(page)) for page in readers]
            await asyncio.sleep(0)
        assert stream.has_room(b"same")
        assert [len(stream), await first, [each async for each in silent]] == [63, b"x", [b"x", b"x"]]

    asyncio.run(run())


def test_batches_that_are_over_make_a_trace() -> None:
    world = World()
    world.events.emit(BatchFinished.of(RUN, Report([], TIMING, 1, 1), 0.02, "complete"))
    (name,), (span,) = world.live.timeline.trace()
    assert (name["ph"], name["args"]) == ("M", {"name": "slot 1.0"})
    assert (span["ph"], span["ts"], span["dur"], span["tid"]) == ("X", 100_000_000, 20_000, 1)
