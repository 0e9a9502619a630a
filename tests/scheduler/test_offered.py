"""Offered work is counted as it comes, whatever becomes of it."""

from __future__ import annotations

import pytest

from timebound.scheduler import ModelSpec, Scheduler, Ticket
from timebound.scheduler.offered import Offered, waiting_s

TAKES_S = 0.010


def scheduler(slots: int = 1, *, members: int = 1) -> Scheduler:
    """A model whose batches gain nothing: 10 ms for each item and member."""
    made = Scheduler(0.0)
    made.add_model(ModelSpec("m", deadline_s=1.0, members=members))
    for batch in (1, 2, 4, 8) * 8:
        for member in range(members):
            made.observe("m", batch, 1.0, batch * TAKES_S, member)
    made.set_slots(slots)
    return made


def offer(made: Scheduler, count: int, now: float, deadline_s: float = 1.0) -> None:
    for number in range(count):
        made.offer(Ticket(number, "m", now + deadline_s, now), now)
    made.set_aside()


@pytest.mark.parametrize(("members", "each_s"), [(1, TAKES_S), (3, 3 * TAKES_S)])
def test_work_counts_with_all_members_and_also_if_it_is_refused(members: int, each_s: float) -> None:
    made, offered = scheduler(members=members), Offered()
    offer(made, 50, now=1.0)
    assert offered.count(made.view(1.0)) == pytest.approx(50 * each_s, rel=0.15)
    offer(made, 50, now=2.0, deadline_s=0.001)  # none of these can be in time
    assert offered.count(made.view(2.0)) == pytest.approx(100 * each_s, rel=0.15)
    assert offered.count(made.view(3.0)) == offered.seconds


def test_a_request_that_is_refused_and_offered_again_counts_once() -> None:
    made, offered = scheduler(), Offered()
    made.add_model(ModelSpec("full", deadline_s=1.0, max_queue=1))
    first, second = (Ticket(number, "full", 2.0, 1.0) for number in range(2))
    assert made.offer(first, 1.0) is None
    each_s = offered.count(made.view(1.0))
    verdict = made.offer(second, 1.0)
    assert verdict is not None
    assert verdict.reason == "queue_full"
    made.withdraw(first)
    assert made.offer(second, 1.0) is None
    assert offered.count(made.view(1.0)) == pytest.approx(2 * each_s)


def test_what_waits_is_told_in_seconds_of_all_slots() -> None:
    made = scheduler(slots=2)
    assert waiting_s(made.view(1.0)) == 0.0
    offer(made, 20, now=1.0)
    assert waiting_s(made.view(1.0)) == pytest.approx(20 * TAKES_S / 2, rel=0.15)


def test_a_model_that_goes_and_comes_again_is_not_counted_twice() -> None:
    made, offered = scheduler(), Offered()
    offer(made, 50, now=1.0)
    before = offered.count(made.view(1.0))
    made.remove_model("m")
    made.add_model(ModelSpec("m", deadline_s=1.0))
    assert offered.count(made.view(2.0)) == before
