from __future__ import annotations

import random

import pytest
from tests.scheduler.worlds import ticket

from timebound.scheduler.queue import FIRST, DeadlineQueue, Lane, length_bucket, padded_size
from timebound.scheduler.ticket import Phase


def test_tickets_come_in_order_of_deadline_and_ties_in_order_of_arrival() -> None:
    queue = DeadlineQueue(FIRST)
    for seq, deadline in enumerate([3.0, 1.0, 2.0, 1.0]):
        queue.add(ticket(seq, deadline, arrived=seq))
    assert [t.seq for t in queue.slice(0, 4)] == [1, 3, 2, 0]


def test_newest_are_those_that_arrived_last_and_still_have_time() -> None:
    queue = DeadlineQueue(FIRST)
    for seq in range(10):
        queue.add(ticket(seq, deadline=10.0 + seq, arrived=seq))
    queue.add(ticket(10, deadline=5.0, arrived=10.0))  # new but too tight
    assert [t.seq for t in queue.newest(3, due=8.0)] == [7, 8, 9]


def test_among_equal_deadlines_newest_takes_the_earliest_arrivals() -> None:
    queue = DeadlineQueue(FIRST)
    for seq in range(6):
        queue.add(ticket(seq, deadline=1.0, arrived=seq))
    assert [t.seq for t in queue.newest(2, due=0.0)] == [0, 1]


def test_a_short_deadline_is_new_when_it_has_just_arrived() -> None:
    queue = DeadlineQueue(FIRST)
    queue.add(ticket(0, deadline=9.0, arrived=0.0))
    queue.add(ticket(1, deadline=3.0, arrived=1.0))
    assert [t.seq for t in queue.newest(1, due=2.0)] == [1]


def test_removal_finds_the_right_ticket() -> None:
    rng = random.Random(3)
    queue = DeadlineQueue(FIRST)
    tickets = [ticket(seq, deadline=rng.choice([1.0, 2.0, 3.0]), arrived=rng.random()) for seq in range(200)]
    for one in tickets:
        queue.add(one)
    rng.shuffle(tickets)
    for one in tickets[:150]:
        queue.remove(one)
    assert {t.seq for t in queue.slice(0, 999)} == {t.seq for t in tickets[150:]}
    assert list(queue.by_arrival) == sorted(t.seq for t in tickets[150:])  # the order in which they came


def test_lane_keeps_ranks_apart_and_forgets_empty_ones() -> None:
    lane = Lane("model", 0)
    first, urgent, retry = ticket(1, 1.0), ticket(2, 1.0, priority=5), ticket(3, 1.0, is_retry=True)
    for one in (first, urgent, retry):
        lane.add(one)
    assert [queue.slice(0, 9) for queue in lane.queues] == [[urgent], [first], [retry]]
    lane.remove_all([urgent, retry])
    assert [queue.slice(0, 9) for queue in lane.queues] == [[first]]
    assert retry.phase is Phase.ACCEPTED


def test_expired_tickets_leave_together() -> None:
    lane = Lane("model", 0)
    for seq in range(5):
        lane.add(ticket(seq, deadline=float(seq)))
    assert [t.seq for t in lane.expired(2.5)] == [0, 1, 2]
    assert len(lane) == 2


@pytest.mark.parametrize("size", [0.2, 1.0, 1.3, 5.0, 7.07, 60.0])
def test_a_bucket_pads_by_at_most_a_quarter_of_an_octave(size: float) -> None:
    assert size <= padded_size(length_bucket(size)) * (1 + 1e-6) <= size * 1.1893


def test_ten_thousand_tickets_stay_in_order_whatever_comes_and_goes() -> None:
    rng = random.Random(5)
    queue = DeadlineQueue(FIRST)
    tickets = [ticket(seq, deadline=rng.random(), arrived=float(seq)) for seq in range(10_000)]
    for one in tickets:
        queue.add(one)
    for one in rng.sample(tickets, 6_000):
        queue.remove(one)
        tickets.remove(one)
    tickets.sort(key=lambda t: (t.deadline, t.seq))
    assert queue.slice(0, 10_000) == tickets
    assert queue.slice(1_234, 700) == tickets[1_234:1_934]
    assert queue.by_deadline.at(2_500)[2] is tickets[2_500]
    assert queue.first_due_after(tickets[3_000].deadline) == 3_000
    assert queue.due_by(tickets[3_000].deadline) == 3_001
    assert (queue.first_due_after(2.0), len(queue)) == (4_000, 4_000)
    for one in tickets:
        queue.remove(one)
    assert not queue
    assert queue.slice(0, 1) == []
