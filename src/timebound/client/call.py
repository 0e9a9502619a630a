"""One call from question to answer, without waiting itself: it says what to do next, and is told what came of it.

`Client` and `AsyncClient` drive the same generator; all that differs between them is how they wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from timebound.client.address import Address
from timebound.client.answer import Answer, Read, read_answer, read_error
from timebound.client.errors import CallFailed, DeadlineMissed, ModelFailed, Unreachable
from timebound.client.message import NotHttp, Reply, head, header
from timebound.client.retry import LEAST_S, RETRIED, Plan, Random, Standing
from timebound.clock import Clock

WAIT_S = 70.0
"""How long a call without a deadline waits in all: a server with the usual options keeps no request beyond 60."""
CONNECT_S = 3.0
"""What opening a connection may take; less where other servers could be asked in that time."""


def is_passing(error: CallFailed) -> bool:
    """Whether the same request may be answered the next time; what a model raises it raises again."""
    return error.status in RETRIED and not isinstance(error, ModelFailed)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One request, the same bytes for every attempt but for its host and the time that remains."""

    method: str
    path: str
    lines: list[bytes]
    body: bytes | None = None
    key: str | None = None
    seconds: float | None = None
    """The deadline, as a length from the call on; None leaves it to the model."""
    attempt_s: float | None = None
    """How long one attempt may take; None: all that remains."""
    retries: int | None = None
    can_retry: Callable[[CallFailed], bool] = is_passing
    good: int = 200
    """The status of the answer that is wanted."""
    is_sought: bool = False
    """Whether a server that has not found it leaves the question to the next."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A step: send this to that server and read its reply, all of it before `until`."""

    question: Question
    address: Address
    until: float
    connect_until: float
    deadline: float
    """Of the whole call: what remains of it is what the server is told."""

    def head(self, now: float, way_s: float) -> bytes:
        """The request's head, if it is sent now; `way_s` is what a question and its answer need on the way."""
        question = self.question
        lines = [header("host", self.address.host_header), *question.lines]
        if question.seconds is not None:
            left = self.deadline - now
            told_ms = (left - min(way_s, left / 10.0)) * 1e3  # the server does not know the way: it is told less
            lines.append(b"timebound-timeout-ms: %.1f\r\n" % max(told_ms, 0.1))
        body = question.body
        return head(question.method, self.address.prefix + question.path, lines, None if body is None else len(body))


class Pause(msgspec.Struct, frozen=True):
    """A step: wait for so many seconds."""

    seconds: float


class Lost(msgspec.Struct, frozen=True):
    """What a driver says of an attempt that brought no reply."""

    why: str
    is_down: bool = True
    """Whether the server seems to be gone, and has not just taken too long."""
    is_final: bool = False
    """Whether it will be the same next time, such as a certificate that is not trusted."""


def lost(error: Exception) -> Lost:
    """Why there is no reply, in few words."""
    if isinstance(error, NotHttp):
        return Lost(str(error))
    if isinstance(error, TimeoutError):
        return Lost("no connection in time")
    if isinstance(error, ConnectionRefusedError):
        return Lost("connection refused")
    message = getattr(error, "verify_message", None)  # of ssl's own error, which need not be imported to know it
    if message:
        return Lost(f"its certificate is not trusted ({message}); give its authority with ca=", is_final=True)
    return Lost((getattr(error, "strerror", None) or str(error) or type(error).__name__).lower())


@contextmanager
def broken_off(server: str) -> Iterator[None]:
    """What goes wrong while a stream is read, as an error of the call."""
    try:
        yield
    except CallFailed:  # one of them is a TimeoutError too
        raise
    except TimeoutError:
        raise DeadlineMissed("the deadline came between two events") from None
    except (OSError, NotHttp) as error:
        raise Unreachable(f"the stream broke off: {server}: {lost(error).why}") from None


Step: TypeAlias = Attempt | Pause
Steps: TypeAlias = Generator[Step, Reply | Lost | None, tuple[Reply, int, str]]


class Surroundings(msgspec.Struct, frozen=True):
    """What calls of one client share."""

    addresses: Sequence[Address]
    standing: Standing
    clock: Clock
    random: Random


def preferred(addresses: Sequence[Address], key: str | None, random: Random) -> list[int]:
    """The servers' places in the order in which this key asks them, the same for every client; any order without a key.

    So a key comes back to the server that knows it, also where servers share no store, and keys are spread evenly.
    """
    places = range(len(addresses))
    if len(addresses) == 1:
        return [0]
    if key is None:
        return sorted(places, key=lambda _: random())
    import hashlib  # 3 ms that a single server need not cost

    return sorted(places, key=lambda place: hashlib.sha256(f"{addresses[place].url} {key}".encode()).digest())


def steps(question: Question, around: Surroundings) -> Steps:
    """The call's steps; returns the reply, how often was sent, and who answered. Raises `CallFailed`."""
    clock, began = around.clock, around.clock.now()
    deadline = began + (WAIT_S if question.seconds is None else question.seconds)
    order = around.standing.order(preferred(around.addresses, question.key, around.random), began)
    plan = Plan(order, deadline, question.retries, around.random)
    attempts, unasked, last, lost = 0, set(order), None, {}  # type: int, set[int], CallFailed | None, dict[str, str]
    while (chosen := plan.next(clock.now())) is not None:
        place, at = chosen
        if (wait := at - clock.now()) > 0:
            yield Pause(wait)
        attempts += 1
        address = around.addresses[place]
        attempt = _attempt(question, address, clock.now(), deadline, len(unasked))
        said = yield attempt
        unasked.discard(place)
        now = clock.now()
        if isinstance(said, Lost):
            around.standing.met(place, now, is_down=said.is_down or attempt.until < deadline)
            plan.failed(place, now)
            lost[address.url] = said.why
            last = None
            if said.is_final and not unasked:
                break
            continue
        assert said is not None
        around.standing.met(place, now, is_down=False)
        if said.status == question.good:
            return said, attempts, address.url
        last = read_error(said)
        if question.is_sought and said.status == 404 and unasked:
            plan.failed(place, now)
        elif question.can_retry(last):
            plan.failed(place, now, last.retry_after)
        else:
            break
    error = last or _no_answer(question, deadline, clock.now(), lost)
    error.attempts = attempts
    raise error


def _attempt(question: Question, address: Address, now: float, deadline: float, unasked: int) -> Attempt:
    until = deadline if question.attempt_s is None else min(deadline, now + question.attempt_s)
    connect_until = now + min(CONNECT_S, (until - now) / max(1, unasked))
    return Attempt(question=question, address=address, until=until, connect_until=connect_until, deadline=deadline)


def _no_answer(question: Question, deadline: float, now: float, lost: dict[str, str]) -> CallFailed:
    reasons = "; ".join(f"{url}: {why}" for url, why in lost.items())
    if now + LEAST_S > deadline:
        seconds = WAIT_S if question.seconds is None else question.seconds
        return DeadlineMissed(f"no answer within {seconds:g} s" + (f" ({reasons})" if reasons else ""))
    return Unreachable(f"no server answers: {reasons}" if reasons else "there was no time to ask a server")


def answered(ended: tuple[Reply, int, str], read: Read, key: str | None, elapsed: float) -> Answer[Any]:
    """The answer that a call's steps returned."""
    reply, attempts, server = ended
    return read_answer(reply, read, key=key, elapsed=elapsed, attempts=attempts, server=server)
