"""Batches that kill their workers or hang: who runs again, who runs alone, and who is not run any more."""

from __future__ import annotations

from math import inf

import pytest
from tests.requests.gateway import World

from timebound.errors import CrashesWorker
from timebound.events import BatchesShrunk
from timebound.requests.identity import Identity
from timebound.requests.quarantine import FIRST_LOCK_S, LONGEST_LOCK_S, MOST_BODIES, Quarantine, mark_of
from timebound.requests.request import Request
from timebound.scheduler.served import Served
from timebound.scheduler.survivors import grow, short_of_memory
from timebound.scheduler.ticket import ModelSpec
from timebound.types import Loss, ModelInfo, Outcome, Report, Timing


def learn(world: World, slot: str, times: int = 5) -> None:
    """Have enough batches of known length that a hang can be told."""
    for number in range(times):
        world.submit(f"known{number}")
        world.loop.run_due()
        world.loop.advance(0.001)
        world.answer(slot)
    world.delivered.clear()
    world.sent.clear()


def pass_time(world: World, seconds: float) -> None:
    """In small steps: a loop that jumps looks like one that stood still."""
    for _ in range(round(seconds / 0.05)):
        world.loop.advance(0.05)


def start(world: World, *names: str, timeout_s: float = 50.0) -> None:
    world.submit(*names, timeout_s=timeout_s)
    world.loop.run_due()


# ---------------------------------------------------------------------- hangs


def test_a_batch_far_past_its_prediction_has_its_worker_killed_once() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    learn(world, "a1")
    start(world, "stuck")
    pass_time(world, 4.0)
    assert world.killed == []
    pass_time(world, 2.0)
    assert world.killed == ["a1"]
    pass_time(world, 20.0)
    assert world.killed == ["a1"]
    world.down("a1", loss=Loss.HUNG)
    world.up("b1")
    world.answer("b1")
    assert world.answered() == ["stuck"]


def test_no_timer_is_set_while_nothing_runs() -> None:
    world = World(deadline_s=5.0)
    world.up("a1")
    learn(world, "a1")
    world.loop.advance(600.0)
    assert world.loop.timers == 0
    assert world.killed == []


def test_a_gateway_that_stood_still_looks_twice() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    learn(world, "a1")
    start(world, "fine")
    world.clock.advance(30.0)  # nobody ran in that time, the report waits to be read
    world.loop.run_due()
    assert world.killed == []
    world.answer("a1")
    world.loop.advance(10.0)
    assert world.killed == []


# ---------------------------------------------------------------------- requests that crash their worker


def test_what_kills_two_workers_alone_fails_and_is_not_run_again() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    start(world, "poison")
    world.down("a1")
    world.up("b1")
    world.down("b1")
    assert world.errors() == {"poison": CrashesWorker}
    world.up("c1")
    world.delivered.clear()
    start(world, "poison")
    assert world.errors() == {"poison": CrashesWorker}
    assert len(world.sent) == 2
    start(world, "another")
    world.answer("c1")
    assert world.answered() == ["another"]


def test_it_gets_its_fallback_if_there_is_one() -> None:
    world = World(deadline_s=50.0, has_fallback=True)
    for slot in ("a1", "b1"):
        world.up(slot)
        if slot == "a1":
            start(world, "poison")
        world.down(slot)
    assert [duty for duty, *_ in world.asked] == ["fallback"]
    world.asked[0][2](Outcome(b"cheap"))
    assert world.answered() == ["poison"]


def test_the_guilty_is_found_in_a_batch_and_the_others_are_answered() -> None:
    world = World(deadline_s=50.0)
    world.submit("one", "poison", "two", "three", timeout_s=50.0)
    world.up("a1")
    number = 1
    while world.running:
        slot = next(iter(world.running))
        if b"poison" in world.running[slot]:
            world.down(slot)
            number += 1
            world.up(f"{'abcdefgh'[number]}1")
        else:
            world.answer(slot)
        assert number < 8
    assert sorted(world.answered()) == ["one", "three", "two"]
    assert world.errors() == {"poison": CrashesWorker}


