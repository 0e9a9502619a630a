"""The first worker's process is started before the gateway: it is the one that serves, and it outlives nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.live.serving import MODELS, Serving, eventually

from timebound.workers import messages
from timebound.workers.early import Early, environment_of, start_early
from timebound.workers.spawn import Process

pytestmark = pytest.mark.live


@contextmanager
def early() -> Iterator[Early]:
    found = start_early(workers=1, slots=1, threads=1, device="cpu", cores=1)
    assert found is not None
    try:
        yield found
    finally:
        found.end()


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def worker_of(serving: Serving) -> int:
    return next((int(worker["pid"]) for worker in serving.workers()), 0)


def plan(threads: int = 1) -> messages.WorkerPlan:
    return messages.WorkerPlan(target="", cores=1, workers=1, slots=1, threads=threads, device="cpu")


def test_the_process_that_was_started_first_serves_and_its_successor_is_a_usual_one() -> None:
    with Serving(MODELS / "echo.py", "--workers", "1", "--device", "cpu") as serving:
        first = worker_of(serving)
        assert "early" in words_of(first)
        os.kill(first, signal.SIGKILL)
        second = eventually(lambda: (pid := worker_of(serving)) != first and pid, "another worker")
        assert "early" not in words_of(second)


def test_a_process_that_nobody_takes_over_leaves_with_its_starter() -> None:
    found = start_early(workers=1, slots=1, threads=1, device="cpu", cores=1)
    assert found is not None
    found.control.close()  # as when its starter ends
    _, status = os.waitpid(found.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_one_that_is_not_needed_is_ended_at_once() -> None:
    with early() as found:
        pid = found.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_worker_that_is_to_have_other_variables_is_started_anew() -> None:
    with early() as found:
        assert not found.claim(environment_of(plan(), threads=2), slots=1)
        assert found.claim(environment_of(plan(), threads=1), slots=1)
        assert not found.claim(environment_of(plan(), threads=1), slots=1), "it is taken"
        found.control.close()
        os.waitpid(found.pid, 0)


def test_it_prints_to_the_files_that_it_is_handed_and_is_reaped_as_any_other() -> None:
    async def run() -> int:
        with early() as found:
            assert found.claim(found.environment, slots=1)
            exit_, entrance = os.pipe()
            ours, theirs = socket.socketpair()
            process = Process([], {}, [], pid=found.pid)
            await process.start()
            found.hand_over({1: entrance, 2: entrance}, [theirs.fileno()])
            theirs.close()
            os.close(entrance)
            files = Path(f"/proc/{found.pid}/fd")
            pipe = os.readlink(f"/proc/self/fd/{exit_}")
            eventually(lambda: all(os.readlink(files / number) == pipe for number in "12"), "its files")
            found.control.close()
            code = await process.wait()
            assert ours.recv(1) == b"", "the slot's socket is closed with it"
            os.close(exit_)
            ours.close()
            return code

    assert asyncio.run(run()) == 1
