"""Items that came in one request: if several of them kill workers, the others are not tried one by one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from timebound.requests.request import Request

LOST = 2
"""Batches with items of one request that may be lost before its others are suspects,"""
PROVEN = 2
"""and items of it that are proven guilty before its others are not run any more."""
MOST_GROUPS = 256

Group: TypeAlias = tuple[str, str, str, float]


class Groups:
    """Remembers of at most `MOST_GROUPS` requests what was lost with their items; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._lost: OrderedDict[Group, int] = OrderedDict()
        self._proven: OrderedDict[Group, int] = OrderedDict()

    def lost(self, requests: list[Request]) -> Group | None:
        """A batch of these was lost by its own doing; the group of most of them if that was once too often for it."""
        groups = [group for request in requests if (group := group_of(request)) is not None]
        worst = max(set(groups), key=groups.count, default=None)
        if worst is None or 2 * groups.count(worst) <= len(requests):
            return None
        return worst if _count(self._lost, worst) == LOST else None

    def proven(self, guilty: Request) -> Group | None:
        """It is guilty; its group if that was once too often for those it came with."""
        group = group_of(guilty)
        return group if group is not None and _count(self._proven, group) >= PROVEN else None


def group_of(request: Request) -> Group | None:
    """The request it came with; None if nobody waits for it any more."""
    if not request.attempts:
        return None
    question = request.attempts[0].question
    return question.id, question.client, question.address, question.arrived


def _count(counts: OrderedDict[Group, int], group: Group) -> int:
    counts[group] = counts.get(group, 0) + 1
    counts.move_to_end(group)
    if len(counts) > MOST_GROUPS:
        counts.popitem(last=False)
    return counts[group]
