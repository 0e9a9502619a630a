"""The open loop of the goodput benchmark: who waits too long asks again.

An attempt that has no answer at its deadline is abandoned (the connection is closed) and the same request is sent
again at once; an error status is answered by sending again too. The client is the lab's, as in `timebound bench`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import uvloop

from benchmarks.tools.load import Traffic, asking
from timebound.lab.load.attempts import Manners, Question
from timebound.lab.load.health import undisturbed
from timebound.lab.load.loops import OpenLoop
from timebound.lab.load.schedule import Phase, poisson

DEADLINE_S = 0.25
# Two re-sends; Retry-After is heeded for 50 ms at the most, and what asks for more is counted.
MANNERS = Manners(DEADLINE_S, resends=2, resends_refused=True, most_retry_after_s=0.05)


@dataclass(frozen=True)
class Record:
    """All questions of one run, in seconds since it began, and what the client itself cost (in cores)."""

    questions: list[Question]
    seconds: float
    client_cpu: float
    connections: int


async def _drive(traffic: Traffic, times: Iterator[float]) -> list[Question]:
    questions: list[Question] = []
    async with asking(traffic, MANNERS) as course:
        began = course.clock.now()
        await OpenLoop(times).run(replace(course, done=questions.append))
    for question in questions:
        _since(began, question)
    return sorted(questions, key=lambda question: question.intended)


def _since(began: float, question: Question) -> None:
    question.intended -= began
    for attempt in question.attempts:
        attempt.intended -= began
        attempt.begun -= began
        attempt.sent -= began if attempt.sent else 0.0


def drive(traffic: Traffic, phases: Sequence[Phase], seed: int) -> Record:
    """Send what arrives in these phases and wait for the last answer; every attempt ends at its deadline."""
    with undisturbed(realtime=True):
        began, cpu = time.perf_counter(), time.process_time()
        questions = uvloop.run(_drive(traffic, poisson(phases, seed)))
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    return Record(questions, sum(phase.seconds for phase in phases), share, traffic.connections)
