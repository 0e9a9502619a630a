"""What each contestant goes through: a closed loop, overload with retries, broken items, the death of a worker."""

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress

import uvloop

from benchmarks.peers.record import Closed, Kill, Overload, Poison
from benchmarks.peers.running import Running
from benchmarks.tools.goodput_report import BY_MODEL, summarise
from benchmarks.tools.load import is_right, measure
from benchmarks.tools.openloop import Record, drive
from benchmarks.tools.seen import count_seen
from timebound.lab.load.attempts import End, Exchange, Question
from timebound.lab.load.client import Address, fetch
from timebound.lab.load.processes import ForeignLoad
from timebound.lab.load.schedule import Phase

# So far away that nothing has to be left out; the others do not read it.
UNHURRIED = "Timebound-Timeout-Ms: 5000\r\n"
BROKEN, IN_ALL = 8, 64
POISON_SEED = 1
# Enough for full batches, and no more than a server with a short queue takes.
AT_A_TIME = 16
POISON_TIMEOUT_S = 10.0
KILL_LOAD = 0.5
# So long before the kill the server is at work.
KILL_AFTER_S = 1.5


def closed_loop(running: Running, concurrency: int, seconds: float) -> Closed:
    """So many requests under way all the time; nobody leaves."""
    foreign = ForeignLoad()
    load = measure(running.traffic(UNHURRIED), concurrency, seconds)
    failed = load.errors + load.degraded
    return Closed(concurrency, load.rps, load.p50_ms, load.p99_ms, failed, load.client_cpu, foreign.cores())


def overload(running: Running, load: float, capacity: float, seconds: float, seed: int) -> Overload:
    """Poisson arrivals; who has no answer at the deadline leaves and sends again, twice."""
    is_fresh = running.ready()
    worked = count_seen(running.seen).total()
    foreign = ForeignLoad()
    record = drive(running.traffic(), [Phase(load * capacity, seconds)], seed)
    level = summarise(record, load, foreign.cores())
    return Overload(level, count_seen(running.seen).total() - worked, is_fresh)


def poison(running: Running) -> Poison:
    """A few at a time, some of them broken: which of the good suffer with them?"""
    running.ready()
    traffic = running.traffic(UNHURRIED)
    # The same places for all; not in even steps, which would give each batch exactly one.
    places = set(random.Random(POISON_SEED).sample(range(IN_ALL), BROKEN))
    exchanges = [traffic.broken() if place in places else traffic.next() for place in range(IN_ALL)]
    good, broken = Counter[str](), Counter[str]()
    for place, status in enumerate(uvloop.run(_ask_all(traffic.address, exchanges))):
        (broken if place in places else good)[status] += 1
    return Poison(good["right"], IN_ALL - BROKEN, dict(good), dict(broken))


async def _ask_all(address: Address, exchanges: list[Exchange]) -> list[str]:
    places = asyncio.Semaphore(AT_A_TIME)
    return await asyncio.gather(*(_ask(places, address, exchange) for exchange in exchanges))


async def _ask(places: asyncio.Semaphore, address: Address, exchange: Exchange) -> str:
    """`right`, or the status, or how it failed."""
    try:
        async with places:
            reply = await fetch(address, exchange.request, POISON_TIMEOUT_S)
    except TimeoutError:
        return "timed out"
    except ConnectionError:
        return "lost"
    return "right" if reply.status == 200 and is_right(exchange, reply) else str(reply.status)


def kill(running: Running, capacity: float, seconds: float, seed: int) -> Kill:
    """SIGKILL to the busiest worker at half load."""
    running.ready()
    workers = running.workers()
    # A server that is one process is its own worker.
    timer = threading.Timer(KILL_AFTER_S, _end, [*workers, running.server.pid][:1])
    foreign = ForeignLoad()
    timer.start()
    record = drive(running.traffic(), [Phase(KILL_LOAD * capacity, KILL_AFTER_S + seconds)], seed)
    timer.join()
    after = len(running.workers())
    return _since_kill(record, len(workers), after, foreign.cores())


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _since_kill(record: Record, before: int, after: int, foreign_cores: float) -> Kill:
    # Those that were under way count too: an attempt takes a deadline at the most.
    questions = [question for question in record.questions if _ended(question) >= KILL_AFTER_S]
    failures = [attempt for question in questions for attempt in question.attempts if attempt.end is not End.ANSWERED]
    count = len(questions) or 1
    return Kill(
        goodput=sum(_quality(question) in BY_MODEL for question in questions) / count,
        failed_attempts=len(failures),
        failures=dict(Counter(str(attempt.status or attempt.end) for attempt in failures)),
        fallbacks=sum(_quality(question) == "fallback" for question in questions) / count,
        last_failure_s=max((attempt.intended + attempt.latency for attempt in failures), default=KILL_AFTER_S)
        - KILL_AFTER_S,
        workers_before=before,
        workers_after=after,
        foreign_cores=foreign_cores,
    )


def _ended(question: Question) -> float:
    return question.intended + question.latency


def _quality(question: Question) -> str:
    last = question.last
    return last.quality if last.end is End.ANSWERED and last.is_right else ""
