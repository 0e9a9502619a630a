"""The loop around the policy: batches go out at once, and every request is answered once and in time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.manual_loop import PunctualLoop, Started

from timebound.clock import ManualClock
from timebound.errors import BadInput, DeadlineMissed, KeyReused, Refusal, RequestError
from timebound.events import BatchFinished, BatchLost, BatchStarted, Degraded, Events
from timebound.scheduler.dispatcher import Dispatcher
from timebound.scheduler.pending import Attempt
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch
from timebound.store.base import JOINED, OWNER, UNAVAILABLE, Claim, Key, Kind, Settle, Stored
from timebound.store.memory import Memory
from timebound.types import Loss, ModelInfo, Outcome, Report, Request, Result, Source, Timing

MARGIN_S = 0.010
WARM_UP_S = 0.001
NO_TIME = Timing()


class World:
    """A dispatcher for one model, the batches it sent, what it decided, asked and delivered."""

    def __init__(self, *, early_s: float = 0.0, store: Memory | None = None, **info: Any) -> None:
        self.clock = ManualClock(100.0)
        self.loop = PunctualLoop(self.clock, early_s=early_s)  # type: ignore[abstract]
        self.info = ModelInfo(name="m", warm_up_s=WARM_UP_S, **info)
        self.sent: list[tuple[Any, Batch, list[bytes]]] = []
        self.running: dict[Any, list[bytes]] = {}
        self.killed: list[Any] = []
        self.decided: list[tuple[Any, bool]] = []
        self.asked: list[tuple[str, bytes, Callable[[Any], None]]] = []
        self.delivered: list[tuple[str, Result | RequestError]] = []
        self.attempts: dict[str, Attempt] = {}
        self.seen: list[Any] = []
        self.events = Events()
        for kind in (BatchStarted, BatchFinished, BatchLost, Degraded):
            self.events.on(kind, self.seen.append)
        self.store = Memory(1_000_000, self.clock) if store is None else store
        self.dispatcher = Dispatcher(
            Scheduler(MARGIN_S),
            slots=self,
            helper=self,
            clock=self.clock,
            events=self.events,
            loop=self.loop,
            margin_s=MARGIN_S,
            store=self.store,
            wall=lambda: 0.0,
        )
        self.dispatcher.add_model(self.info)

    def send(self, slot: Any, batch: Batch, bodies: list[bytes], ask_after_s: float) -> None:
        assert slot not in self.running, "a slot runs one batch at a time"
        self.sent.append((slot, batch, bodies))
        self.running[slot] = bodies

    def decide(self, slot: Any, batch: Batch, *, go: bool) -> None:
        self.decided.append((slot, go))
        if not go:
            del self.running[slot]

    def worker_of(self, slot: Any) -> str:
        """Slots are named after their worker: a1 and a2 belong to the same."""
        return str(slot)[0]

    def kill(self, slot: Any) -> None:
        self.killed.append(slot)

    def size(self, model: str, body: bytes, done: Callable[[float | None], None]) -> None:
        self.asked.append(("size", body, done))

    def fallback(self, model: str, body: bytes, done: Callable[[Outcome | None], None]) -> None:
        self.asked.append(("fallback", body, done))

    def up(self, *slots: str) -> None:
        for slot in slots:
            self.dispatcher.slot_up(slot)

    def down(self, *slots: str, loss: Loss = Loss.CRASHED) -> None:
        for slot in slots:
            self.running.pop(slot, None)
        self.dispatcher.slots_down(slots, loss)

    def submit(
        self, *names: str, key: str | None = None, timeout_s: float | None = None, body_of_key: bytes | None = b"same"
    ) -> None:
        """Hand requests in; each one's body is its own name, or with a key the same for all."""
        for name in names:
            now = self.clock.now()
            deadline = now + (self.info.deadline_s if timeout_s is None else timeout_s)
            body = name.encode() if key is None or body_of_key is None else body_of_key
            fingerprint = b"" if key is None else body
            request = Request(name, "m", body, now, deadline, key, fingerprint=fingerprint)
            self.attempts[name] = self.dispatcher.submit(request, self._deliver_to(name))

    def _deliver_to(self, name: str) -> Callable[[Result | RequestError], None]:
        return lambda result: self.delivered.append((name, result))

    def batch(self, place: int = -1) -> list[str]:
        """The names in a batch that was sent."""
        return [body.decode() for body in self.sent[place][2]]

    def answer(
        self, slot: str, timing: Timing = NO_TIME, members: int | None = None, outcome: Outcome | None = None
    ) -> None:
        """The batch that runs on this slot comes back, after all members or so many."""
        of_members = self.info.members
        outcomes = [outcome or Outcome(b"answer") for _ in self.running[slot]]
        if members is None:
            del self.running[slot]
        self.dispatcher.report(slot, Report(outcomes, timing, members or of_members, of_members))

    def learn_speed(self) -> None:
        """One request is computed on a slot called a, so that the scheduler knows how long that takes."""
        self.up("a")
        self.submit("first")
        self.loop.run_due()
        self.loop.advance(WARM_UP_S)
        self.answer("a")

    def kept(self, key: str) -> str:
        claim = self.store.look(("m", key), b"same")
        assert claim is not None
        assert claim.stored is not None
        return str(claim.stored.result.quality)

    def qualities(self) -> dict[str, str]:
        return {name: str(result.quality) for name, result in self.delivered if isinstance(result, Result)}

    def errors(self) -> dict[str, type]:
        return {name: type(result) for name, result in self.delivered if isinstance(result, RequestError)}

    def answered(self) -> list[str]:
        return [name for name, result in self.delivered if isinstance(result, Result)]


