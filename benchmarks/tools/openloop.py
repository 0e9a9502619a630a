"""The open loop of the goodput benchmark: who waits too long asks again.

An attempt that has no answer at its deadline is abandoned (the connection is closed) and the same request is sent
again at once; an error status is answered by sending again too. The client is the lab's, as in `timebound bench`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvloop

from benchmarks.tools.load import Traffic, asking
from timebound.lab.load.attempts import Asker, End, Flight, Manners, Question
from timebound.lab.load.client import Reply
from timebound.lab.load.health import undisturbed
from timebound.lab.load.loops import OpenLoop
from timebound.lab.load.schedule import Phase, poisson

DEADLINE_S = 0.25
# Two re-sends; Retry-After is heeded for 50 ms at the most, and what asks for more is counted.
MANNERS = Manners(DEADLINE_S, resends=2)
MOST_RETRY_AFTER_S = 0.05


class Heedful(Asker):
    """Sends again after an error status too, and waits before that for as long as it is asked to, within reason."""

    resent = frozenset((End.TIMED_OUT, End.LOST, End.REFUSED))
    _asked_s = 0.0
    _waiting = 0

    @property
    def under_way(self) -> int:
        return super().under_way + self._waiting

    def answered(self, flight: Flight, reply: Reply) -> None:
        self._asked_s = _retry_after_s(reply)
        super().answered(flight, reply)
        self._asked_s = 0.0

    def send_again(self, flight: Flight) -> None:
        flight.attempt.asked_to_wait = self._asked_s > MOST_RETRY_AFTER_S
        wait_s, self._asked_s = min(self._asked_s, MOST_RETRY_AFTER_S), 0.0
        if not wait_s:
            super().send_again(flight)
            return
        self._waiting += 1
        again = self.clock.now() + wait_s
        self.alarm.at(again, self._after_wait, flight, again)

    def _after_wait(self, flight: Flight, again: float) -> None:
        self._waiting -= 1
        self.attempt(flight.question, flight.exchange, again, flight.done)


def _retry_after_s(reply: Reply) -> float:
    try:
        return float(reply.header(b"retry-after") or 0)
    except ValueError:  # a date: as good as none for a client in a hurry
        return 0.0


@dataclass(frozen=True)
class Record:
    """All questions of one run, in seconds since it began, and what the client itself cost (in cores)."""

    questions: list[Question]
    seconds: float
    client_cpu: float
    connections: int


async def _drive(traffic: Traffic, times: Iterator[float], manners: Manners) -> list[Question]:
    questions: list[Question] = []
    async with asking(traffic, manners, Heedful) as asker:
        began = asker.clock.now()
        await OpenLoop(times).run(asker, traffic.next, questions.append)
    for question in questions:
        _since(began, question)
    return sorted(questions, key=lambda question: question.intended)


def _since(began: float, question: Question) -> None:
    question.intended -= began
    for attempt in question.attempts:
        attempt.intended -= began
        attempt.begun -= began
        attempt.sent -= began if attempt.sent else 0.0


def drive(traffic: Traffic, phases: Sequence[Phase], seed: int, manners: Manners = MANNERS) -> Record:
    """Send what arrives in these phases and wait for the last answer; every attempt ends at its deadline."""
    with undisturbed(realtime=True):
        began, cpu = time.perf_counter(), time.process_time()
        questions = uvloop.run(_drive(traffic, poisson(phases, seed), manners))
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    return Record(questions, sum(phase.seconds for phase in phases), share, traffic.connections)
