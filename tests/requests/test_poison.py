"""Batches that kill their workers or hang: who runs again, who runs alone, and who is not run any more."""

from __future__ import annotations

from math import inf

import pytest
from tests.requests.gateway import World

from timebound.errors import CrashesWorker, Refusal
from timebound.events import BatchesShrunk
from timebound.requests.identity import Identity
from timebound.requests.kin import MOST_TRAITS, Kin, Likeness
from timebound.requests.quarantine import FIRST_LOCK_S, LONGEST_LOCK_S, MOST_BODIES, OFTEN, Quarantine, mark_of
from timebound.requests.request import Request
from timebound.scheduler.served import Served
from timebound.scheduler.survivors import MOST_SUSPECTS, grow, short_of_memory
from timebound.scheduler.ticket import ModelSpec
from timebound.types import Loss, ModelInfo, Outcome, Report, Timing


def learn(world: World, *slots: str, times: int = 5) -> None:
    """Have enough batches of known length that a hang can be told."""
    for number in range(times * len(slots)):  # slots take turns
        world.submit(f"known{number}")
        world.loop.run_due()
        world.loop.advance(0.001)
        world.answer(slots[number % len(slots)])
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
    pass_time(world, 25.0)  # half of its time
    assert world.killed == []
    pass_time(world, 1.0)
    assert world.killed == ["a1"]
    pass_time(world, 20.0)
    assert world.killed == ["a1"]
    world.down("a1", loss=Loss.HUNG)
    world.up("b1")
    world.answer("b1")
    assert world.answered() == ["stuck"]