def test_requests_of_one_turn_of_the_loop_go_in_one_batch() -> None:
    world = World()
    world.up("a")
    world.submit("one", "two")
    assert world.sent == []
    world.loop.run_due()
    assert world.batch() == ["one", "two"]


def test_several_idle_slots_share_what_waits() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one", "two")
    world.loop.run_due()
    assert [slot for slot, *_ in world.sent] == ["a", "b"]


def test_a_lone_request_does_not_wait_for_company() -> None:
    world = World()
    world.up("a")
    world.submit("lone")
    world.loop.run_due()
    assert world.batch() == ["lone"]
    assert world.clock.now() == 100.0


def test_a_request_of_a_later_turn_goes_to_the_next_free_slot() -> None:
    world = World()
    world.up("a", "b")
    for name in ("one", "two"):
        world.submit(name)
        world.loop.run_due()
    assert [slot for slot, *_ in world.sent] == ["a", "b"]


def test_a_slot_that_comes_up_takes_what_waits_at_once() -> None:
    world = World()
    world.submit("one")
    world.loop.run_due()
    assert (world.sent, world.dispatcher.queued(), world.dispatcher.waiting) == ([], 1, 1)
    world.up("a")
    assert world.batch() == ["one"]
    assert world.dispatcher.queued() == 0


def test_a_slot_gets_its_next_batch_before_answers_are_delivered() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.submit("two")
    world.loop.run_due()
    assert len(world.sent) == 1
    sent_by_then: list[int] = []
    world.events.on(BatchStarted, lambda event: sent_by_then.append(len(world.delivered)))
    world.answer("a")
    assert world.batch() == ["two"]
    assert sent_by_then == [0]
    assert world.answered() == ["one"]


def test_an_answer_tells_how_it_came_about() -> None:
    world = World()
    world.submit("one")
    world.loop.advance(0.125)
    world.up("a")
    world.loop.advance(0.25)
    world.answer("a", Timing(0.1, 0.2, 0.3))
    ((name, result),) = world.delivered
    assert isinstance(result, Result)
    assert (name, result.outcome.body, result.batch_size) == ("one", b"answer", 1)
    assert (result.members, result.of_members, result.timing) == (1, 1, Timing(0.1, 0.2, 0.3))
    assert result.queue_s == pytest.approx(0.125)


