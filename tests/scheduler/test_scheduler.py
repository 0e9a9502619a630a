from __future__ import annotations

import gc
import json
from dataclasses import replace

import pytest
from benchmarks.tools.machine import CPU_LIKE, GPU_LIKE, Speed
from tests.scheduler.worlds import ticket, trained

from timebound.scheduler import POLICIES, Batch, ModelSpec, Phase, Plan, Scheduler, SetAside, View

THREE = Speed(0.006, 0.009, members=3)


def ready(speed: Speed = CPU_LIKE, deadline_s: float = 1.0, slots: int = 1) -> Scheduler:
    scheduler = trained(speed, deadline_s)
    scheduler.set_slots(slots)
    return scheduler


def taken(scheduler: Scheduler, now: float) -> Batch:
    batch = scheduler.take(now)
    assert batch is not None
    return batch


# ---------------------------------------------------------------------- taking


def test_a_lone_request_runs_at_once() -> None:
    scheduler = ready()
    one = ticket(1, 1.0)
    assert scheduler.offer(one, 0.0) is None
    batch = taken(scheduler, 0.0)
    assert batch.tickets == [one]
    assert batch.reason == "all_waiting"
    assert batch.predicted_s == pytest.approx(0.025, rel=0.01)
    assert one.phase is Phase.RUNNING


def test_much_time_is_not_enough_for_an_item_that_takes_longer() -> None:
    scheduler = Scheduler(0.0)
    scheduler.add_model(ModelSpec("model", 0.1, 1, 8))
    scheduler.set_slots(1)
    for _ in range(60):
        scheduler.observe("model", 1, 1.0, 0.9)
    for _ in range(6):
        scheduler.observe("model", 1, 1.0, 1.2)
    scheduler.offer(ticket(1, 0.95), 0.0)
    batch = scheduler.take(0.0)
    assert batch is None or batch.reason == "long_shot"


