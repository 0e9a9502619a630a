"""A server in a real control group takes no more slots than the group has cores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.tools.upstack import UpStack
from tests.live.serving import MODELS, Serving, eventually

pytestmark = pytest.mark.live

TOP = Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of one core, whichever version this system has; this process is in it until the test is over."""
    is_second = (TOP / "cgroup.controllers").exists()
    top = TOP if is_second else TOP / "cpu"
    folder = top / f"timebound-test-{os.getpid()}"
    try:
        folder.mkdir()
        if is_second:
            (folder / "cpu.max").write_text("100000 100000")
        else:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text("100000")
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    (top / "cgroup.procs").write_text(str(os.getpid()))
    eventually(lambda: not (folder / "cgroup.procs").read_text().strip(), "the group to be empty")
    folder.rmdir()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a limit of one core is none here")
def test_a_server_that_may_use_one_core_of_several_takes_one_slot(group: Path) -> None:
    with Serving(MODELS / "echo.py") as serving:
        eventually(lambda: serving.gauge("slots_up") >= 1, "a slot")
        assert (len(serving.workers()), serving.gauge("slots_up")) == (1, 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a limit of one core is none here")
@pytest.mark.skipif(
    not shutil.which("redis-server") or not shutil.which("nginx", path="/usr/sbin:/usr/bin"),
    reason="nginx or redis-server is not installed",
)
def test_two_servers_of_a_stack_that_may_use_one_core_of_several_share_that_one(group: Path) -> None:
    with UpStack() as stack:
        assert len({frozenset(os.sched_getaffinity(pid)) for pid in stack.servers()}) == 1