def test_the_moments_of_a_batch_are_told() -> None:
    world = World()
    world.up("a")
    world.submit("one", "two")
    world.loop.run_due()
    world.loop.advance(0.5)
    world.answer("a")
    started, finished = world.seen
    assert (started.model, started.size, started.queued) == ("m", 2, 0)
    assert started.reason
    assert (finished.model, finished.size, finished.seconds) == ("m", 2, 0.5)
    assert finished.predicted_s > 0


def test_the_guard_answers_at_the_deadline_less_the_margin_and_not_before() -> None:
    world = World()
    world.submit("waits")
    world.loop.advance(1.0 - MARGIN_S - 0.001)
    assert world.delivered == []
    world.loop.advance(0.001)
    assert world.errors() == {"waits": DeadlineMissed}
    assert world.clock.now() == pytest.approx(101.0 - MARGIN_S)


def test_the_guard_is_not_early_even_where_timers_are() -> None:
    world = World(early_s=0.001)
    world.submit("waits")
    world.loop.advance(1.0 - MARGIN_S - 0.0005)
    assert world.delivered == []
    world.loop.advance(0.0005)
    assert world.errors() == {"waits": DeadlineMissed}


def test_the_guard_tells_where_the_time_went() -> None:
    world = World()
    world.up("a")
    world.submit("computed")
    world.loop.run_due()
    world.submit("queued")
    world.loop.advance(1.0)
    said = {name: str(error) for name, error in world.delivered}
    assert said == {
        "computed": "the deadline came while it was computed",
        "queued": "the deadline came in the queue",
    }


def test_no_more_than_a_tenth_of_a_short_limit_is_kept_free() -> None:
    world = World(deadline_s=MARGIN_S / 2)
    world.submit("short")
    world.loop.advance(0.89 * MARGIN_S / 2)
    assert world.delivered == []
    world.loop.advance(0.02 * MARGIN_S / 2)
    assert world.errors() == {"short": DeadlineMissed}


def test_a_batch_that_comes_back_after_the_guard_is_dropped_silently() -> None:
    world = World()
    world.up("a")
    world.submit("late")
    world.loop.run_due()
    world.loop.advance(2.0)
    world.answer("a")
    assert [name for name, _ in world.delivered] == ["late"]
    world.submit("next")
    world.loop.run_due()
    assert world.batch() == ["next"]


def test_a_request_answered_by_the_guard_in_the_queue_is_never_sent() -> None:
    world = World()
    world.submit("late")
    world.loop.advance(1.0)
    world.up("a")
    assert (world.sent, world.dispatcher.queued(), world.dispatcher.waiting) == ([], 0, 0)


def test_an_answered_request_leaves_no_timer_behind() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.loop.advance(31.0)  # the watchdog's only look
    assert world.loop.timers == 0


def test_an_answered_request_leaves_no_garbage_behind() -> None:
    world = World()
    world.up("a")
    gc.collect()
    for name in ("one", "two"):
        world.submit(name, timeout_s=50.0)
        world.loop.run_due()
        world.answer("a")
    world.sent.clear()
    world.attempts.clear()
    assert gc.collect() == 0


def test_what_ran_on_a_dead_slot_is_sent_once_more() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.up("b")
    world.down("a")
    assert [slot for slot, *_ in world.sent] == ["a", "b"]
    world.answer("b")
    assert world.answered() == ["one"]
    assert [type(event) for event in world.seen if isinstance(event, BatchLost)] == [BatchLost]


def test_a_dead_slot_takes_nobody_elses_requests_with_it() -> None:
    world = World()
    world.up("a", "b")
    for name in ("one", "two"):
        world.submit(name)
        world.loop.run_due()
    world.down("a")
    world.answer("b")
    world.answer("b")
    assert world.answered() == ["two", "one"]


def test_what_the_guard_answered_is_not_sent_again_when_its_slot_dies() -> None:
    world = World()
    world.up("a")
    world.submit("late")
    world.loop.run_due()
    world.loop.advance(1.0)
    world.up("b")
    world.down("a")
    assert [slot for slot, *_ in world.sent] == ["a"]
    assert world.errors() == {"late": DeadlineMissed}


