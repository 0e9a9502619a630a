"""Which requests were the server's to answer, and whether a model answered them before their deadline."""

from __future__ import annotations

from timebound.events import Answered, Refused
from timebound.types import Quality

_CLIENTS_OWN = ("rate_limited", "client_busy")
"""Refusals with a 429 that say nothing about the load."""


def slack_s(event: Answered) -> float:
    """Seconds that were left until its deadline; below zero if it was late."""
    question = event.request
    return question.deadline - question.arrived - event.seconds


def is_in_time(event: Answered) -> bool | None:
    """Whether a model answered it, in full or in part, before its deadline; None if it was the client's mistake."""
    if not event.result.outcome.code:
        return event.result.quality is not Quality.FALLBACK and slack_s(event) >= 0
    return False if event.status >= 500 else None


def is_ours(event: Refused) -> bool:
    """Whether it was refused for what the server lacked."""
    return is_servers_own(event.status, event.code)


def is_servers_own(status: int, code: str) -> bool:
    """The same of what is known of it later."""
    return status >= 500 or (status == 429 and code not in _CLIENTS_OWN)
