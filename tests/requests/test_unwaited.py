"""What is kept for clients that left takes nothing from those who wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.requests.gateway import World

from timebound.admission import Held
from timebound.errors import Refusal
from timebound.requests.request import Phase, Request
from timebound.requests.unwaited import Unwaited
from timebound.types import ModelInfo, Question

MOST = 64
"""Of the queue, in these tests."""


def leave_at_once(world: World, count: int, *, address: str = "10.0.0.1", hold_of: Held | None = None) -> None:
    """So many clients ask with a key of their own and a long limit, and go."""
    for number in range(count):
        now = world.clock.now()
        question = Question(f"{address}-{number}", "m", b"body", now, now + 60.0, f"{address}-{number}")
        question.fingerprint = b"body"
        if hold_of is not None:
            question.hold = hold_of.hold()
            question.hold.stand_for(100)
        attempt = world.dispatcher.submit(question, lambda result: None)
        del question
        world.dispatcher.gone(attempt, address)


def test_those_who_left_do_not_fill_the_queue() -> None:
    world = World(max_queue=MOST)
    for number in range(100):
        leave_at_once(world, 10, address=f"10.0.0.{number}")
    assert world.dispatcher.queued() <= MOST // 4
    assert len(world.dispatcher.unwaited) == world.dispatcher.queued()


def test_one_client_that_leaves_again_and_again_leaves_room_for_others_who_left() -> None:
    world = World(max_queue=MOST)
    leave_at_once(world, 3, address="10.0.0.2")
    leave_at_once(world, 500)
    assert all(world.dispatcher.is_running("m", f"10.0.0.2-{number}") for number in (1, 2))
    assert world.dispatcher.queued() == 4


def test_the_oldest_goes_first_and_its_retry_is_asked_anew() -> None:
    world = World(max_queue=MOST)
    leave_at_once(world, 3)
    assert [world.dispatcher.is_running("m", f"10.0.0.1-{number}") for number in range(3)] == [False, True, True]
    world.submit("again", key="10.0.0.1-0", body_of_key=b"body")
    world.up("a")
    world.loop.run_due()
    world.answer("a")
    assert "again" in world.answered()


def test_who_waits_takes_the_place_of_one_nobody_waits_for() -> None:
    world = World(max_queue=8)
    leave_at_once(world, 1)
    leave_at_once(world, 1, address="10.0.0.2")
    world.submit(*map(str, range(6)))
    assert world.dispatcher.queued() == 8
    world.submit("six", "seven")
    assert (world.errors(), len(world.dispatcher.unwaited)) == ({}, 0)
    world.submit("one too many")
    assert world.errors() == {"one too many": Refusal}


def test_a_client_that_left_does_not_take_the_place_of_one_that_waits() -> None:
    world = World(max_queue=8)
    world.submit(*map(str, range(8)))
    leave_at_once(world, 20)
    assert (world.errors(), len(world.dispatcher.unwaited)) == ({}, 0)


def test_memory_that_nobody_waits_for_is_let_go_when_it_is_short() -> None:
    world, held = World(max_queue=MOST), Held(250)
    held.make_room = world.dispatcher.unwaited.make_room
    leave_at_once(world, 1, hold_of=held)
    leave_at_once(world, 1, address="10.0.0.2", hold_of=held)
    assert (held.bytes, held.has_room(50)) == (200, True)
    assert held.bytes == 200  # there was room
    assert held.has_room(150)
    assert (held.bytes, len(world.dispatcher.unwaited)) == (100, 1)
    assert not held.has_room(300)
    assert held.bytes == 0


def test_everyone_who_waits_is_served_before_those_nobody_waits_for() -> None:
    world = World(max_queue=4096, max_batch=1)
    world.submit("gone", key="gone", timeout_s=60.0, body_of_key=None)
    world.dispatcher.gone(world.attempts["gone"], "10.0.0.1")
    world.submit("retried", key="retried", timeout_s=70.0, body_of_key=None)
    world.dispatcher.gone(world.attempts["retried"], "10.0.0.2")
    world.submit("retried", key="retried", timeout_s=70.0, body_of_key=None)
    world.submit("unimportant", timeout_s=80.0)
    world.up("a")
    for _ in range(3):
        world.loop.run_due()
        world.answer("a")
    assert [world.batch(place) for place in range(3)] == [["unimportant"], ["retried"], ["gone"]]


def test_a_retry_takes_its_request_out_of_what_nobody_waits_for() -> None:
    world = World(max_queue=MOST)
    leave_at_once(world, 2)
    world.submit("again", key="10.0.0.1-0", body_of_key=b"body", timeout_s=60.0)
    assert len(world.dispatcher.unwaited) == 1
    leave_at_once(world, 20, address="10.0.0.1")
    assert world.errors() == {}
    world.dispatcher.gone(world.attempts["again"], "10.0.0.9")
    assert world.dispatcher.is_running("m", "10.0.0.1-0")


@given(
    st.lists(st.tuples(st.sampled_from(["add", "run", "back", "end"]), st.integers(0, 9), st.sampled_from("abc"))),
    st.integers(4, 40),
)
def test_the_bounds_hold_whatever_happens(steps: list[tuple[str, int, str]], max_queue: int) -> None:
    info, here = ModelInfo(name="m"), dict[int, Request]()

    def let_go(request: Request) -> None:
        assert request.phase is Phase.QUEUED
        unwaited.remove(request)
        del here[request.seq]

    unwaited = Unwaited(max_queue, let_go)
    most, each = max(1, max_queue // 4), max(1, max_queue // 32)
    for step, number, client in steps:
        request = here.get(number)
        if step == "add" and request is None:
            here[number] = Request(number, "m", 1.0, 0.0, info=info, body=b"", phase=Phase.QUEUED)
            unwaited.add(here[number], client)
        elif step == "run" and request is not None:
            request.phase = Phase.RUNNING
        elif step in ("back", "end") and request is not None:
            unwaited.remove(here.pop(number))
        queued = [request for request in here.values() if request.phase is Phase.QUEUED]
        running = len(here) - len(queued)
        assert len(unwaited) == len(here)
        assert len(queued) <= most + running
        for whose in "abc":
            assert sum(request.left_by == whose for request in queued) <= each