def test_with_a_deadline_of_one_second_a_hang_is_found_before_it_so_that_who_waits_runs_again() -> None:
    world = World(deadline_s=1.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    start(world, "stuck", timeout_s=1.0)
    pass_time(world, 0.7)
    assert world.killed == ["a1"]
    world.down("a1", loss=Loss.STOPPED)
    world.answer("b1")
    assert world.answered() == ["stuck"]


def test_one_slow_request_among_fast_ones_is_not_killed_within_its_own_time() -> None:
    world = World(deadline_s=1.0)
    world.up("a1")
    learn(world, "a1", times=70)
    start(world, "slow", timeout_s=10.0)
    pass_time(world, 2.0)
    assert world.killed == []
    world.answer("a1")
    assert world.answered() == ["slow"]


def test_a_suspect_that_is_only_slow_may_use_all_of_its_time_and_is_cleared_by_its_answer() -> None:
    world = World(deadline_s=1.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    for _ in range(3):  # its worker is always lost in the middle of it
        start(world, "slow", timeout_s=10.0)
        slot = next(iter(world.running))
        world.down(slot)
        world.up(slot)
        pass_time(world, 6.0)
        assert world.killed == []
        world.answer(next(iter(world.running)))
    assert world.answered() == ["slow"] * 3
    assert world.errors() == {}


def test_a_batch_whose_like_this_worker_never_ran_is_no_hang() -> None:
    world = World(deadline_s=1.0, has_fallback=True)
    world.up("a1", "a2")
    learn(world, "a1", "a2")
    for turn in range(2):  # in one worker, and in the next, which knows nothing of the first
        world.submit(*(f"{turn}-{number}" for number in range(8)))
        world.loop.run_due()
        slots = list(world.running)
        pass_time(world, 9.0)
        assert world.killed == []
        for slot in slots:
            world.answer(slot)
        world.down("a1", "a2", loss=Loss.GONE)
        world.up("b1", "b2")


def test_a_first_time_that_takes_longer_than_any_should_is_given_more_time_in_the_next_worker() -> None:
    world = World(deadline_s=1.0)
    for slot in ("a1", "b1", "c1"):
        world.up(slot)
        learn(world, slot)
        start(world, f"one {slot}", f"two {slot}", timeout_s=1.0)
        assert len(world.running[slot]) == 2
        pass_time(world, 30.0)
        if slot in world.killed:
            world.down(slot, loss=Loss.HUNG)
    assert world.killed == ["a1", "b1"]


def test_a_batch_size_that_this_worker_has_run_can_hang() -> None:
    world = World(deadline_s=1.0, has_fallback=True)
    world.up("a1")
    learn(world, "a1")
    for turn in range(2):
        world.submit(*(f"{turn}-{number}" for number in range(4)))
        world.loop.run_due()
        while len(world.running["a1"]) != 4:
            world.answer("a1")
            world.submit(*(f"{turn}-{number}" for number in range(4)))
            world.loop.run_due()
        pass_time(world, 2.0)
        if not turn:
            world.answer("a1")
    assert world.killed == ["a1"]


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


@pytest.mark.parametrize(
    ("loss", "times"), [(Loss.CRASHED, 2), (Loss.HUNG, 2), (Loss.KILLED, 3), (Loss.DEVICE, 3), (Loss.STOPPED, None)]
)
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
    for _ in range(150):  # 30 s, of its 50
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


# ---------------------------------------------------------------------- what guilty ones have in common


def poison(number: int) -> str:
    return f'{{"value": {number}, "harm": "crash"}}'


def die_until_told(world: World, name: str) -> int:
    """How many workers one deadly request takes; the others answer what they run."""
    start(world, name)
    for deaths in range(6):
        for slot in [slot for slot, bodies in world.running.items() if name.encode() not in bodies]:
            world.answer(slot)
        slots = [slot for slot, bodies in world.running.items() if name.encode() in bodies]
        if not slots:
            return deaths
        world.down(slots[0])
        world.up(slots[0])
    raise AssertionError("it is run again and again")


def test_who_changes_a_field_each_time_takes_a_few_workers_and_no_other_request() -> None:
    world = World(deadline_s=50.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    deaths = []
    for number in range(5):
        start(world, *(f'{{"value": {number * 10 + other}, "harm": ""}}' for other in range(3)))
        deaths.append(die_until_told(world, poison(number)))
    assert deaths[2:] == [1, 0, 0]
    assert set(world.errors()) == {poison(number) for number in range(5)}
    assert len(world.answered()) == 15


def test_what_the_innocent_have_in_common_with_the_guilty_is_not_held_against_them() -> None:
    world = World(deadline_s=50.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    for number in range(3):
        for other in range(4):  # the same sender and the same fields
            start(world, f'{{"value": {number * 10 + other}, "harm": ""}}')
            world.answer(next(iter(world.running)))
        die_until_told(world, poison(number))
    request = world.attempts[poison(0)].request
    assert request.is_suspect
    start(world, '{"value": 99, "harm": ""}')
    assert not world.attempts['{"value": 99, "harm": ""}'].request.is_suspect


def test_what_is_remembered_of_the_guilty_has_a_bound() -> None:
    world = World(deadline_s=50.0)
    kin = Kin()
    for number in range(3 * MOST_TRAITS):
        world.submit(f'{{"a{number}": 1}}')
        kin.blame(world.attempts[f'{{"a{number}": 1}}'].request, 0.0)
    assert len(kin) == MOST_TRAITS


def lose_in_company(world: World, number: int, body: str) -> bool:
    """A deadly request goes down with others, and nobody has the time to try them again; unless its kind is known."""
    names = [f'{{"value": {10 * number + other}, "harm": ""}}' for other in range(2)]
    start(world, names[0])
    world.submit(body, *names[1:], timeout_s=1.0)
    if world.attempts[body].request.is_kin:
        return True
    world.answer("a1")
    assert body.encode() in world.running["a1"]
    assert len(world.running["a1"]) > 1
    world.loop.advance(0.999)
    world.down("a1", loss=Loss.HUNG)
    world.up("a1")
    return False


def test_who_hangs_and_is_never_tried_alone_is_known_by_what_was_lost_with_it() -> None:
    world = World(deadline_s=50.0, max_batch=8)
    world.up("a1")
    learn(world, "a1")
    for number in range(12):
        for other in range(40):
            start(world, f'{{"value": {1000 + 40 * number + other}, "harm": ""}}')
            world.answer("a1")
        if lose_in_company(world, number, poison(number)):
            break
    assert 1 < number < 11, "not after the first, and not never"
    start(world, '{"value": 77, "harm": ""}')
    assert not world.attempts['{"value": 77, "harm": ""}'].request.is_kin


def test_values_of_one_kind_are_something_in_common() -> None:
    world = World(deadline_s=50.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    deaths = []
    for number in range(5):
        for other in range(4):
            start(world, f'{{"value": {number * 10 + other}}}')
            world.answer(next(iter(world.running)))
        deaths.append(die_until_told(world, f'{{"value": {123456789 + 7 * number}}}'))
    assert deaths[2:] == [1, 0, 0]


def test_the_last_worker_is_not_risked_for_a_kind_that_kills_though_its_time_runs_out() -> None:
    world = World(deadline_s=50.0, max_batch=1)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    one, two, *others = [f'{{"value": {number}, "harm": ""}}' for number in range(20)]
    for number in range(2):
        die_until_told(world, poison(number))
        for other in others:
            start(world, other)
            world.answer(next(iter(world.running)))
    start(world, one)
    world.down(next(iter(world.running)), loss=Loss.KILLED)  # one of the two workers is on its way
    start(world, two)
    world.submit(poison(2), timeout_s=0.05)
    assert world.attempts[poison(2)].request.is_kin
    world.answer(next(iter(world.running)))
    assert poison(2).encode() not in [body for bodies in world.running.values() for body in bodies]


def test_one_death_proves_it_while_others_are_found_guilty_again_and_again() -> None:
    quarantine = Quarantine()
    for number in range(OFTEN):
        assert not quarantine.lost_alone(b"%d" % number, Loss.CRASHED, 1.0)
        assert quarantine.lost_alone(b"%d" % number, Loss.CRASHED, 1.0)
    assert quarantine.lost_alone(b"new", Loss.CRASHED, 2.0)
    assert not quarantine.lost_alone(b"much later", Loss.CRASHED, 100.0)


def test_only_so_many_suspects_wait_and_the_others_are_told_at_once() -> None:
    world = World(deadline_s=50.0)
    world.up("a1", "b1")
    learn(world, "a1", "b1")
    for number in range(2):
        die_until_told(world, poison(number))
    for number in range(2 * 5 * 100):  # so many innocents that a hundred of the deadly kind are still something special
        start(world, f'{{"value": {number}, "harm": ""}}')
        world.answer(next(iter(world.running)))
    world.submit(*(poison(number) for number in range(10, 110)))
    refused = [name for name, kind in world.errors().items() if kind is Refusal]
    assert refused == [poison(number) for number in range(10 + MOST_SUSPECTS, 110)]


def test_who_is_answered_after_all_leaves_no_blame_behind() -> None:
    world = World(deadline_s=50.0)
    kin = Kin()
    for number in range(3):
        world.submit(poison(number))
        request = world.attempts[poison(number)].request
        kin.blame(request, 0.0, 0.5)
        kin.answered(request)
    world.submit(poison(9))
    assert kin.meet(world.attempts[poison(9)].request, 1.0) is Likeness.NONE
