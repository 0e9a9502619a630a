"""In which order several workers run the tests: the longest begin, so that nobody is left alone with one at the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def dealt(items: Sequence[Item], long_group: Callable[[Item], Hashable | None], workers: int) -> list[Item]:
    """So ordered that each worker begins with its share of the groups of long ones; a group stays together.

    By `--dist worksteal` each worker first gets as many as the others, in a row; who is done takes from another's end.
    """
    groups: dict[Hashable, list[Item]] = {}
    short: list[Item] = []
    for item in items:
        group = long_group(item)
        (short if group is None else groups.setdefault(group, [])).append(item)
    others, order = iter(short), list[Item]()
    for worker in range(workers):
        count = (len(items) - len(order)) // (workers - worker)
        mine = [item for group in list(groups.values())[worker::workers] for item in group]
        order += [*mine, *islice(others, max(0, count - len(mine)))]
    return order
