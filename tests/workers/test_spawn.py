"""A process is started, heard and ended without the event loop standing still."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps

import pytest

from timebound.workers.spawn import NEVER_RAN, UNKNOWN, Process


def in_a_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def start(command: list[str], environment: Mapping[str, str] = os.environ, keep: Sequence[int] = ()) -> Process:
    process = Process(command, environment, keep)
    await process.start()
    return process


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@in_a_loop
async def test_the_exit_code_is_told() -> None:
    process = await start(python("raise SystemExit(7)"))
    assert await process.wait() == 7
    assert process.returncode == 7


@in_a_loop
async def test_a_killed_process_tells_its_signal() -> None:
    process = await start(python("import time; time.sleep(60)"))
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    process.kill()  # and nothing happens


@in_a_loop
async def test_it_has_the_files_it_is_given_and_no_others() -> None:
    ours, theirs = socket.socketpair()
    other, another = socket.socketpair()
    code = (
        "import os, socket, sys\n"
        "given = socket.socket(fileno=int(sys.argv[1]))\n"
        "def is_open(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "given.sendall(str(is_open(int(sys.argv[2]))).encode())\n"
    )
    process = await start(python(code, str(theirs.fileno()), str(other.fileno())), keep=[theirs.fileno()])
    theirs.close()
    assert await process.wait() == 0
    assert ours.recv(100) == b"False"
    assert ours.recv(100) == b""
    for end in (ours, other, another):
        end.close()


@in_a_loop
async def test_it_has_the_environment_it_is_given() -> None:
    code = "import os, sys; sys.exit(int(os.environ['NUMBER']))"
    process = await start(python(code), {"NUMBER": "41"})
    assert await process.wait() == 41


@in_a_loop
async def test_what_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        await start(["/no/such/program"], {})


@in_a_loop
async def test_many_at_once_each_tell_their_own_code() -> None:
    processes = await asyncio.gather(*(start(python(f"raise SystemExit({number})")) for number in range(8)))
    codes = await asyncio.gather(*(process.wait() for process in processes))
    assert list(codes) == list(range(8))
    assert len({process.pid for process in processes}) == 8


@in_a_loop
async def test_an_end_is_told_to_everyone_who_waits() -> None:
    process = await start(python("import time; time.sleep(0.2)"))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.001)
    codes = await asyncio.gather(process.wait(), process.wait())
    assert list(codes) == [0, 0]
    assert time.monotonic() - began < 30


def test_a_system_without_room_for_a_thread_is_an_error_and_no_process_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        process = Process(python("pass"), os.environ, [])
        with pytest.raises(OSError, match="no more threads"):
            await process.start()
        assert await asyncio.wait_for(process.wait(), 20) == NEVER_RAN

    monkeypatch.setattr("timebound.workers.spawn.start_new_thread", refuse)
    asyncio.run(run())


@in_a_loop
async def test_a_process_that_cannot_be_started_is_not_waited_for() -> None:
    process = Process(["/nowhere/python"], os.environ, [])
    with pytest.raises(FileNotFoundError):
        await process.start()
    assert await asyncio.wait_for(process.wait(), 20) == NEVER_RAN


@in_a_loop
async def test_an_exit_code_that_somebody_else_took_is_unknown() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = await start(python("pass"))
        assert await asyncio.wait_for(process.wait(), 20) == UNKNOWN
        process.kill()  # and nothing happens
    finally:
        signal.signal(signal.SIGCHLD, before)
