"""A dispatcher between a client and slots that do what a test says, on a manual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.manual_loop import PunctualLoop

from timebound.catalogue import Catalogue
from timebound.clock import ManualClock
from timebound.errors import RequestError
from timebound.events import BatchFinished, BatchLost, BatchStarted, Degraded, Events
from timebound.requests.dispatcher import Dispatcher
from timebound.requests.request import Attempt
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch
from timebound.store.memory import Memory
from timebound.types import Loss, ModelInfo, Outcome, Question, Report, Result, Timing

MARGIN_S = 0.010
WARM_UP_S = 0.001
NO_TIME = Timing()


class World:
    """A dispatcher for one model, the batches it sent, what it decided, asked and delivered."""

    def __init__(
        self, *, early_s: float = 0.0, store: Memory | None = None, max_queue: int = 4096, **info: Any
    ) -> None:
        self.clock = ManualClock(100.0)
        self.loop = PunctualLoop(self.clock, early_s=early_s)  # type: ignore[abstract]
        self.info = ModelInfo(name="m", warm_up_s=WARM_UP_S, **info)
        self.sent: list[tuple[Any, Batch, list[bytes]]] = []
        self.asks_after_s: list[float] = []
        self.running: dict[Any, list[bytes]] = {}
        self.killed: list[Any] = []
        self.decided: list[tuple[Any, bool]] = []
        self.left_off: list[tuple[Any, list[int]]] = []
        self.asked: list[tuple[str, bytes, Callable[[Any], None]]] = []
        self.away: list[tuple[bytes, Callable[[Outcome, float], None]]] = []
        self.called_off: list[int] = []
        self.delivered: list[tuple[str, Result | RequestError]] = []
        self.attempts: dict[str, Attempt] = {}
        self.seen: list[Any] = []
        self.events = Events()
        for kind in (BatchStarted, BatchFinished, BatchLost, Degraded):
            self.events.on(kind, self.seen.append)
        self.store = Memory(1_000_000, self.clock) if store is None else store
        self.catalogue = Catalogue(self.clock)
        self.dispatcher = Dispatcher(
            Scheduler(MARGIN_S),
            self.catalogue,
            slots=self,
            helper=self,
            fetcher=self,
            clock=self.clock,
            events=self.events,
            loop=self.loop,
            margin_s=MARGIN_S,
            store=self.store,
            wall=lambda: 0.0,
            max_queue=max_queue,
        )
        self.catalogue.listen(self.dispatcher.add_model, self.dispatcher.remove_model)
        self.catalogue.update([self.info], {})

    def send(self, slot: Any, batch: Batch, bodies: list[bytes], *, ask_after_s: float, votes: list[int]) -> None:
        assert slot not in self.running, "a slot runs one batch at a time"
        self.sent.append((slot, batch, bodies))
        self.asks_after_s.append(ask_after_s)
        self.running[slot] = bodies

    def leave_off(self, slot: Any, batch: Batch, places: list[int]) -> None:
        self.left_off.append((slot, places))

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

    def fetch(self, model: str, body: bytes, done: Callable[[Outcome, float], None]) -> int:
        self.away.append((body, done))
        return len(self.away)

    def call_off(self, number: int) -> None:
        self.called_off.append(number)

    def up(self, *slots: str) -> None:
        for slot in slots:
            self.dispatcher.slot_up(slot)

    def down(self, *slots: str, loss: Loss = Loss.CRASHED) -> None:
        for slot in slots:
            self.running.pop(slot, None)
        self.dispatcher.slots_down(slots, loss)

    def submit(
        self,
        *names: str,
        key: str | None = None,
        timeout_s: float | None = None,
        body_of_key: bytes | None = b"same",
        request_id: str | None = None,
    ) -> None:
        """Hand requests in, each alone or all as one; each one's body is its own name, or with a key the same."""
        for name in names:
            now = self.clock.now()
            deadline = now + (self.info.deadline_s if timeout_s is None else timeout_s)
            body = name.encode() if key is None or body_of_key is None else body_of_key
            fingerprint = b"" if key is None else body
            request = Question(request_id or name, "m", body, now, deadline, key, fingerprint=fingerprint)
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