def test_a_suspect_runs_alone_in_its_worker_while_others_serve() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "a2", "b1", "b2")
    start(world, "one", "two", "three", "four")
    assert list(world.running) == ["a1", "a2", "b1", "b2"]
    world.down("a1", "a2")
    world.up("c1", "c2")
    # One worker is kept for the suspects: the new one serves, if the old one is it.
    for busy in ("b1", "b2"):
        world.answer(busy)
    slot = next(slot for slot, bodies in world.running.items() if bodies == [b"one"])
    start(world, "more", "still more")
    assert [other for other in world.running if other[0] == slot[0]] == [slot]
    assert sorted(world.running.values()) == [[b"more"], [b"one"], [b"still more"]]
    world.answer(slot)
    assert world.batch() == ["two"]
    for _ in range(6):
        for busy in list(world.running):
            world.answer(busy)
    assert len(world.answered()) == 6


def test_a_suspect_waits_until_its_worker_is_idle() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "a2", "b1")
    start(world, "one", "two", "three")
    world.down("b1")
    assert set(world.running) == {"a1", "a2"}
    world.answer("a1")
    assert set(world.running) == {"a2"}
    world.answer("a2")
    assert world.batch() == ["three"]


def test_innocents_of_a_shared_worker_are_not_locked_up_however_often_it_dies() -> None:
    world = World(deadline_s=50.0)
    for worker in "abcdef":
        world.up(f"{worker}1", f"{worker}2")
        if worker == "a":
            start(world, "one")
            start(world, "two")
        world.down(f"{worker}1", f"{worker}2", loss=Loss.STOPPED)
    assert world.errors() == {}
    world.up("g1")
    for _ in range(2):
        world.answer("g1")
    assert sorted(world.answered()) == ["one", "two"]


def test_a_kill_from_outside_makes_no_suspect_at_first() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "a2")
    start(world, "one", "two")
    world.down("a1", "a2", loss=Loss.KILLED)
    world.up("b1", "b2")
    assert set(world.running) == {"b1", "b2"}


def test_a_retry_with_the_same_body_that_came_meanwhile_fails_with_it() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    start(world, "poison")
    start(world, "innocent")
    world.submit("poison", timeout_s=50.0)
    world.down("a1")
    for worker in "bcdef":
        world.up(f"{worker}1")
        while b"poison" not in world.running.get(f"{worker}1", [b"poison"]):
            world.answer(f"{worker}1")
        if not world.running:
            break
        world.down(f"{worker}1")
    assert [type(result) for name, result in world.delivered if name == "poison"] == [CrashesWorker, CrashesWorker]
    assert world.answered() == ["innocent"]


def test_the_last_worker_is_not_risked_while_the_next_one_is_on_its_way() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "b1")
    start(world, "suspect", "one", "two", "three")
    world.down("a1")
    world.answer("b1")
    assert world.batch() == ["two"]
    world.up("c1")
    assert world.batch() == ["suspect"]


def test_a_suspect_that_would_be_late_gets_the_last_worker() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "b1")
    start(world, "suspect", timeout_s=0.05)
    start(world, "one", "two", "three")
    world.down("a1")
    world.answer("b1")
    assert world.batch() == ["suspect"]


# ---------------------------------------------------------------------- want of memory


def test_batches_are_halved_when_memory_is_short_and_grow_again_slowly() -> None:
    served = Served(ModelSpec("m", 1.0, max_batch=64))
    assert [short_of_memory(served, n, 0.0, is_certain=True) for n in (64, 32, 1)] == [32, 16, 1]
    sizes = []
    while served.grows_at < inf:
        grow(served, served.grows_at)
        sizes.append(served.estimate.max_batch)
    assert sizes == [2, 4, 8, 16, 32, 64]


