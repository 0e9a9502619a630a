"""Brings a generation of workers to its door: all loaded and warmed up, all still there at one moment."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from timebound.errors import SetupError
from timebound.workers import messages
from timebound.workers.crew import Generation, Worker
from timebound.workers.messages import Role

log = logging.getLogger("timebound.workers")

_MOST_ROUNDS = 6
"""The first loads the first worker, the second the others; the rest are for those that die once they are loaded."""


class Staff(Protocol):
    """Who starts workers and knows which are there; the supervisor."""

    async def spawn(self, generation: Generation, *, role: Role) -> Worker: ...
    def missing(self, generation: Generation) -> list[Role]: ...


async def muster(staff: Staff, generation: Generation, *, is_whole: bool, is_strict: bool) -> None:
    """Have one worker there, or if it `is_whole` all of them, and those beside them that are needed.

    Until the caller's next pause nobody of them is missing, so that is when to let them in. Raises `SetupError` if one
    cannot be loaded, or dies again and again once it has been. `is_strict` refuses an option for a model that is not
    there, rather than warn of it.
    """
    for _ in range(_MOST_ROUNDS):
        missing = staff.missing(generation)
        if not missing:
            return
        workers = [await staff.spawn(generation, role=role) for role in missing]
        # Shielded: if the caller is cancelled, whoever watches a worker waits on for its end.
        heard = await asyncio.gather(*(asyncio.shield(worker.child.ready) for worker in workers))
        if not generation.models:
            _learn(generation, heard[0], is_strict=is_strict)
            if is_whole:
                generation.wanted = generation.plan.wanted(heard[0].slots, generation.models)
        await asyncio.gather(*(worker.connected.wait() for worker in workers))
    raise SetupError("workers were loaded, and ended before they could take a request, again and again")


def _learn(generation: Generation, ready: messages.Ready, *, is_strict: bool) -> None:
    generation.fetched = {info.name: info.fetched for info in ready.models if info.fetched}
    generation.models = [msgspec.structs.replace(info, fetched=b"") if info.fetched else info for info in ready.models]
    generation.slots = ready.slots
    if any(info.has_fallback or info.has_redact or (info.has_size and not info.has_fetch) for info in ready.models):
        generation.beside.append(Role.UNDERSTUDY)
    if any(info.has_fetch for info in ready.models):
        generation.beside.append(Role.FETCHER)
    for doubt in ready.doubts:
        log.warning("%s", doubt)
    if strange := generation.plan.strangers(ready.models):
        there = ", ".join(sorted({info.base for info in ready.models}))
        option, name = strange[0]
        trouble = f"the option {option} names a model {name!r}, but there is only: {there}"
        if is_strict:
            raise SetupError(f"{trouble}; name one of these, or none (--print-config says where it is from)")
        log.warning("%s", trouble)  # it was there when the server started
