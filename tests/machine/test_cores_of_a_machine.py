"""Cores that may be used, read from control groups as they lie in a system's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timebound.machine import cores as cores_of


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A system of files with these control groups."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1 = "0::/app.slice/timebound\n", "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (V2, {}, None),
        (V2, {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (V2, {"sys/fs/cgroup/app.slice/timebound/cpu.max": "150000 100000\n"}, 1.5),
        (
            V2,
            {
                "sys/fs/cgroup/app.slice/timebound/cpu.max": "max 100000",
                "sys/fs/cgroup/app.slice/cpu.max": "50000 100000",
            },
            0.5,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),  # a container, as it sees itself
        (V1, {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n"}, None),
        (
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        (
            V1,  # a container that sees its own group on top, and outside names
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
    ],
)
def test_the_limit_is_that_of_the_tightest_group(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float | None
) -> None:
    assert cores_of.core_quota(system(tmp_path, groups, files)) == quota


def test_a_system_without_groups_sets_no_limit(tmp_path: Path) -> None:
    assert cores_of.core_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (8.0, 4), (3.0, 3), (2.9, 2), (1.5, 1), (0.2, 1)])
def test_part_of_a_core_is_not_counted(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(cores_of, "core_quota", lambda: quota)
    assert cores_of.cores() == cores