def test_nothing_is_taken_without_a_free_slot() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 1.0), 0.0)
    scheduler.offer(ticket(2, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    scheduler.offer(ticket(3, 1.0), 0.0)
    assert scheduler.take(0.0) is None
    scheduler.batch_done(batch, 0.045, 0.045)
    assert taken(scheduler, 0.045).tickets[0].seq == 3


def test_no_slots_no_batch_and_the_ticket_waits() -> None:
    scheduler = ready(slots=0)
    assert scheduler.offer(ticket(1, 1.0), 0.0) is None
    assert scheduler.take(0.0) is None
    scheduler.set_slots(1)
    assert len(taken(scheduler, 0.1)) == 1


def test_two_idle_slots_share_what_waits() -> None:
    scheduler = ready(slots=2)
    for seq in range(6):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    assert [len(taken(scheduler, 0.0)) for _ in range(2)] == [3, 3]


def test_the_batch_is_as_large_as_pays_and_no_larger() -> None:
    scheduler = ready(GPU_LIKE)
    for seq in range(200):
        scheduler.offer(ticket(seq, 1.9), 0.0)
    batch = taken(scheduler, 0.0)
    assert 60 <= len(batch) <= 64
    assert batch.reason == "best_rate"


def test_a_tight_head_shrinks_the_batch_while_everything_still_fits() -> None:
    scheduler = ready(CPU_LIKE)
    scheduler.offer(ticket(1, 0.140), 0.0)
    for seq in range(2, 9):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    assert 1 in [t.seq for t in batch.tickets]
    assert batch.reason == "tight_deadline"
    assert batch.started + batch.predicted_s <= batch.latest_end


def test_a_head_that_would_ruin_the_batch_is_passed_over() -> None:
    scheduler = ready(GPU_LIKE, slots=1)
    scheduler.offer(ticket(1, 0.100), 0.0)
    for seq in range(2, 66):
        scheduler.offer(ticket(seq, 0.300), 0.0)
    batch = taken(scheduler, 0.0)
    assert 1 not in [t.seq for t in batch.tickets]
    assert batch.reason == "early_drop"


def test_what_can_no_longer_make_it_is_set_aside_with_its_reason() -> None:
    scheduler = ready()
    late, fine = ticket(1, 0.200), ticket(2, 1.0)
    scheduler.offer(late, 0.0)
    scheduler.offer(fine, 0.0)
    assert taken(scheduler, 0.190).tickets == [fine]
    assert [(aside.ticket, aside.reason) for aside in scheduler.set_aside()] == [(late, "too_late")]
    assert scheduler.set_aside() == []


def test_long_and_short_inputs_do_not_share_a_batch_where_padding_costs_more() -> None:
    scheduler = ready(CPU_LIKE)
    for seq in range(8):
        scheduler.offer(ticket(seq, 2.0, size=4.0 if seq % 2 else 1.0), 0.0)
    assert len({t.size for t in taken(scheduler, 0.0).tickets}) == 1


def test_long_and_short_inputs_share_a_batch_where_overhead_costs_more() -> None:
    scheduler = ready(GPU_LIKE)
    for seq in range(4):
        scheduler.offer(ticket(seq, 2.0 if seq else 1.0, size=1.4 if seq == 0 else 1.0), 0.0)
    assert len(taken(scheduler, 0.0)) == 4


def test_lanes_are_wider_where_overhead_is_large_and_who_waits_already_stays_where_it_is() -> None:
    scheduler = ready(CPU_LIKE, slots=3)
    early = [ticket(seq, 5.0, size=4.5) for seq in (1, 2)]
    for one in early:
        scheduler.offer(one, 0.0)
    for batch in (1, 2, 4, 8, 16) * 40:
        scheduler.observe("model", batch, 1.0, 0.08 + 0.0025 * batch, 0)
    late = [ticket(3, 5.0, size=4.5), ticket(4, 5.0, size=5.5)]
    for one in late:
        scheduler.offer(one, 0.0)
    assert late[0].lane is late[1].lane is not early[0].lane
    narrow, wide = early[0].lane, late[0].lane
    assert narrow.size < wide.size <= 4.5 * 2**0.5
    scheduler.withdraw(early[0])
    assert (narrow.count, wide.count) == (1, 2)
    ran = {one.seq for batch in iter(lambda: scheduler.take(0.0), None) for one in batch.tickets}
    assert ran == {2, 3, 4}
    assert (narrow.count, wide.count) == (0, 0)


# ---------------------------------------------------------------------- ranks


def test_retries_come_after_first_attempts() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 0.5, is_retry=True), 0.0)
    for seq in range(2, 40):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    assert all(not t.is_retry for t in taken(scheduler, 0.0).tickets)


def test_a_retry_rides_along_when_nobody_is_hurt() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 0.5, is_retry=True), 0.0)
    scheduler.offer(ticket(2, 1.0), 0.0)
    assert [t.seq for t in taken(scheduler, 0.0).tickets] == [2, 1]


def test_priority_matters_when_not_everything_fits() -> None:
    scheduler = ready()
    for seq in range(60):
        scheduler.offer(ticket(seq, 0.8, priority=int(seq >= 50)), 0.0)
    assert [t.seq for t in taken(scheduler, 0.0).tickets][:10] == list(range(50, 60))


def test_priority_does_not_matter_while_everything_fits() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 0.4), 0.0)
    for seq in range(2, 20):
        scheduler.offer(ticket(seq, 5.0, priority=1), 0.0)
    assert 1 in [t.seq for t in taken(scheduler, 0.0).tickets]


# ---------------------------------------------------------------------- admission


def test_a_ticket_that_cannot_be_in_time_is_answered_at_once() -> None:
    scheduler = ready()
    verdict = scheduler.offer(ticket(1, 0.020), 0.0)
    assert verdict is not None
    assert verdict.reason == "deadline_unreachable"


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    scheduler = Scheduler()
    scheduler.add_model(ModelSpec("model", 100.0, max_queue=10))
    scheduler.set_slots(2)
    for _ in range(10):
        scheduler.observe("model", 1, 1.0, 0.5)
    assert all(scheduler.offer(ticket(seq, 100.0), 0.0) is None for seq in range(10))
    verdict = scheduler.offer(ticket(10, 100.0), 0.0)
    assert verdict is not None
    assert verdict.reason == "queue_full"
    assert 1.0 < verdict.retry_after_s < 3.0


