"""How many cores this process may use: those it may run on, and no more than its control groups allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def cores() -> int:
    """The cores to count on; one at least.

    Part of a core is not counted: who computes on more cores than it may use is stopped for the rest of each period,
    mid-batch and with the gateway, and that makes answers late.
    """
    usable, quota = len(os.sched_getaffinity(0)), core_quota()
    return usable if quota is None else max(1, min(usable, int(quota)))


def core_quota(root: Path = _ROOT) -> float | None:
    """Cores that the control groups of this process let it use (cgroup v1 and v2); None if none sets a limit."""
    found = [quota for folder in _groups(root) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The group's folder and those around it, for a limit holds for all below. A container may see its own on top."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if names == [""]:
            tops = [mounts, mounts / "unified"]
        elif "cpu" in names:
            tops = [mounts / controllers, mounts / "cpu", mounts / "cpu,cpuacct"]
        else:
            continue
        below = PurePosixPath(path.lstrip("/"))
        yield from (top / part for top in tops for part in (below, *below.parents))


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    return int(quota) / int(period) if quota.isdecimal() and int(period) else None  # else "max", or -1