def test_a_worker_that_dies_takes_its_free_slots_along() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one")
    world.loop.run_due()
    world.down("a", "b")
    assert len(world.sent) == 1
    world.up("c")
    world.answer("c")
    assert world.answered() == ["one"]


def test_an_idle_slot_that_goes_gets_no_batch() -> None:
    world = World()
    world.up("a")
    world.down("a")
    world.down("never there")
    world.submit("one")
    world.loop.run_due()
    assert world.sent == []


def test_drained_returns_at_once_when_nothing_is_pending() -> None:
    assert Started(World().dispatcher.drained()).is_done()


def test_drained_returns_when_the_last_request_is_answered() -> None:
    world = World()
    world.up("a")
    world.submit("computed")
    world.loop.run_due()
    world.loop.advance(0.5)
    world.submit("queued")
    draining = Started(world.dispatcher.drained())
    world.loop.advance(0.5)
    assert world.errors() == {"computed": DeadlineMissed}
    assert not draining.is_done()
    world.answer("a")
    world.answer("a")
    assert world.answered() == ["queued"]
    assert draining.is_done()


def test_everyone_who_waits_for_the_drain_is_woken() -> None:
    world = World()
    world.submit("one")
    waiting = [Started(world.dispatcher.drained()) for _ in range(2)]
    world.loop.advance(1.0)
    done = [each.is_done() for each in waiting]
    for each in waiting:
        each.close()
    assert done == [True, True]


def test_a_request_that_cannot_be_in_time_is_refused_at_once_with_a_time_to_come_back() -> None:
    world = World()
    world.learn_speed()
    world.submit("hopeless", timeout_s=WARM_UP_S / 10)
    name, refusal = world.delivered[-1]
    assert isinstance(refusal, Refusal)
    assert (name, refusal.code) == ("hopeless", "hopeless")
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s > 0


def test_a_member_that_is_done_is_given_when_time_runs_out() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.advance(0.2)
    world.answer("a", members=1)
    assert world.decided == [("a", True)]
    world.loop.advance(0.2)
    world.answer("a", members=2)
    world.loop.advance(1.0)
    assert world.qualities() == {"one": "partial"}
    (_, result) = world.delivered[0]
    assert isinstance(result, Result)
    assert world.decided == [("a", True), ("a", True)]  # the guard did not wait for the third member
    assert (result.members, result.of_members) == (2, 3)


def test_an_ensemble_with_time_runs_to_the_end() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    for members in (1, 2):
        world.loop.advance(0.01)
        world.answer("a", members=members)
    world.loop.advance(0.01)
    world.answer("a")
    assert world.decided == [("a", True), ("a", True)]
    assert world.qualities() == {"one": "full"}


def test_an_item_error_after_the_first_member_is_final() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad", "good")
    world.loop.run_due()
    world.loop.advance(0.01)
    outcomes = [Outcome(b"{}", code="bad_input"), Outcome(b"answer")]
    world.dispatcher.report("a", Report(outcomes, Timing(), 1, 2))
    assert [name for name, _ in world.delivered] == ["bad"]
    world.answer("a")
    assert [name for name, _ in world.delivered] == ["bad", "good"]


def test_a_member_that_fails_leaves_what_the_members_before_it_said() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad", "good")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.answer("a", members=1)
    world.dispatcher.report("a", Report([Outcome(b"{}", code="model_failed"), Outcome(b"answer")], Timing(), 2, 2))
    assert world.qualities() == {"bad": "partial", "good": "full"}
    reasons = [event.reason for event in world.seen if isinstance(event, Degraded)]
    assert reasons == ["member_failed"]


def test_a_failure_with_nothing_before_it_is_told() -> None:
    world = World(members=2)
    world.up("a")
    world.submit("bad")
    world.loop.run_due()
    world.dispatcher.report("a", Report([Outcome(b"{}", code="model_failed")], Timing(), 2, 2))
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert result.outcome.code == "model_failed"


