"""Results and claims that several gateways share; scripts beside this file make each step atomic.

A gateway has one **lease** (`lease.py`), and every claim names the lease of its owner. So a gateway that dies frees
all its claims at once, and renewing costs one command however many requests are in work. Whoever joins a claim leaves
the address of its inbox, a channel; the owner's `complete` sends the result there, or word that it is there.

After a lost connection a gateway is a new owner with a new lease: commands of the old connection that Redis still
finds in its buffers later can claim nothing. What is in work is claimed anew, and results that could not be written
meanwhile are written then. The gateway keeps what it has seen in its own memory too, so while Redis is gone the same
key is still computed only once per process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import hiredis
import msgspec

from timebound.clock import Clock
from timebound.config import Config
from timebound.errors import SetupError
from timebound.events import Events, NotKept, TakenOver
from timebound.store import scripts
from timebound.store.backlog import Unwritten
from timebound.store.base import CONFLICT, JOINED, OWNER, UNAVAILABLE, Claim, Entry, Key, Kind, Settle, Stored
from timebound.store.lease import Lease, shortened
from timebound.store.line import Done, Down, Line
from timebound.store.listing import Listing, OneRedis
from timebound.store.memory import Memory
from timebound.store.refusal import explain
from timebound.store.scripts import SHA, Place
from timebound.store.value import LONGEST, UnknownLayout, Unreadable, decode, encode
from timebound.store.work import Task, Work
from timebound.store.writer import Writer
from timebound.types import Quality

log = logging.getLogger("timebound.store")

_NEAR_S = 60.0
"""How long a result that another gateway computed is kept near."""
_SHARE_OF_DEADLINE = 0.2
"""Of the shortest deadline that may be spent on waiting for Redis: the model needs the rest."""
_LOOK_S, _LOOKS_PER_S = 0.25, 2000
"""How often a request that waits for another gateway looks whether that still lives, and all of them together."""


Opened = TypeVar("Opened")


def open_by(make: Callable[..., Opened], config: Config, **wiring: Any) -> Opened:
    """Make the shared store that the options ask for; `wiring` is `clock`, `events` and `loop`."""
    return make(
        config.store,
        near=Memory(config.store_memory, wiring["clock"]),
        namespace=config.store_namespace,
        lease_s=config.store_lease,
        patience_s=config.store_patience,
        **wiring,
    )


class _Waiter(msgspec.Struct, eq=False):
    fingerprint: bytes
    settle: Settle


class Shared:
    """A shared store over one line. `lease_s` is the longest time that a dead gateway's claims hold others up."""

    def __init__(
        self,
        place: Place,
        lease: Lease,
        open_line: Callable[..., Line],
        *,
        near: Memory,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        shown: str,
    ) -> None:
        self._place = place
        self._lease = lease
        self._longest_lease_s = lease.lease_s
        self._near = near
        self._events = events
        self._loop = loop
        self._shown = shown
        self._work = Work(self._free)
        self._waiting: dict[Key, list[_Waiter]] = {}  # what others compute for us
        self._waiters = 0
        self._has_told_of_garbage = False
        self._refusal: str | None = None  # what Redis said when it last refused to write, until it writes again
        self._renewal: asyncio.TimerHandle | None = None
        self._line = open_line(greeting=self._greeting, on_up=self._up, on_down=self._down, on_push=self.heard)
        self._patience_s = self._line.patience_s
        self._writer = Writer(self._line, clock, events, send=self._send_result, written=self._written, free=self._free)
        self._listing = Listing(OneRedis(self._line, place.results))

    # ------------------------------------------------------------------ coming and going

    async def start(self) -> None:
        await self._line.start()
        if self._line.is_refused:
            await self._line.stop()
            raise SetupError(f"the store at {self._shown} refuses: {self._line.reason}")

    async def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._work.stop()
        self._line.send(None, *self._lease.go())
        await self._line.stop()
        self._writer.give_up()

    @property
    def trouble(self) -> str | None:
        reason = self._line.reason or self._refusal
        return f"redis: {reason}" if reason is not None else None

    def hurry(self, deadline_s: float) -> None:
        self._line.patience_s = min(self._patience_s, _SHARE_OF_DEADLINE * deadline_s)
        lease_s = shortened(self._longest_lease_s, deadline_s)
        if lease_s != self._lease.lease_s:
            self._lease.lease_s = lease_s
            self._line.send(self._taken, *self._lease.take())
            if self._renewal is not None:
                self._renewal.cancel()
                self._renew()

    @property
    def patience_s(self) -> float:
        """How long a reply is waited for."""
        return self._line.patience_s

    @property
    def memory_bytes(self) -> int:
        return self._near.memory_bytes

    def _refused(self, reply: Exception) -> None:
        if not isinstance(reply, Down):
            self._refusal = explain(str(reply))

    def _greeting(self) -> list[tuple[Any, ...]]:
        """What must be allowed and must succeed. A server that cannot be written to, such as a replica, is found out
        by the lease; rights that are missing by one command of each kind."""
        place = self._place
        return [
            *(("SCRIPT", "LOAD", script) for script in (*SHA, *self._lease.scripts)),
            ("SUBSCRIBE", place.inbox, place.everyone),
            ("PUBLISH", place.inbox, ""),
            *self._lease.come(),
            scripts.abandon(place, self._lease, ("", "")),
        ]

    def _renew(self) -> None:
        self._line.send(self._renewed, *self._lease.renew())
        self._renewal = self._loop.call_later(self._lease.lease_s / 4, self._renew)
        self._writer.catch_up()

    def _renewed(self, reply: Any) -> None:
        # Zero: it has expired, or somebody flushed Redis. And a Redis that refused to write may be well again.
        if reply == 0 or (self._refusal is not None and not isinstance(reply, Exception)):
            self._line.send(self._taken, *self._lease.take())

    def _taken(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
        else:
            self._refusal = None

    def _up(self) -> None:
        self._lease.was_taken()
        self._refusal = None
        self._renew()
        for key, fingerprint in self._work:
            # Others shall join what is in work here. If one of them was faster, both compute it; that is all.
            self._send_claim(key, fingerprint, None)

    def _down(self, reason: str) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        waiting, self._waiting, self._waiters = self._waiting, {}, 0
        for key, waiters in waiting.items():
            for waiter in waiters:
                self._work.hold(key, waiter.fingerprint)
                waiter.settle(UNAVAILABLE)

    # ------------------------------------------------------------------ claims

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        known = self._near.look(key, fingerprint)
        if known is not None:
            settle(known)
        elif not self._line.is_up:
            self._work.hold(key, fingerprint)
            settle(UNAVAILABLE)
        else:
            self._ask(key, fingerprint, partial(self._claimed, key, fingerprint, settle))

    def _ask(self, key: Key, fingerprint: bytes, done: Done, instead_of: bytes = b"") -> None:
        task = self._work.asks(key, fingerprint)
        self._send_claim(key, fingerprint, partial(self._asked, key, task, done), instead_of)

    def _asked(self, key: Key, task: Task, done: Done, reply: Any) -> None:
        task.asking -= 1
        task.is_ours |= isinstance(reply, Exception) or reply[0] == b"o"
        done(reply)
        self._work.asked(key, task)

    def _send_claim(self, key: Key, fingerprint: bytes, done: Done | None, instead_of: bytes = b"") -> None:
        self._line.send(done, *scripts.claim(self._place, self._lease, key, fingerprint, instead_of))

    def _claimed(self, key: Key, fingerprint: bytes, settle: Settle, reply: Any, *, has_waited: bool = False) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
            self._work.hold(key, fingerprint)
            settle(UNAVAILABLE)
            return
        kind, fact = reply[0], reply[-1]
        if kind == b"o":
            self._work.hold(key, fingerprint)
            self._refusal = None
            if fact:
                self._events.emit(TakenOver(key[0]))
            settle(OWNER)
        elif kind == b"j":
            waiter = _Waiter(fingerprint, settle)
            self._waiting.setdefault(key, []).append(waiter)
            self._waiters += 1
            self._ask_when_over(key, waiter, fact / 1e3)
            settle(JOINED)
        elif kind == b"c":
            settle(CONFLICT)
        elif (found := self._found(key, fingerprint, fact, reply[1], has_waited=has_waited)) is not None:
            settle(found)
        else:  # it goes, if it is still the same, and whoever asks first is the owner
            again = partial(self._claimed, key, fingerprint, settle, has_waited=has_waited)
            self._ask(key, fingerprint, again, instead_of=fact)

    def _found(
        self, key: Key, fingerprint: bytes, value: bytes, left_ms: int, *, has_waited: bool = False
    ) -> Claim | None:
        """What these bytes are to a request; None if they are no result at all."""
        try:
            stored = decode(value)
        except Unreadable as error:
            if not self._has_told_of_garbage:
                self._has_told_of_garbage = True  # once is enough to be noticed
                text = "a stored result cannot be read and is computed again: %s"
                log.warning(text, error, extra={"model": key[0], "key": key[1]})
            return None
        except UnknownLayout:
            self._work.hold(key, fingerprint)
            return UNAVAILABLE
        if stored.result.quality is Quality.FULL:  # a partial one may be replaced any time
            self._near.keep(key, stored, min(_NEAR_S, left_ms / 1e3))
        if stored.fingerprint != fingerprint:
            return CONFLICT
        return Claim(Kind.RESULT, stored.as_joined() if has_waited else stored)

    def _ask_when_over(self, key: Key, waiter: _Waiter, lease_left_s: float) -> None:
        # An owner that dies tells nobody: look after it, and ask again when its lease would be over.
        look_s = max(_LOOK_S, self._waiters / _LOOKS_PER_S)
        self._loop.call_later(min(lease_left_s + 0.005, look_s), self._ask_again, key, waiter)

    def _ask_again(self, key: Key, waiter: _Waiter) -> None:
        if waiter in self._waiting.get(key, ()):
            self._ask(key, waiter.fingerprint, partial(self._asked_again, key, waiter))

    def _asked_again(self, key: Key, waiter: _Waiter, reply: Any) -> None:
        if waiter not in self._waiting.get(key, ()):
            return  # the result came while we asked
        if not isinstance(reply, Exception) and reply[0] == b"j":
            self._ask_when_over(key, waiter, reply[1] / 1e3)
        else:
            self._leave(key, waiter)
            self._claimed(key, waiter.fingerprint, waiter.settle, reply, has_waited=True)

    def _leave(self, key: Key, waiter: _Waiter) -> None:
        self._waiting[key].remove(waiter)
        self._waiters -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    def ask_all_again(self) -> None:
        """Messages may have been missed."""
        for key, waiters in list(self._waiting.items()):
            for waiter in list(waiters):
                self._ask_again(key, waiter)

    # ------------------------------------------------------------------ results

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        self._near.keep(key, stored, keep_s)
        self._work.finish(key)
        value = encode(stored)
        if len(value) > LONGEST:
            self._events.emit(NotKept(key[0], "too_large"))
            self._free(key)
        else:
            self._writer.put(key, value, keep_s)

    def _send_result(self, done: Done, late: Unwritten) -> None:
        self._line.send(done, *scripts.complete(self._place, late.key, late.value, late.keep_s))

    def _written(self, late: Unwritten, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
            return
        self._refusal = None
        if isinstance(reply, bytes):
            self._near_is_wrong(late, reply)

    def _near_is_wrong(self, late: Unwritten, value: bytes) -> None:
        """Another server was faster, while this one was away: its answer is the one that is given again."""
        with suppress(UnknownLayout):
            stored = decode(value)
            self._near.forget(late.key)
            self._near.keep(late.key, stored, late.keep_s)

    def abandon(self, key: Key) -> None:
        self._work.leave(key)

    def _free(self, key: Key) -> None:
        self._line.send(None, *scripts.abandon(self._place, self._lease, key))

    def heard(self, message: list[Any]) -> None:
        """A message came: a result or an abandoned claim for our inbox, or word that results were cleared."""
        if message[0] != b"message":
            return
        channel, text = message[1], message[2]
        if not text:
            return  # the greeting's, to see whether messages are allowed
        if channel != self._place.inbox.encode():
            model, _, cleared = text.decode(errors="replace").partition(":")
            self._near.clear_soon(model or None, cleared or None)
            return
        try:
            end, left_ms = 20 + int(text[:8]), int(text[8:20])
            name = text[20:end].decode()
        except ValueError:
            log.warning("a message in the store's inbox is not of this server's making")
            return
        key, value = self._place.from_claim(name), text[end:]
        for waiter in list(self._waiting.get(key, ())):
            found = self._found(key, waiter.fingerprint, value, left_ms, has_waited=True) if value else None
            if found is None:
                self._ask_again(key, waiter)
            else:
                self._leave(key, waiter)
                waiter.settle(found)

    # ------------------------------------------------------------------ for people

    async def read(self, key: Key) -> Stored | Kind | None:
        known = await self._near.read(key)
        if isinstance(known, Stored):
            return known
        try:
            value = await self._line.ask("GETRANGE", self._place.result(key), "0", str(LONGEST))
            if value:
                return decode(value)
            owner = await self._line.ask("HGET", self._place.claim(key), "o")
            # A claim whose owner died is nobody's work.
            is_running = owner is not None and await self._line.ask(*self._lease.left(owner)) > 0
        except (Down, hiredis.ReplyError, UnknownLayout):
            is_running = False
        return Kind.OWNER if is_running or self._work.is_held(key) else None

    def entries(self, model: str | None) -> AsyncIterator[Entry]:
        return self._listing.entries(model)

    async def clear(self, model: str | None, key: str | None = None) -> int:
        if model is not None and key is not None:
            count = await self._listing.unlink(self._place.result((model, key)).encode())
        else:
            count = await self._listing.remove(model)
        await self._near.clear(model, key)
        self._line.send(None, "PUBLISH", self._place.everyone, f"{model or ''}:{key or ''}")
        return count
