"""Deadly inputs that come again and again: what they have in common, and how little they take with them."""

from __future__ import annotations

import pytest
from tests.requests.gateway import World

from timebound.errors import CrashesWorker
from timebound.requests import quarantine
from timebound.requests.groups import MOST_GROUPS, Groups
from timebound.requests.kin import MANY, TRIED_S
from timebound.requests.quarantine import mark_of
from timebound.requests.request import Request
from timebound.types import Loss


def innocent(number: int) -> str:
    return f'{{"value": {number}, "harm": ""}}'


def poison(number: int) -> str:
    return f'{{"value": {number}, "harm": "crash"}}'


def serve(world: World, *names: str) -> None:
    """Have these answered, one by one; nothing else may run."""
    for name in names:
        world.loop.advance(0.001)
        world.submit(name, timeout_s=50.0)
        world.loop.run_due()
        slot = next(slot for slot, bodies in world.running.items() if name.encode() in bodies)
        world.answer(slot)


def die(world: World, name: str) -> int:
    """Send it; how many workers it takes until it is answered."""
    world.loop.advance(0.001)
    world.submit(name, timeout_s=50.0)
    world.loop.run_due()
    for deaths in range(9):
        slots = [slot for slot, bodies in world.running.items() if name.encode() in bodies]
        if not slots:
            return deaths
        world.down(slots[0])
        world.up(slots[0])
    raise AssertionError("it is run again and again")


def world_with_workers() -> World:
    world = World(deadline_s=50.0)
    world.up("a1", "b1")
    serve(world, *map(innocent, range(20)))
    return world


def test_after_one_that_was_lost_alone_the_next_of_its_kind_runs_apart_at_once() -> None:
    world = world_with_workers()
    die(world, poison(1))
    serve(world, *map(innocent, range(20, 20 + MANY)))
    assert die(world, poison(2)) == 1
    assert world.attempts[poison(2)].request.is_kin


def test_the_innocent_that_come_to_share_one_trait_with_a_kind_that_kills_run_as_ever() -> None:
    world = world_with_workers()
    for number in range(10_000, 10_000 + 12):  # larger numbers than any of the innocent had
        die(world, poison(number))
        serve(world, *(innocent(number % 10 * 10 + place) for place in range(8)))
        world.loop.advance(TRIED_S)
    assert all(world.attempts[poison(10_000 + number)].request.is_kin for number in range(3, 12))
    serve(world, innocent(20_001), innocent(20_002))  # as large as those of the deadly
    assert not world.attempts[innocent(20_001)].request.is_suspect
    assert not world.attempts[innocent(20_002)].request.is_suspect


def test_of_a_kind_that_nobody_survives_one_is_tried_now_and_then() -> None:
    world = world_with_workers()
    for number in range(3):
        die(world, poison(number))
        serve(world, *map(innocent, range(20, 30)))
    assert [die(world, poison(number)) for number in range(10, 20)] == [0] * 10
    assert world.errors()[poison(10)] is CrashesWorker
    serve(world, *map(innocent, range(30, 50)))
    world.loop.advance(TRIED_S)
    assert [die(world, poison(number)) for number in range(30, 33)] == [1, 0, 0]


def test_those_that_were_lost_and_had_no_time_to_be_tried_alone_are_no_survivors() -> None:
    world = world_with_workers()
    for number in range(2):
        world.down("b1")
        world.submit(poison(number), *map(innocent, range(7)), timeout_s=1.0)
        world.loop.run_due()
        assert len(world.running["a1"]) > 1
        world.down("a1")
        world.loop.advance(2.0)
        world.up("a1", "b1")
        serve(world, *map(innocent, range(20 + 10 * number, 30 + 10 * number)))
    tried = [die(world, poison(number)) for number in range(10, 16)]
    assert tried == [2, 1, 0, 0, 0, 0]


def test_those_that_were_given_up_before_they_ran_are_no_survivors() -> None:
    world = world_with_workers()
    for number in range(0, 50, 10):
        world.down("b1")
        world.submit(poison(number), *map(innocent, range(7)), timeout_s=1.0)
        if world.attempts[poison(number)].request.is_kin:
            break
        world.loop.run_due()
        assert len(world.running["a1"]) > 1
        world.down("a1")
        world.submit(*(poison(number + place) for place in range(1, 10)), timeout_s=1.0)  # no worker is up
        world.loop.advance(2.0)
        world.up("a1", "b1")
        serve(world, *map(innocent, range(20 + number, 50 + number)))
    assert number < 40, "though one of ten was lost, it is known that none was answered"


def test_a_kind_that_kills_no_more_is_served_again() -> None:
    world = world_with_workers()
    for number in range(3):
        die(world, poison(number))
    for number in range(100, 110):
        world.loop.advance(TRIED_S)
        serve(world, poison(number))
    world.loop.advance(TRIED_S)
    serve(world, *map(poison, range(200, 220)))
    assert not world.attempts[poison(219)].request.is_suspect