def test_a_note_is_what_the_guard_gives_when_the_next_member_stalls() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"answer")], Timing(), 1, 3, is_note=True))
    assert world.decided == []  # nobody waits for a decision
    world.loop.advance(1.0)
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert (str(result.quality), result.members) == ("partial", 1)


def test_after_a_note_the_batch_ends_as_without_one() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.loop.advance(0.01)
    world.dispatcher.report("a", Report([Outcome(b"answer")], Timing(), 1, 3, is_note=True))
    world.loop.advance(0.01)
    world.answer("a", members=2)
    world.loop.advance(0.01)
    world.answer("a")
    assert world.decided == [("a", True)]
    assert world.qualities() == {"one": "full"}


def test_a_fallback_goes_out_before_the_deadline() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - 4 * MARGIN_S)
    assert world.asked == []
    world.loop.advance(2 * MARGIN_S)
    ((duty, body, done),) = world.asked
    assert (duty, body) == ("fallback", b"one")
    done(Outcome(b"cheap"))
    assert world.qualities() == {"one": "fallback"}


def test_without_an_answer_from_the_fallback_the_guard_still_answers_in_time() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - MARGIN_S)
    world.loop.advance(MARGIN_S - 0.001)
    assert world.errors() == {"one": DeadlineMissed}
    world.asked[0][2](Outcome(b"too late"))
    assert len(world.delivered) == 1


def test_a_fallback_that_fails_becomes_a_missed_deadline() -> None:
    world = World(has_fallback=True)
    world.submit("one")
    world.loop.advance(1.0 - MARGIN_S)
    world.asked[0][2](None)
    assert world.errors() == {"one": DeadlineMissed}


def test_a_hopeless_request_gets_its_fallback_at_once() -> None:
    world = World(has_fallback=True)
    world.learn_speed()
    world.submit("hopeless", timeout_s=WARM_UP_S / 10)
    world.asked[0][2](Outcome(b"cheap"))
    assert world.qualities()["hopeless"] == "fallback"
    assert world.batch() == ["first"]


def test_an_attempt_with_the_same_key_joins_and_both_are_answered_once() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.submit("again", key="k")
    world.loop.run_due()
    assert len(world.sent) == 1
    world.answer("a")
    sources = {name: result.source for name, result in world.delivered if isinstance(result, Result)}
    assert sources == {"first": Source.COMPUTED, "again": Source.JOINED}


def test_the_same_key_with_another_body_is_refused_while_the_first_is_in_work() -> None:
    world = World()
    world.up("a", "b")
    world.submit("one", key="k", body_of_key=None)
    world.loop.run_due()
    with pytest.raises(KeyReused):
        world.submit("other", key="k", body_of_key=None)
    world.answer("a")
    assert world.answered() == ["one"]


def test_the_same_key_with_another_body_is_refused_after_the_answer() -> None:
    world = World()
    world.up("a")
    world.submit("one", key="k", body_of_key=None)
    world.loop.run_due()
    world.answer("a")
    world.submit("other", key="k", body_of_key=None)
    assert world.errors() == {"other": KeyReused}


def test_the_same_key_is_answered_from_the_store_after_its_answer() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.answer("a")
    world.submit("later", key="k")
    assert world.answered() == ["first", "later"]
    assert [result.source for _, result in world.delivered if isinstance(result, Result)] == ["computed", "stored"]
    assert len(world.sent) == 1


def test_a_result_that_nobody_waited_for_any_more_is_kept_for_the_retry() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.loop.advance(world.info.deadline_s)
    assert world.errors() == {"first": DeadlineMissed}
    world.answer("a")
    world.submit("again", key="k")
    assert world.answered() == ["again"]
    assert len(world.sent) == 1


def test_the_full_answer_is_kept_though_the_first_client_got_a_partial_one() -> None:
    world = World(members=3)
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.answer("a", members=1)
    world.loop.advance(world.info.deadline_s)
    assert world.qualities() == {"first": "partial"}
    world.answer("a")  # whoever waits elsewhere gets this one, not the first member's
    assert world.kept("k") == "full"


