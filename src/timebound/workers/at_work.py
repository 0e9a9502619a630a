"""Which calls a process beside the workers was at when it ended: the others had no part in that.

It notes the numbers of the calls whose code runs in memory that it shares with the gateway, which outlives it. Where a
system has no such memory nothing is known of any.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, TypeAlias, TypeVar

PLACES = 128
"""Calls that can be noted at the same time."""
_SIZE = 8 * PLACES
_NUMBERS = struct.Struct(f"<{PLACES}q")
_NUMBER = struct.Struct("<q")

AtWork: TypeAlias = Callable[[], list[int]]
"""The calls that a process was at last."""

Found = TypeVar("Found")


class Note:
    """What the process itself writes."""

    def __init__(self) -> None:
        self.file = -1
        """The number of the file that the gateway is to open; -1 if there is none."""
        with suppress(OSError, AttributeError):
            self.file = os.memfd_create("at work")
            os.ftruncate(self.file, _SIZE)
        self._memory = mmap.mmap(self.file, _SIZE)

    def put(self, place: int, number: int) -> None:
        """The code of this call runs from now on; 0: none does."""
        _NUMBER.pack_into(self._memory, 8 * place, number)

    @coroutine
    def stepping(self, number: int, wanted: Coroutine[Any, Any, Found]) -> Generator[Any, Any, Found]:
        """Await it, and note its number while it does not wait itself."""
        step: Callable[[], Any] = lambda: wanted.send(None)  # noqa: E731
        while True:
            self.put(0, number)
            try:
                awaited = step()
            except StopIteration as end:
                found: Found = end.value
                return found
            finally:
                self.put(0, 0)
            try:
                yield awaited
            except BaseException as error:
                thrown = error
                step = lambda: wanted.throw(thrown)  # noqa: B023, E731 - called at once
            else:
                step = lambda: wanted.send(None)  # noqa: E731


def nobody() -> list[int]:
    """Where nothing is known."""
    return []


def seen(pid: int, file: int) -> AtWork:
    """What this process notes in this file of its; can be asked as long as wanted, also after its end."""
    if file < 0:
        return nobody
    try:
        own = os.open(f"/proc/{pid}/fd/{file}", os.O_RDONLY)
    except OSError:
        return nobody
    try:
        memory = mmap.mmap(own, _SIZE, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return nobody
    finally:
        os.close(own)
    return lambda: [number for number in _NUMBERS.unpack_from(memory) if number]
