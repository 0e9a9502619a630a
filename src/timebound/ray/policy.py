"""How many replicas there should be, from the work that arrives: a policy for Ray Serve's autoscaler.

Every replica tells its `load_ratio`: seconds of work that arrive per second and slot, over the last ten seconds,
whatever becomes of it. Their sum is the work for all, in replicas. There should be so many that each has 0.7 of what
it can do:

    wanted = ceil(sum of load ratios / 0.7)

A queue would not do: one that keeps up has none, and then a replica would be taken away that is needed. Three things
keep the number from going up and down. Fewer are wanted only if those that are left would have at most 0.6 each. For a
window after the number of replicas has changed nothing is decided, as their ratios still tell of the time before. And
Ray waits for `upscale_delay_s` and `downscale_delay_s`.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Protocol

GOAL = 0.7
"""Load of one replica: above, what comes at random is not always in time; a replica's death is to be survived too."""
DOWN = 0.6
"""Load that those who are left may have after others were taken away."""
WINDOW_S = 10.0
"""Over which a replica's `load_ratio` is taken (observe/signals.py)."""

_COUNT, _SINCE = "timebound_replicas", "timebound_since"


class Context(Protocol):
    """What Ray's autoscaler tells of a deployment."""

    current_num_replicas: int
    target_num_replicas: int
    current_time: float | None
    policy_state: dict[str, Any]

    @property
    def raw_metrics(self) -> Any: ...


def policy(context: Context) -> tuple[int, dict[str, Any]]:
    """The number of replicas to have, and what to remember; `policy_function: timebound.ray:policy`."""
    running, now = context.current_num_replicas, context.current_time or 0.0
    state = dict(context.policy_state)
    if state.get(_COUNT) != running:
        # Its first look is no change: then there is nothing to wait for.
        state = {**state, _COUNT: running, _SINCE: now if _COUNT in state else now - WINDOW_S}
    loads = _loads(context)
    if not loads or now - state[_SINCE] < WINDOW_S:
        return context.target_num_replicas, state
    return wanted(sum(loads), len(loads), running), state


def wanted(load: float, reported: int, running: int) -> int:
    """Replicas for this load, the sum of those that reported; those that did not are as busy as the others."""
    load = load * running / reported
    more, fewer = ceil(load / GOAL - 1e-9), max(1, ceil(load / DOWN - 1e-9))
    return more if more > running else min(running, fewer)


def _loads(context: Context) -> list[float]:
    """The newest ratio of each replica; Ray's own mean over half a minute would be late by that."""
    found = (context.raw_metrics or {}).get("load_ratio", {})
    return [series[-1].value for series in found.values() if series]