def test_a_failed_item_is_computed_again_by_its_retry() -> None:
    world = World()
    world.up("a")
    for name in ("first", "again"):
        world.submit(name, key="k")
        world.loop.run_due()
        world.answer("a", outcome=Outcome(b"{}", code="model_failed"))
    assert len(world.sent) == 2


def test_a_fallback_is_not_kept() -> None:
    world = World(has_fallback=True)
    world.submit("first", key="k")  # no slot is up
    world.loop.advance(world.info.deadline_s - 0.03)
    world.asked[0][2](Outcome(b"cheap"))
    world.up("a")
    world.submit("again", key="k")
    world.loop.run_due()
    world.answer("a")
    results = [result for _, result in world.delivered if isinstance(result, Result)]
    assert [result.quality for result in results] == ["fallback", "full"]


class Elsewhere(Memory):
    """A store in which another server owns every key until `settle` is called."""

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        self.settle = settle
        settle(JOINED)


def test_what_another_server_computes_is_waited_for_until_the_deadline() -> None:
    world = World(store=Elsewhere(1_000_000, ManualClock()))
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    assert not world.sent
    world.loop.advance(world.info.deadline_s)
    assert world.errors() == {"first": DeadlineMissed}


def test_what_another_server_computed_is_given_to_everyone_who_waits() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.up("a")
    world.submit("first", "second", key="k")
    store.settle(Claim(Kind.RESULT, Stored(b"same", Result(Outcome(b"theirs"), source=Source.JOINED), 0.0)))
    assert world.answered() == ["first", "second"]
    assert not world.sent
    assert world.dispatcher.waiting == 0


def test_what_another_server_gave_up_is_computed_here() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.up("a")
    world.submit("first", key="k")
    store.settle(UNAVAILABLE)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["first"]


def test_a_claim_is_let_go_if_everybody_left_meanwhile() -> None:
    store = Elsewhere(1_000_000, ManualClock())
    world = World(store=store)
    world.submit("first", key="k")
    world.dispatcher.gone(world.attempts["first"])
    let_go: list[Key] = []
    store.abandon = let_go.append  # type: ignore[method-assign, assignment]
    store.settle(OWNER)
    assert let_go == [("m", "k")]


def test_each_attempt_is_answered_by_its_own_deadline() -> None:
    world = World()
    world.submit("first", key="k")
    world.loop.advance(0.5)
    world.submit("again", key="k")
    world.loop.advance(0.5)
    assert world.errors() == {"first": DeadlineMissed}
    world.up("a")
    world.answer("a")
    assert world.answered() == ["again"]


def test_a_request_without_a_key_is_dropped_when_its_client_leaves() -> None:
    world = World()
    world.submit("gone")
    world.dispatcher.gone(world.attempts["gone"])
    world.up("a")
    world.loop.advance(2.0)
    assert (world.sent, world.delivered, world.dispatcher.waiting) == ([], [], 0)


def test_a_request_with_a_key_is_kept_for_a_retry_when_its_client_leaves() -> None:
    world = World()
    world.up("a")
    world.submit("gone", key="k")
    world.loop.run_due()
    world.dispatcher.gone(world.attempts["gone"])
    world.submit("retry", key="k")
    world.answer("a")
    assert world.answered() == ["retry"]
    assert len(world.sent) == 1


def test_a_client_that_leaves_after_its_answer_changes_nothing() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.dispatcher.gone(world.attempts["one"])
    assert world.dispatcher.waiting == 0


def test_a_size_of_the_users_own_is_asked_for_before_the_request_is_queued() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("long")
    world.loop.run_due()
    assert world.sent == []
    ((duty, _, done),) = world.asked
    assert duty == "size"
    done(40.0)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 40.0


def test_a_size_that_cannot_be_told_counts_as_one() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("odd")
    world.asked[0][2](None)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 1.0