def test_the_queue_is_bounded_in_seconds_of_work() -> None:
    scheduler = ready(CPU_LIKE, slots=2)
    tickets = [ticket(seq, 1.0 + seq * 1e-4, arrived=seq * 1e-4) for seq in range(400)]
    for one in tickets:
        scheduler.offer(one, one.arrived)
    displaced = [aside.ticket for aside in scheduler.set_aside()]
    assert 100 < scheduler.queued() < 140  # two slots for a second, and a quarter more
    assert displaced == tickets[: len(displaced)]  # the oldest gave way
    assert scheduler.queued("model") + len(displaced) == 400


def test_before_anything_was_measured_nothing_is_refused() -> None:
    scheduler = Scheduler()
    scheduler.add_model(ModelSpec("model", 0.25))
    scheduler.set_slots(1)
    assert scheduler.offer(ticket(1, 0.25), 0.0) is None
    assert len(taken(scheduler, 0.0)) == 1


# ---------------------------------------------------------------------- clients come and go


def test_a_retry_that_joins_extends_the_deadline_and_ranks_behind() -> None:
    scheduler = ready()
    old, fresh = ticket(1, 1.0), ticket(2, 2.0, arrived=0.9)
    scheduler.offer(old, 0.0)
    scheduler.offer(fresh, 0.9)
    scheduler.renew(old, 1.9, is_retry=True)
    assert (old.is_retry, old.deadline) == (True, 1.9)
    assert [t.seq for t in taken(scheduler, 0.95).tickets] == [2, 1]


def test_a_retry_that_joins_a_running_ticket_only_extends_it() -> None:
    scheduler = ready()
    one = ticket(1, 1.0)
    scheduler.offer(one, 0.0)
    batch = taken(scheduler, 0.0)
    scheduler.renew(one, 1.5, is_retry=True)
    assert one.deadline == 1.5
    assert one.phase is Phase.RUNNING
    assert scheduler.queued() == 0
    scheduler.batch_done(batch, 0.025, 0.6)
    assert one.members_done == 1


def test_an_abandoned_ticket_stays_only_for_a_retry() -> None:
    scheduler = ready()
    kept, dropped = ticket(1, 1.0), ticket(2, 1.0)
    for one in (kept, dropped):
        scheduler.offer(one, 0.0)
    scheduler.abandon(kept, keep=True)
    scheduler.abandon(dropped, keep=False)
    assert taken(scheduler, 0.1).tickets == [kept]
    assert kept.is_retry
    assert (kept.is_wanted, dropped.is_wanted) == (True, False)


def test_a_withdrawn_ticket_never_runs() -> None:
    scheduler = ready()
    one = ticket(1, 1.0)
    scheduler.offer(one, 0.0)
    scheduler.withdraw(one)
    assert scheduler.take(0.0) is None
    assert scheduler.queued() == 0
    scheduler.withdraw(one)  # twice is once


def test_a_removed_model_hands_its_tickets_back_and_may_finish_its_batch() -> None:
    scheduler = ready()
    first, second = ticket(1, 1.0), ticket(2, 1.0)
    scheduler.offer(first, 0.0)
    batch = taken(scheduler, 0.0)
    scheduler.offer(second, 0.0)
    assert scheduler.remove_model("model") == [second]
    scheduler.batch_done(batch, 0.025, 0.025)
    assert scheduler.take(0.1) is None


def test_nothing_is_left_of_a_removed_model_when_its_batch_is_over() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    served = batch.served
    scheduler.remove_model("model")
    scheduler.batch_done(batch, 0.025, 0.025)
    del batch
    gc.collect()
    assert gc.get_referrers(served) == []  # but for this function's own name of it


def test_another_model_of_the_same_name_is_none_of_a_removed_ones_batch() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    scheduler.remove_model("model")
    scheduler.add_model(ModelSpec("model", 1.0))
    scheduler.batch_done(batch, 0.025, 0.025)
    assert scheduler.profile() == {}


# ---------------------------------------------------------------------- ensembles