def test_where_workers_are_lost_again_and_again_the_last_one_is_not_risked_though_time_runs_out() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "b1")
    world.submit("first accident", "served")
    world.loop.run_due()
    world.down("a1")
    world.up("a1")
    for _ in range(2):
        world.answer(next(iter(world.running)))
    world.submit("suspect", timeout_s=0.05)
    world.submit("one", "two", "three", timeout_s=50.0)
    world.loop.run_due()
    lost = next(slot for slot, bodies in world.running.items() if bodies == [b"suspect"])
    world.down(lost)
    world.answer(next(iter(world.running)))
    assert "suspect" not in world.batch()


def test_many_deadly_items_of_one_request_take_a_few_workers_and_not_one_each() -> None:
    world = World(deadline_s=50.0, max_batch=4)
    world.up("a1", "b1")
    items = [f"item {number}" for number in range(64)]  # nothing else in common that others have not
    world.submit(*items, timeout_s=50.0, request_id="one request")
    world.loop.run_due()
    deaths = 0
    while world.running:
        slot = next(iter(world.running))
        world.down(slot)
        world.up(slot)
        deaths += 1
        assert deaths < 7
    assert set(world.errors().values()) == {CrashesWorker}
    assert len(world.errors()) == 64


def test_the_others_of_a_request_with_one_deadly_item_are_answered() -> None:
    world = World(deadline_s=50.0, max_batch=4)
    world.up("a1", "b1")
    items = ["deadly", *(f"item {number}" for number in range(30))]
    world.submit(*items, timeout_s=50.0, request_id="one request")
    world.loop.run_due()
    while world.running:
        slot = next(iter(world.running))
        if b"deadly" in world.running[slot]:
            world.down(slot)
            world.up(slot)
        else:
            world.answer(slot)
    assert world.errors() == {"deadly": CrashesWorker}
    assert len(world.answered()) == 30


def test_what_is_remembered_of_requests_with_deadly_items_has_a_bound() -> None:
    world = World()
    groups = Groups()
    for number in range(2 * MOST_GROUPS):
        world.submit(f"r{number}")
        groups.lost([world.attempts[f"r{number}"].request])
        groups.proven(world.attempts[f"r{number}"].request)
    assert len(groups._lost) == len(groups._proven) == MOST_GROUPS


def test_a_worker_that_is_killed_from_outside_is_no_row() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "b1")
    for turn in range(3):
        world.submit(f"one {turn}", f"two {turn}")
        world.loop.run_due()
        world.down("a1", loss=Loss.STOPPED)
        world.up("a1")
        while world.running:
            world.answer(next(iter(world.running)))
    assert not any(attempt.request.can_wait for attempt in world.attempts.values())


def test_what_is_always_lost_in_company_and_never_answered_runs_apart_after_a_few_losses() -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    serve(world, *map(innocent, range(20)))
    losses = 0
    for number in range(500, 508):
        serve(world, *(innocent(10 * number + place) for place in range(15)))
        names = [poison(number), innocent(number), innocent(number + 1)]
        world.submit(innocent(number + 2), timeout_s=50.0)  # so that the others run together
        world.loop.run_due()
        world.submit(*names, timeout_s=1.0)
        if world.attempts[poison(number)].request.is_kin:
            break
        world.answer("a1")
        assert poison(number).encode() in world.running["a1"]
        assert len(world.running["a1"]) > 1
        world.loop.advance(0.999)  # nobody has the time to run again
        world.down("a1", loss=Loss.HUNG)
        world.up("a1")
        losses += 1
    assert 2 <= losses <= 3


def test_a_proof_of_guilt_reads_few_of_the_bodies_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(deadline_s=50.0)
    world.up("a1")
    world.submit(deadly := poison(5), timeout_s=50.0)
    world.loop.run_due()
    long = "{" + ",".join(f'"field{number}":{number}' for number in range(1_000)) + "}"
    world.submit(*(long.replace("field", f"f{number}") for number in range(50)), timeout_s=50.0)
    world.submit(*(innocent(number) for number in range(2_000)), timeout_s=50.0)
    world.submit('{"harm":"crash","value":5}', timeout_s=50.0)  # the same, written differently, but far behind
    world.submit(deadly, timeout_s=50.0)
    read: list[Request] = []

    def noting(request: Request) -> bytes:
        read.append(request)
        return mark_of(request)

    monkeypatch.setattr(quarantine, "mark_of", noting)
    request = world.attempts[deadly].request
    same = quarantine.same_bodies(request, world.dispatcher._answers.queued())
    assert [each.body for each in same] == [deadly.encode()]
    assert sum(len(each.body) for each in read) < 40_000


def test_those_of_a_kind_that_had_no_time_to_be_tried_say_nothing_for_it() -> None:
    world = world_with_workers()
    for number in range(4):
        die(world, poison(number))
        serve(world, *map(innocent, range(20, 30)))
        for other in range(3):  # while the only worker for them is busy, their time runs out
            world.loop.advance(TRIED_S)
            world.submit(poison(100 * number + 50 + other), timeout_s=0.001)
            world.loop.advance(0.5)
    assert die(world, poison(1_000)) == 0