def test_a_request_of_infinite_size_gets_its_fallback_at_once_and_no_slot() -> None:
    world = World(has_size=True, has_fallback=True)
    world.up("a")
    world.submit("endless", key="k")
    world.submit("again", key="k")
    world.asked[0][2](inf)
    world.loop.run_due()
    assert [duty for duty, _, _ in world.asked] == ["size", "fallback", "fallback"]
    world.asked[1][2](Outcome(b"cheap"))
    world.asked[2][2](Outcome(b"cheap"))
    assert world.answered() == ["endless", "again"]
    assert world.sent == []
    assert world.dispatcher.waiting == 0


def test_a_request_of_infinite_size_without_a_fallback_is_refused_as_too_long() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("endless")
    world.asked[0][2](inf)
    world.loop.run_due()
    (error,) = (result for name, result in world.delivered if name == "endless")
    assert isinstance(error, BadInput)
    assert error.code == "too_long"
    assert world.sent == []


def test_a_request_joined_while_its_size_is_asked_for_is_queued_once() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("first", key="k")
    world.submit("again", key="k")
    world.asked[0][2](3.0)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["first", "again"]
    assert len(world.sent) == 1


MOVES = ("submit", "retry", "leave", "turn", "wait", "helper")
SLOT_MOVES = tuple(f"{move}_{slot}" for move in ("back", "member", "die", "up") for slot in "ab")
STEPS = st.lists(st.sampled_from(MOVES + SLOT_MOVES))


@given(STEPS, st.booleans(), st.booleans())
def test_every_request_is_delivered_exactly_once_whatever_happens(  # noqa: PLR0912
    steps: list[str], has_fallback: bool, has_size: bool
) -> None:
    world = World(members=3, has_fallback=has_fallback, has_size=has_size)
    up: set[str] = set()
    left: set[str] = set()
    members: dict[str, int] = {}
    for number, step in enumerate(steps):
        match step.split("_"):
            case ["submit"]:
                world.submit(f"r{number}")
            case ["retry"]:
                world.submit(f"r{number}", key="k")
            case ["leave"] if world.attempts:
                name = list(world.attempts)[number % len(world.attempts)]
                if name not in [answered for answered, _ in world.delivered]:
                    left.add(name)
                world.dispatcher.gone(world.attempts[name])
            case ["turn"]:
                world.loop.run_due()
            case ["wait"]:
                world.loop.advance(0.4)
            case ["helper"] if world.asked:
                duty, _, done = world.asked.pop(0)
                done(Outcome(b"cheap") if duty == "fallback" else inf if number % 5 == 0 else 2.0)
            case ["back", slot] if slot in world.running:
                members.pop(slot, None)
                world.answer(slot)
            case ["member", slot] if slot in world.running and members.get(slot, 0) < 2:
                members[slot] = members.get(slot, 0) + 1
                world.answer(slot, members=members[slot])
                if slot not in world.running or world.decided[-1] == (slot, False):
                    members.pop(slot, None)
            case ["die", slot] if slot in up:
                up.remove(slot)
                members.pop(slot, None)
                world.down(slot)
            case ["up", slot] if slot not in up:
                up.add(slot)
                world.up(slot)
    for _ in range(4):  # until the watchdog has looked twice
        world.loop.advance(31.0)
    submitted = [f"r{number}" for number, step in enumerate(steps) if step in ("submit", "retry")]
    assert sorted(name for name, _ in world.delivered) == sorted(set(submitted) - left)
    assert world.dispatcher.waiting == 0
    assert world.loop.timers == 0


def test_a_short_limit_is_not_refused_for_the_margins_sake() -> None:
    world = World()
    world.learn_speed()
    world.submit("short", timeout_s=4 * WARM_UP_S)
    world.loop.run_due()
    assert world.batch() == ["short"]


def test_a_joined_attempt_is_told_so_even_if_the_first_has_left() -> None:
    world = World()
    world.up("a")
    world.submit("first", key="k")
    world.loop.run_due()
    world.submit("again", key="k")
    world.dispatcher.gone(world.attempts["first"])
    world.answer("a")
    ((name, result),) = world.delivered
    assert isinstance(result, Result)
    assert (name, result.source) == ("again", Source.JOINED)