def test_a_large_batch_whose_worker_is_killed_may_have_been_too_large() -> None:
    world = World(deadline_s=50.0, max_batch=4)
    shrunk: list[int] = []
    world.events.on(BatchesShrunk, lambda event: shrunk.append(event.limit))
    world.up("a1")
    start(world, "one")
    world.down("a1", loss=Loss.KILLED)
    assert shrunk == []
    world.up("b1")
    world.answer("b1")
    learn(world, "b1")
    start(world, "first")
    start(world, *"abcd")
    world.answer("b1")
    size = len(world.running["b1"])
    world.down("b1", loss=Loss.KILLED)
    assert shrunk == ([size // 2] if size > 2 else [])


# ---------------------------------------------------------------------- the quarantine itself


def test_the_time_doubles_with_each_repetition_up_to_a_limit() -> None:
    quarantine, now, locked = Quarantine(), 0.0, []
    assert not quarantine.lost_alone(b"x", Loss.CRASHED, now)
    for _ in range(6):
        assert quarantine.lost_alone(b"x", Loss.CRASHED, now)
        locked.append(quarantine.locked_s(b"x", now))
        now += locked[-1]
        assert quarantine.locked_s(b"x", now) == 0.0
        assert quarantine.is_suspect(b"x", now)
    assert locked == [FIRST_LOCK_S, 120.0, 240.0, 480.0, LONGEST_LOCK_S, LONGEST_LOCK_S]


def test_an_answer_clears_a_suspect() -> None:
    quarantine = Quarantine()
    quarantine.lost_alone(b"x", Loss.HUNG, 0.0)
    quarantine.clear(b"x")
    assert not quarantine.is_suspect(b"x", 0.0)
    assert not quarantine.lost_alone(b"x", Loss.HUNG, 1.0)


@pytest.mark.parametrize(("loss", "times"), [(Loss.CRASHED, 2), (Loss.HUNG, 2), (Loss.KILLED, 3), (Loss.STOPPED, None)])
def test_what_it_takes_to_be_guilty(loss: Loss, times: int | None) -> None:
    quarantine = Quarantine()
    verdicts = [quarantine.lost_alone(b"x", loss, 0.0) for _ in range(times or 10)]
    assert verdicts == [False] * (len(verdicts) - 1) + [times is not None]


def test_only_so_many_bodies_are_remembered_and_not_for_ever() -> None:
    quarantine = Quarantine()
    for number in range(MOST_BODIES + 10):
        quarantine.suspect(b"%d" % number, 0.0)
    assert len(quarantine) == MOST_BODIES
    assert not quarantine.is_suspect(b"0", 0.0)
    assert quarantine.is_suspect(b"500", 0.0)
    assert not quarantine.is_suspect(b"500", 61.0)


def test_a_body_has_one_mark_with_and_without_a_key() -> None:
    info = ModelInfo(name="m", key_ignore=["retry"])
    first, again = b'{"a": 1, "retry": 0}', b'{"retry": 1, "a": 1}'
    _, fingerprint = Identity(info).of("k", first)
    marks = {mark_of(request_of(info, body, print_)) for body, print_ in ((first, fingerprint), (again, b""))}
    assert len(marks) == 1
    assert mark_of(request_of(info, b'{"a": 2}', b"")) not in marks


def request_of(info: ModelInfo, body: bytes, fingerprint: bytes) -> Request:
    return Request(1, "m", 1.0, 0.0, info=info, body=body, fingerprint=fingerprint)


def test_a_hang_is_found_though_the_loop_stalls_again_and_again() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    learn(world, "a1")
    start(world, "stuck")
    for _ in range(100):
        world.loop.pause(0.15)
        world.loop.advance(0.05)
    assert world.killed == ["a1"]


@pytest.mark.parametrize("size", [64, 4, 3])
def test_memory_that_is_short_never_enlarges_the_batches_of_a_fixed_size(size: int) -> None:
    world = World(max_batch=2, batch_sizes=[size], deadline_s=5.0)
    world.up("a1")
    world.submit(*(f"r{number}" for number in range(20)))
    world.loop.run_due()
    assert len(world.running["a1"]) == 2
    outcomes = [Outcome(b"answer") for _ in world.running.pop("a1")]
    world.dispatcher.report("a1", Report(outcomes, Timing(), 1, 1, is_short_of_memory=True))
    world.loop.run_due()
    assert len(world.running["a1"]) == 1
