"""Loads that contests and load tests really use, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scenario:
    """A meaning for people, and what it sets of a `Plan`; flags that are given beat it."""

    meaning: str
    settings: Mapping[str, Any]


# Each attempt has a time limit; a client that gets no answer within it sends the same request again, twice at most.
CONTEST: Mapping[str, Any] = {"timeout_s": 1.0, "resends": 2, "deadline_s": 1.0}

SCENARIOS: Mapping[str, Scenario] = {
    "contest-10x10": Scenario(
        "10 clients at once, 10 requests each; limit 1 s, two re-sends of the same request",
        {"clients": 10, "requests": 100, "is_shared_out": True, "seconds": None, **CONTEST},
    ),
    "10000-by-5": Scenario("10,000 requests, 5 at a time", {"clients": 5, "requests": 10_000, "seconds": None}),
    "users-70": Scenario(
        "70 users who wait 2 to 5 s after each answer, for a minute",
        {"clients": 70, "think_s": (2.0, 5.0), "seconds": 60.0},
    ),
    "users-100": Scenario(
        "100 users who wait 2 to 5 s after each answer, for a minute",
        {"clients": 100, "think_s": (2.0, 5.0), "seconds": 60.0},
    ),
    "1000-by-50": Scenario("1,000 requests, 50 at a time", {"clients": 50, "requests": 1000, "seconds": None}),
}
