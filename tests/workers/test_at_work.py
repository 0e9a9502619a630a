"""What a process was at when it ended can be read after that, and noting it changes nothing for what is awaited."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from timebound.workers.at_work import Note, seen

ENDS_AT_7 = """
import os, sys
from timebound.workers.at_work import Note
note = Note()
print(note.file, flush=True)
sys.stdin.readline()
note.put(3, 5)
note.put(3, 0)
note.put(0, 7)
os._exit(1)
"""


def test_what_a_process_was_at_when_it_ended_is_known() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_AT_7], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        at_work = seen(process.pid, int(process.stdout.readline()))
        assert at_work() == []
        process.stdin.write("go on\n")
        process.stdin.flush()
        process.wait(20)
    assert at_work() == [7]


def test_nothing_is_known_of_a_file_that_is_none() -> None:
    assert seen(os.getpid(), -1)() == []
    assert seen(os.getpid(), 10_000)() == []


def test_a_call_is_noted_while_its_code_runs_and_not_while_it_waits() -> None:
    async def run() -> str:
        note = Note()
        at_work, gate, told = seen(os.getpid(), note.file), asyncio.Event(), []

        async def fetch() -> str:
            told.append(at_work())
            await gate.wait()
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(20)
            except TimeoutError:
                told.append(at_work())
            return "found"

        task = asyncio.create_task(note.stepping(4, fetch()))
        await asyncio.sleep(0)
        told.append(at_work())
        gate.set()
        found = await task
        assert told == [[4], [], [4]]
        assert at_work() == []
        return found

    assert asyncio.run(run()) == "found"


def test_one_that_is_called_off_or_fails_does_so_as_without() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("not there")

    async def run() -> None:
        note = Note()
        with pytest.raises(KeyError):
            await note.stepping(1, fails())
        task = asyncio.create_task(note.stepping(2, asyncio.sleep(20)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(run())