@pytest.mark.parametrize("size", [float("nan"), -1.0, 1e300, -inf])
def test_a_size_beyond_reason_counts_as_one(size: float) -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("odd")
    world.asked[0][2](size)
    world.loop.run_due()
    assert world.sent[0][1].tickets[0].size == 1.0


def test_a_client_that_leaves_while_its_size_is_asked_for_leaves_nothing_behind() -> None:
    world = World(has_size=True)
    world.up("a")
    world.submit("gone", key="k")
    world.dispatcher.gone(world.attempts["gone"])
    world.submit("retry", key="k")
    for _, _, done in world.asked:
        done(2.0)
    world.loop.run_due()
    world.answer("a")
    assert world.answered() == ["retry"]


def test_one_pause_is_one_accident_however_many_guards_it_hits() -> None:
    world = World()
    for number in range(200):
        world.submit(f"r{number}")
    world.loop.pause(3.0)
    assert len(world.errors()) == 200
    world.loop.advance(30.0)
    world.submit("later")  # by then the pause is forgotten
    assert world.dispatcher.margin_s == MARGIN_S


def test_votes_go_to_the_items_that_asked() -> None:
    world = World(members=2)
    world.up("a")
    for name, wants_votes in (("one", False), ("two", True)):
        request = Request(name, "m", name.encode(), world.clock.now(), world.clock.now() + 1, wants_votes=wants_votes)
        world.dispatcher.submit(request, world._deliver_to(name))
    world.loop.run_due()
    asked = [ticket.payload.wants_votes for ticket in world.sent[-1][1].tickets]
    outcomes = [Outcome(b"answer") for _ in asked]
    world.dispatcher.report("a", Report(outcomes, NO_TIME, 2, 2, {asked.index(True): "[1]"}))
    votes = {name: result.votes for name, result in world.delivered if isinstance(result, Result)}
    assert votes == {"one": "", "two": "[1]"}


def test_a_partial_answer_keeps_the_votes_it_came_with() -> None:
    world = World(members=3, deadline_s=1.0)
    world.up("a")
    now = world.clock.now()
    world.dispatcher.submit(Request("one", "m", b"one", now, now + 1, wants_votes=True), world._deliver_to("one"))
    world.loop.run_due()
    world.loop.advance(0.1)
    world.dispatcher.report("a", Report([Outcome(b"so far")], NO_TIME, 2, 3, {0: "[1,2]"}))
    world.loop.advance(2)
    ((_, result),) = world.delivered
    assert isinstance(result, Result)
    assert (result.quality, result.members, result.votes) == ("partial", 2, "[1,2]")


def test_a_stall_of_the_process_is_expected_again_also_for_those_who_wait_already() -> None:
    world = World()
    world.submit("waits")
    world.loop.advance(0.5)
    world.loop.pause(0.060)  # the loop stands still for 60 ms, 40 of them past its pulse
    assert world.dispatcher.margin_s == pytest.approx(0.080, abs=0.003)
    world.loop.advance(0.37)  # deadline less 70 ms: the stall is two fifths of a half-life old
    assert world.errors() == {"waits": DeadlineMissed}


def test_more_is_kept_free_while_processes_start() -> None:
    world = World()
    world.submit("waits")
    world.dispatcher.strain(is_on=True)
    assert world.dispatcher.margin_s == 0.030
    world.loop.advance(0.971)
    assert world.errors() == {"waits": DeadlineMissed}
    world.dispatcher.strain(is_on=False)
    assert world.dispatcher.margin_s == MARGIN_S


def test_guards_set_early_for_a_strain_that_is_over_wait_for_their_time() -> None:
    world = World()
    world.dispatcher.strain(is_on=True)
    world.submit("waits")
    world.dispatcher.strain(is_on=False)
    world.loop.advance(0.980)
    assert world.delivered == []
    world.loop.advance(0.011)
    assert world.errors() == {"waits": DeadlineMissed}


def test_no_timer_is_left_when_nobody_waits() -> None:
    world = World()
    world.up("a")
    world.submit("one")
    world.loop.run_due()
    world.answer("a")
    world.loop.advance(60.0)
    assert world.loop.timers == 0
