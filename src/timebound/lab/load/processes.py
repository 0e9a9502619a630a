"""What the system says of processes: their family, their memory, and how much others disturb."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        stat = stat_of(pid)
        if stat:
            children[int(stat[1])].append(pid)
    tree, fresh = [root], [root]
    while fresh:
        fresh = [child for parent in fresh for child in children[parent]]
        tree += fresh
    return tree


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from `state` on (the name before may contain spaces); empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def pss_mib(pid: int) -> float:
    """Memory of one process; what several share counts in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def tree_pss_mib(root: int) -> float:
    """Memory of a process and all its descendants; what they share counts once."""
    return sum(map(pss_mib, process_tree(root)))


def tree_cpu_s(root: int) -> float:
    """CPU seconds used so far by the tree, including children that have ended."""
    stats = [stat_of(pid) for pid in process_tree(root)]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / _TICKS


def machine_cpu_s() -> float:
    """CPU seconds used so far by everything on this machine, all cores."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _TICKS


class ForeignLoad:
    """How many cores others keep busy: all use of the machine less that of this process tree."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._others = machine_cpu_s() - tree_cpu_s(os.getpid())

    def cores(self) -> float:
        """Mean since the start."""
        others = machine_cpu_s() - tree_cpu_s(os.getpid()) - self._others
        return max(0.0, others / (time.monotonic() - self._began))