def test_with_time_to_spare_all_members_run() -> None:
    scheduler = ready(THREE)
    scheduler.offer(ticket(1, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    for member in (1, 2):
        step = scheduler.member_done(batch, 0.005, 0.005 * member)
        assert step.go
        assert step.reason == "fits"
    scheduler.batch_done(batch, 0.005, 0.015)
    assert batch.tickets[0].members_done == 3


def test_those_without_time_for_the_next_member_leave_with_what_they_have() -> None:
    scheduler = ready(THREE)
    tight, loose = ticket(1, 0.030), ticket(2, 1.0)
    scheduler.offer(tight, 0.0)
    scheduler.offer(loose, 0.0)
    batch = taken(scheduler, 0.0)
    step = scheduler.member_done(batch, 0.015, 0.015)
    assert step.go
    assert (step.leave, step.stay) == ([tight], [loose])
    assert tight.members_done == 1
    assert batch.tickets == [loose]


def test_a_batch_need_not_ask_while_all_who_wait_have_time_for_all_members() -> None:
    scheduler = ready(THREE, slots=2)
    for seq in (1, 2):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    assert taken(scheduler, 0.0).is_roomy
    assert scheduler.queued() == 1
    for seq in range(3, 200):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    assert not taken(scheduler, 0.0).is_roomy


def test_what_each_member_took_is_learned_also_if_none_was_asked_after() -> None:
    scheduler, now = ready(replace(THREE, members=2)), 0.0
    for seq in range(60):
        scheduler.offer(ticket(seq, now + 1.0, now), now)
        batch = taken(scheduler, now)
        batch.members_s = (0.003, 0.009)  # half of the time as it is seen here: the rest is the way to the worker
        now += 0.024
        scheduler.batch_done(batch, 0.024, now)
    seconds = [batch.estimate.predict(1, 1.0, member) for member in (0, 1)]
    assert seconds == pytest.approx([0.006, 0.018], rel=0.1)


def test_a_backlog_that_would_be_late_stops_the_batch() -> None:
    scheduler = ready(THREE)
    scheduler.offer(ticket(1, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    for seq in range(2, 200):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    step = scheduler.member_done(batch, 0.005, 0.005)
    assert not step.go
    assert step.reason == "backlog"
    assert [t.seq for t in step.leave] == [1]
    assert scheduler.take(0.005) is not None  # the slot is free


def test_nobody_waits_nobody_computes() -> None:
    scheduler = ready(THREE)
    one = ticket(1, 1.0)
    scheduler.offer(one, 0.0)
    batch = taken(scheduler, 0.0)
    scheduler.withdraw(one)
    assert scheduler.member_done(batch, 0.005, 0.005).reason == "nobody_waits"
    scheduler.batch_done(batch, 0.005, 0.006)  # a late report is harmless


# ---------------------------------------------------------------------- worker deaths


def test_tickets_of_dead_batches_run_again_apart_as_long_as_there_is_time() -> None:
    scheduler = ready()
    tickets = [ticket(seq, 1.0) for seq in range(4)]
    for one in tickets:
        scheduler.offer(one, 0.0)
    scheduler.batch_lost(taken(scheduler, 0.0), 0.05)
    again = taken(scheduler, 0.05)
    assert (len(again), again.reason) == (1, "after_loss")
    scheduler.batch_lost(again, 0.1)
    assert scheduler.set_aside() == []
    others = []
    while (batch := scheduler.take(0.1)) is not None:
        others += batch.tickets
        scheduler.batch_done(batch, 0.025, 0.1)
    assert len(others) == 4


def test_suspects_wait_for_a_worker_of_their_own() -> None:
    scheduler = ready()
    tickets = [ticket(seq, 1.0) for seq in range(4)]
    for one in tickets:
        scheduler.offer(one, 0.0)
    batch = taken(scheduler, 0.0)
    for one in batch.tickets:
        one.is_suspect = True
    scheduler.batch_lost(batch, 0.05, guilty=tickets[0])
    assert scheduler.has_suspects
    assert scheduler.take(0.05) is None
    seen = []
    while (trial := scheduler.take_suspects(0.05)) is not None:
        seen += trial.tickets
        scheduler.batch_done(trial, 0.025, 0.05)
    assert seen == tickets[1:]


def test_survivors_run_together_where_time_is_short() -> None:
    scheduler = ready(GPU_LIKE)
    for seq in range(32):
        scheduler.offer(ticket(seq, 0.6), 0.0)
    scheduler.batch_lost(taken(scheduler, 0.0), 0.1)
    assert len(taken(scheduler, 0.1)) > 1


def test_a_waiting_survivor_can_be_withdrawn() -> None:
    scheduler = ready()
    one = ticket(1, 1.0)
    scheduler.offer(one, 0.0)
    scheduler.batch_lost(taken(scheduler, 0.0), 0.05)
    scheduler.withdraw(one)
    assert scheduler.take(0.06) is None


def test_a_hang_is_several_times_the_prediction_and_a_good_part_of_the_time_that_was_left() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    assert 3 * batch.predicted_s < scheduler.hang_limit_s(batch) < 1.0
    scheduler.batch_done(batch, 0.025, 0.025)
    scheduler.offer(ticket(2, 10.0), 0.0)
    slow = taken(scheduler, 0.0)
    assert scheduler.hang_limit_s(slow) > 2.0  # of its own ten seconds, however fast the others are


def test_a_suspect_alone_may_use_all_of_its_time_and_nobody_runs_for_ever() -> None:
    scheduler = ready()
    limits = []
    for seq, deadline in ((1, 10.0), (2, 1000.0)):
        scheduler.offer(ticket(seq, deadline, is_suspect=True), 0.0)
        trial = scheduler.take_suspects(0.0)
        assert trial is not None
        limits.append(scheduler.hang_limit_s(trial))
        scheduler.batch_done(trial, 0.01, 0.01)
    assert 10.0 <= limits[0] < 11.0
    assert limits[1] < 61.0


def test_a_batch_whose_like_its_worker_never_ran_has_much_time_and_teaches_nothing_if_it_needs_it() -> None:
    scheduler = ready()
    before = scheduler.profile()["model"]["quantiles"]
    for seq in range(8):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    batch = taken(scheduler, 0.0)
    batch.is_first = True
    assert scheduler.hang_limit_s(batch) >= 10.0
    predicted_s = batch.predicted_s
    scheduler.batch_done(batch, 2.0, 2.0)
    for seq in range(10, 18):
        scheduler.offer(ticket(seq, 4.0), 2.0)
    again = taken(scheduler, 2.0)
    assert again.predicted_s == pytest.approx(predicted_s)
    assert scheduler.hang_limit_s(again) < 2.0
    assert scheduler.profile()["model"]["quantiles"] == before


def test_a_model_that_is_slow_at_each_new_size_is_given_few_of_them() -> None:
    scheduler = ready()
    now, sizes = 0.0, set()
    for turn in range(200):
        for seq in range(1 + turn % 61):
            scheduler.offer(ticket(100 * turn + seq, now + 1.0, arrived=now), now)
        while (batch := scheduler.take(now)) is not None:
            batch.is_first = len(batch) not in sizes
            seconds = 2.0 if batch.is_first else 0.02
            sizes.add(len(batch))
            now += seconds
            scheduler.batch_done(batch, seconds, now)
        now += 0.01
    assert len(sizes) <= 9  # powers of two up to 64, and what had run before


# ---------------------------------------------------------------------- restarts


def test_what_was_learned_survives_a_restart() -> None:
    profile = json.loads(json.dumps(ready(GPU_LIKE).profile()))
    restarted = Scheduler()
    restarted.add_model(ModelSpec("model", 1.0), profile["model"])
    restarted.set_slots(1)
    for seq in range(100):
        restarted.offer(ticket(seq, 1.0), 0.0)
    assert len(taken(restarted, 0.0)) > 50


def test_a_model_added_again_keeps_its_queue_and_its_estimate() -> None:
    scheduler = ready(GPU_LIKE)
    scheduler.offer(ticket(1, 1.0), 0.0)
    scheduler.add_model(ModelSpec("model", 2.0, members=2))
    assert taken(scheduler, 0.0).predicted_s == pytest.approx(2 * 0.0825, rel=0.02)


def test_a_server_that_was_too_slow_finds_out_when_it_no_longer_is() -> None:
    scheduler = ready()
    for _ in range(10):
        scheduler.observe("model", 1, 1.0, 3.0)
    refused = scheduler.offer(ticket(1, 0.5), 0.0)
    assert refused is not None
    now = 2.0
    seq = 2
    while scheduler.offer(ticket(seq, now + 0.5, now), now) is None:
        batch = scheduler.take(now)
        assert batch is not None, "a free slot must try something"
        now += 0.002
        scheduler.batch_done(batch, 0.002, now)
        seq += 1
        if seq > 60:
            break
        now += 1.5
    assert seq > 60


def test_who_is_answered_between_members_leaves_the_batch() -> None:
    scheduler = Scheduler(0.0)
    scheduler.add_model(ModelSpec("model", 1.0, members=3))
    scheduler.set_slots(1)
    scheduler.observe("model", 2, 1.0, 0.01)  # so that both are trusted to go together
    gone, stays = ticket(1, 5.0), ticket(2, 5.0)
    scheduler.offer(gone, 0.0)
    scheduler.offer(stays, 0.0)
    batch = scheduler.take(0.0)
    assert batch is not None
    scheduler.withdraw(gone)
    step = scheduler.member_done(batch, 0.01, 0.01)
    assert step.go
    assert (gone.phase, stays.phase) == (Phase.ACCEPTED, Phase.RUNNING)


def test_a_batch_whose_items_were_all_refused_teaches_nothing() -> None:
    scheduler = ready()
    scheduler.offer(ticket(1, 5.0), 0.0)
    batch = scheduler.take(0.0)
    assert batch is not None
    before = scheduler.profile()
    batch.inferred = 0
    scheduler.batch_done(batch, 1e-4, 1e-4)
    assert scheduler.profile() == before


def test_the_profile_tells_how_many_came_of_each_length_and_a_restart_remembers() -> None:
    scheduler = ready()
    for number, size in enumerate((1.0, 4.0, 4.0), 1):
        scheduler.offer(ticket(number, 5.0, size=size), 0.0)
    while scheduler.take(0.0) is not None:
        pass
    profile = scheduler.profile()["model"]
    assert profile["lengths"] == {"0": 1.0, "8": 2.0}
    again = Scheduler()
    again.add_model(ModelSpec("model", 1.0), profile)
    assert again.profile()["model"]["lengths"] == profile["lengths"]


def test_a_second_attempt_beside_one_that_waits_does_not_demote_it() -> None:
    scheduler = ready()
    hedged = ticket(1, 1.0)
    scheduler.offer(hedged, 0.0)
    for seq in range(2, 40):
        scheduler.offer(ticket(seq, 1.0), 0.0)
    scheduler.renew(hedged, 1.0, is_retry=False)
    assert not hedged.is_retry
    assert taken(scheduler, 0.0).tickets[0] is hedged


def test_who_is_renewed_keeps_a_place_even_in_a_full_queue() -> None:
    scheduler = Scheduler()
    scheduler.add_model(ModelSpec("model", 100.0, max_queue=2))
    scheduler.set_slots(1)
    one, two = ticket(1, 1.0), ticket(2, 1.0)
    for each in (one, two):
        scheduler.offer(each, 0.0)
    scheduler.renew(one, 0.001, is_retry=True)
    assert (one.phase, one.deadline, scheduler.queued()) == (Phase.QUEUED, 0.001, 2)


# ---------------------------------------------------------------------- policies


class LastCome:
    """The newest, alone; the oldest is given up each time."""

    admits_all = True

    def choose(self, view: View) -> Plan | None:
        (lane,) = view.lanes
        *others, newest = lane.lane.queues[0].by_arrival.values()
        return Plan(lane, [newest], "last_come", [SetAside(others[0], "too_many")] if others else [])

    def goes_on(self, view: View, level: int, seconds: float, deadline_s: float) -> bool:
        return False


def test_a_policy_of_ones_own_chooses_gives_up_and_refuses_nobody() -> None:
    scheduler = Scheduler(policy=LastCome())
    scheduler.add_model(ModelSpec("model", 1.0, members=2))
    scheduler.set_slots(1)
    scheduler.observe("model", 1, 1.0, 5.0)
    tickets = [ticket(0, 0.5), ticket(1, 0.5), ticket(2, 50.0)]
    assert [scheduler.offer(one, 0.0) for one in tickets] == [None, None, None]
    batch = taken(scheduler, 0.0)
    assert (batch.tickets, batch.reason) == ([tickets[2]], "last_come")
    assert scheduler.set_aside() == [SetAside(tickets[0], "too_many")]
    assert tickets[0].phase is Phase.ACCEPTED
    assert scheduler.member_done(batch, 5.0, 5.0).reason == "backlog"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_table_serves_a_lone_request(name: str) -> None:
    scheduler = Scheduler(policy=POLICIES[name]())
    scheduler.add_model(ModelSpec("model", 1.0))
    scheduler.set_slots(1)
    scheduler.offer(ticket(1, 1.0), 0.0)
    assert len(taken(scheduler, 0.0)) == 1


# ---------------------------------------------------------------------- backends that run some sizes only


def test_batches_go_up_to_a_size_that_the_backend_runs() -> None:
    sizes = (1, 4, 16)
    scheduler = Scheduler(0.0)
    scheduler.add_model(ModelSpec("model", 1.0, max_batch=16, batch_sizes=sizes))
    scheduler.set_slots(1)
    for size in sizes * 20:
        scheduler.observe("model", size, 1.0, 0.002 + 0.002 * size)
    for seq in range(40):
        scheduler.offer(ticket(seq, 9.0), 0.0)
    batch = taken(scheduler, 0.0)
    assert len(batch) == 16
    scheduler.batch_done(batch, 0.034, 0.034)
    for seq in range(40, 42):
        scheduler.offer(ticket(seq, 0.060, arrived=0.034), 0.034)
    tight = taken(scheduler, 0.034)  # sixteen would be late for the first two
    assert len(tight) == 4
    assert tight.predicted_s == pytest.approx(0.010, rel=0.05)


def test_a_batch_that_was_short_of_memory_halves_to_a_size_that_the_backend_runs() -> None:
    scheduler = Scheduler(0.0)
    scheduler.add_model(ModelSpec("model", 1.0, max_batch=64, batch_sizes=(1, 6, 24, 64)))
    scheduler.set_slots(1)
    scheduler.offer(ticket(1, 9.0), 0.0)
    assert scheduler.short_of_memory(taken(scheduler, 0.0), 64, 0.0, is_certain=True) == 24


def test_who_all_have_much_time_get_batches_of_the_best_rate() -> None:
    scheduler = ready(deadline_s=0.5)
    usual = ready(deadline_s=0.5)
    for seq in range(40):
        scheduler.offer(ticket(seq, 5.0), 0.0)
        usual.offer(ticket(seq, 0.5), 0.0)
    batch, short = taken(scheduler, 0.0), taken(usual, 0.0)
    assert 0.4 * 0.5 < batch.predicted_s <= 0.64 * 0.5
    assert len(batch) > len(short)


@pytest.mark.parametrize("is_retry", [False, True])
def test_one_in_a_hurry_is_enough_to_keep_batches_short(is_retry: bool) -> None:
    scheduler = ready(deadline_s=0.5)
    for seq in range(40):
        scheduler.offer(ticket(seq, 5.0), 0.0)
    scheduler.offer(ticket(40, 0.5, is_retry=is_retry), 0.0)
    batch = taken(scheduler, 0.0)
    assert batch.predicted_s <= 0.4 * 0.5
    if not is_retry:  # a retry comes after all first attempts
        assert batch.tickets[0].seq == 40


def test_bulk_work_keeps_to_short_batches_beside_a_model_with_a_shorter_deadline() -> None:
    scheduler = ready(deadline_s=0.5)
    scheduler.add_model(ModelSpec("other", 0.3))
    for seq in range(40):
        scheduler.offer(ticket(seq, 5.0), 0.0)
    assert taken(scheduler, 0.0).predicted_s <= 0.4 * 0.5
