"""What a simulated run amounts to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from timebound.lab.simulate import quantile


@dataclass(slots=True, eq=False)
class Request:
    """What a user wanted, and what came of it."""

    key: int
    model: str
    arrived: float
    size: float
    deadline_s: float
    attempts: int = 0
    answers: int = 0
    quality: str = "none"  # full, partial, fallback, refused, none
    members: int = 0
    answered_at: float = inf
    answered_attempt: int = 0
    runs: int = 0  # batches that computed it to an end
    done: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Shares are of the requests that arrived in the judged part of the run."""

    requests: int
    in_time: float  # answered by the model, to the first attempt, before the deadline
    full: float
    fallback: float
    late: int
    lost: int  # no answer at all
    computed_twice: int
    mean_members: float
    p50_over_deadline: float  # of model answers
    p99_over_deadline: float
    mean_batch: float
    in_time_longest: float  # the longest twentieth
    sends: float  # attempts per request
    reasons: dict[str, int] = field(default_factory=dict)


def is_in_time(request: Request) -> bool:
    return request.members > 0 and request.answered_attempt == 1


def summarise(
    requests: Sequence[Request], batch_sizes: Sequence[int], reasons: Counter[str], since: float, until: float
) -> Report:
    judged = [request for request in requests if since <= request.arrived < until]
    count = max(1, len(judged))
    good = [request for request in judged if is_in_time(request)]
    waits = [(request.answered_at - request.arrived) / request.deadline_s for request in good]
    longest = sorted(judged, key=lambda request: request.size)[int(0.95 * len(judged)) :]
    return Report(
        requests=len(judged),
        in_time=len(good) / count,
        full=sum(request.quality == "full" for request in good) / count,
        fallback=sum(request.quality == "fallback" for request in judged) / count,
        late=sum(wait > 1.0 + 1e-9 for wait in waits),
        lost=sum(request.answers == 0 for request in judged),
        computed_twice=sum(request.runs > 1 for request in requests),
        mean_members=sum(request.members for request in good) / max(1, len(good)),
        p50_over_deadline=quantile(waits, 0.5),
        p99_over_deadline=quantile(waits, 0.99),
        mean_batch=sum(batch_sizes) / max(1, len(batch_sizes)),
        in_time_longest=sum(map(is_in_time, longest)) / max(1, len(longest)),
        sends=sum(request.attempts for request in judged) / count,
        reasons=dict(reasons),
    )
