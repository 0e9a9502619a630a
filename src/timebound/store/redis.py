"""Results and claims in a Redis that several gateways share; scripts beside this file make each step atomic.

A gateway has one **lease**, a key that expires unless it is renewed, and every claim names the lease of its owner. So
a gateway that dies frees all its claims at once, and renewing costs one command however many requests are in
work. Whoever joins a claim leaves the address of its inbox, a channel; the owner's `complete` sends the result there.

After a lost connection a gateway is a new owner with a new lease: commands of the old connection that Redis still
finds in its buffers later can claim nothing. What is in work is claimed anew, and results that could not be written
meanwhile are written then. The gateway keeps what it has seen in its own memory too, so while Redis is gone the same
key is still computed only once per process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import hiredis
import msgspec

from timebound.clock import Clock
from timebound.config import Config
from timebound.errors import SetupError
from timebound.events import Events, Kept, NotKept, TakenOver
from timebound.store.address import read_address
from timebound.store.backlog import MAX_BYTES, MAX_RESULTS, Backlog, Unwritten
from timebound.store.base import CONFLICT, JOINED, OWNER, UNAVAILABLE, Claim, Entry, Key, Kind, Settle, Stored
from timebound.store.link import Done, Down, Link
from timebound.store.listing import Listing
from timebound.store.memory import Memory
from timebound.store.value import UnknownLayout, decode, encode
from timebound.types import Quality

log = logging.getLogger("timebound.store")

CLAIM, COMPLETE, ABANDON = (
    Path(__file__).with_name(f"{name}.lua").read_bytes() for name in ("claim", "complete", "abandon")
)
_SHA = {script: sha1(script).hexdigest() for script in (CLAIM, COMPLETE, ABANDON)}
"""Scripts are loaded once per connection, then called by their hash."""

_CLAIM_KEPT_MS = 4_000_000
"""Longer than the longest deadline. A claim ends with its owner's lease; this only clears it away."""
_NEAR_S = 60.0
"""How long a result that another gateway computed is kept near."""
_SHARE_OF_DEADLINE = 0.2
"""Of the shortest deadline that may be spent on waiting for Redis: the model needs the rest."""
MAX_VALUE_BYTES = 1_000_000
"""Larger results are not kept: one of them would hold up everybody's claims."""
_PORTION, _PORTION_BYTES = 100, 500_000
"""How much of the backlog is written at a time. All of it in one go would outlast the patience with the connection."""


class _Waiter(msgspec.Struct, eq=False):
    fingerprint: bytes
    settle: Settle


class _Work(msgspec.Struct):
    """What this gateway computes: for how many of its own requests, and how many more are asking Redis for it now.

    Two requests of one gateway can have the same key when the client of the first has left. The claim in Redis is the
    gateway's, so it is freed only when none of them needs it.
    """

    fingerprint: bytes
    holders: int = 0
    asking: int = 0
    is_ours: bool = False
    """Whether the claim in Redis may be ours."""


def open_store(config: Config, *, clock: Clock, events: Events, loop: asyncio.AbstractEventLoop) -> Redis:
    """The Redis of the options' URL; raises `SetupError` if that cannot be read."""
    return Redis(
        config.store,
        near=Memory(config.store_memory, clock),
        clock=clock,
        events=events,
        loop=loop,
        namespace=config.store_namespace,
        lease_s=config.store_lease,
        patience_s=config.store_patience,
    )


class Redis:
    """A shared store. `lease_s` is how long a dead gateway's claims hold others up."""

    def __init__(
        self,
        url: str,
        *,
        near: Memory,
        clock: Clock,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        namespace: str = "timebound",
        lease_s: float = 2.0,
        patience_s: float = 0.1,
    ) -> None:
        self._address = read_address(url)
        self._near = near
        self._clock = clock
        self._events = events
        self._loop = loop
        self._space = namespace
        self._lease_s = lease_s
        self._gateway = os.urandom(8).hex()
        self._inbox = f"{namespace}:i:{self._gateway}"
        self._leases = f"{namespace}:o:"
        self._epoch = 0
        self._last_lease = ""  # of the last connection that was up
        self._working: dict[Key, _Work] = {}
        self._waiting: dict[Key, list[_Waiter]] = {}  # what others compute for us
        self._backlog = Backlog(events)
        self._in_flight_bytes = 0
        self._refusal: str | None = None  # what Redis said when it last refused to write, until it writes again
        self._renewal: asyncio.TimerHandle | None = None
        self._patience_s = patience_s
        self._link = Link(
            self._address,
            loop,
            patience_s=patience_s,
            greeting=self._greeting,
            on_up=self._up,
            on_down=self._down,
            on_push=self._heard,
        )
        self._listing = Listing(self._link, f"{namespace}:r:")

    # ------------------------------------------------------------------ coming and going

    async def start(self) -> None:
        await self._link.start()
        if self._link.is_refused:
            await self._link.stop()
            raise SetupError(f"the store at {self._address.shown} refuses: {self._link.reason}")

    async def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        for key in list(self._working):
            del self._working[key]
            self._free(key)
        self._link.send(None, "DEL", self._lease)
        await self._link.stop()
        while self._backlog:
            self._events.emit(NotKept(self._backlog.take().key[0], "stopped"))

    @property
    def trouble(self) -> str | None:
        reason = self._link.reason or self._refusal
        return f"redis: {reason}" if reason is not None else None

    def hurry(self, deadline_s: float) -> None:
        self._link.patience_s = min(self._patience_s, _SHARE_OF_DEADLINE * deadline_s)

    @property
    def patience_s(self) -> float:
        """How long a reply is waited for."""
        return self._link.patience_s

    @property
    def memory_bytes(self) -> int:
        return self._near.memory_bytes

    def _refused(self, reply: Exception) -> None:
        if not isinstance(reply, Down):
            self._refusal = str(reply)

    @property
    def _owner(self) -> str:
        return f"{self._gateway}.{self._epoch}"

    @property
    def _lease(self) -> str:
        return self._leases + self._owner

    def _greeting(self) -> list[tuple[Any, ...]]:
        self._epoch += 1
        return [
            *([("DEL", self._last_lease)] if self._last_lease else []),  # what is left of its claims is free, at once
            *(("SCRIPT", "LOAD", script) for script in _SHA),
            ("SUBSCRIBE", self._inbox, f"{self._space}:all"),
            self._take_lease(),  # a server that cannot be written to, such as a replica, is found out here
        ]

    def _take_lease(self) -> tuple[str, ...]:
        return "SET", self._lease, "1", "PX", str(int(self._lease_s * 1e3))

    def _renew(self) -> None:
        # Unlike SET, this is allowed when Redis has no memory left.
        self._link.send(self._renewed, "PEXPIRE", self._lease, str(int(self._lease_s * 1e3)))
        self._renewal = self._loop.call_later(self._lease_s / 4, self._renew)
        self._catch_up()

    def _renewed(self, reply: Any) -> None:
        # Zero: it has expired, or somebody flushed Redis. And a Redis that refused to write may be well again.
        if reply == 0 or (self._refusal is not None and not isinstance(reply, Exception)):
            self._link.send(self._taken, *self._take_lease())

    def _taken(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
        else:
            self._refusal = None

    def _up(self) -> None:
        self._last_lease, self._refusal = self._lease, None
        self._renew()
        for key, work in self._working.items():
            # Others shall join what is in work here. If one of them was faster, both compute it; that is all.
            self._send_claim(key, work.fingerprint, None)

    def _down(self, reason: str) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        waiting, self._waiting = self._waiting, {}
        for key, waiters in waiting.items():
            for waiter in waiters:
                self._hold(key, waiter.fingerprint)
                waiter.settle(UNAVAILABLE)

    # ------------------------------------------------------------------ claims

    def claim(self, key: Key, fingerprint: bytes, settle: Settle) -> None:
        known = self._near.look(key, fingerprint)
        if known is not None:
            settle(known)
        elif not self._link.is_up:
            self._hold(key, fingerprint)
            settle(UNAVAILABLE)
        else:
            self._ask(key, fingerprint, partial(self._claimed, key, fingerprint, settle))

    def _hold(self, key: Key, fingerprint: bytes) -> None:
        """One more request of this gateway's computes this key."""
        work = self._working.setdefault(key, _Work(fingerprint))
        work.holders += 1
        work.is_ours = True

    def _ask(self, key: Key, fingerprint: bytes, done: Done) -> None:
        work = self._working.setdefault(key, _Work(fingerprint))
        work.asking += 1
        self._send_claim(key, fingerprint, partial(self._asked, key, work, done))

    def _asked(self, key: Key, work: _Work, done: Done, reply: Any) -> None:
        work.asking -= 1
        work.is_ours |= isinstance(reply, Exception) or reply[0] == b"o"
        done(reply)
        if self._working.get(key) is work:  # else it was finished meanwhile
            self._let_go(key, work)

    def _let_go(self, key: Key, work: _Work) -> None:
        """Free the claim if no request of this gateway's needs it."""
        if work.holders == 0 and work.asking == 0:
            del self._working[key]
            if work.is_ours:
                self._free(key)

    def _send_claim(self, key: Key, fingerprint: bytes, done: Done | None) -> None:
        arguments = (self._owner, fingerprint, self._inbox, self._leases, str(_CLAIM_KEPT_MS))
        self._link.send(done, "EVALSHA", _SHA[CLAIM], "2", self._result_key(key), self._claim_key(key), *arguments)

    def _claimed(self, key: Key, fingerprint: bytes, settle: Settle, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
            self._hold(key, fingerprint)
            settle(UNAVAILABLE)
            return
        kind, fact = reply[0], reply[-1]
        if kind == b"o":
            self._hold(key, fingerprint)
            self._refusal = None
            if fact:
                self._events.emit(TakenOver(key[0]))
            settle(OWNER)
        elif kind == b"j":
            waiter = _Waiter(fingerprint, settle)
            self._waiting.setdefault(key, []).append(waiter)
            self._ask_when_over(key, waiter, fact / 1e3)
            settle(JOINED)
        else:
            settle(CONFLICT if kind == b"c" else self._found(key, fingerprint, fact, reply[1]))

    def _found(self, key: Key, fingerprint: bytes, value: bytes, left_ms: int, *, has_waited: bool = False) -> Claim:
        try:
            stored = decode(value)
        except UnknownLayout:
            self._hold(key, fingerprint)
            return UNAVAILABLE
        if stored.result.quality is Quality.FULL:  # a partial one may be replaced any time
            self._near.keep(key, stored, min(_NEAR_S, left_ms / 1e3))
        if stored.fingerprint != fingerprint:
            return CONFLICT
        return Claim(Kind.RESULT, stored.as_joined() if has_waited else stored)

    def _ask_when_over(self, key: Key, waiter: _Waiter, lease_left_s: float) -> None:
        # An owner that dies tells nobody: ask again when its lease would be over.
        self._loop.call_later(lease_left_s + 0.005, self._ask_again, key, waiter)

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
            self._claimed(key, waiter.fingerprint, waiter.settle, reply)

    def _leave(self, key: Key, waiter: _Waiter) -> None:
        self._waiting[key].remove(waiter)
        if not self._waiting[key]:
            del self._waiting[key]

    # ------------------------------------------------------------------ results

    def complete(self, key: Key, stored: Stored, keep_s: float) -> None:
        self._near.keep(key, stored, keep_s)
        self._working.pop(key, None)
        value = encode(stored)
        if len(value) > MAX_VALUE_BYTES:
            self._events.emit(NotKept(key[0], "too_large"))
            self._free(key)
        else:
            self._write(Unwritten(key, value, keep_s, self._clock.now()))

    def _write(self, late: Unwritten) -> None:
        if not self._link.is_up:
            self._backlog.put(late)
        elif self._in_flight_bytes > MAX_BYTES or self._link.unanswered > MAX_RESULTS:
            self._events.emit(NotKept(late.key[0], "busy"))
            self._free(late.key)
        else:
            self._in_flight_bytes += len(late.value)
            keys = (self._result_key(late.key), self._claim_key(late.key))
            keep_ms = str(max(1, int(late.keep_s * 1e3)))
            self._link.send(partial(self._written, late), "EVALSHA", _SHA[COMPLETE], "2", *keys, late.value, keep_ms)

    def _written(self, late: Unwritten, reply: Any) -> None:
        self._in_flight_bytes -= len(late.value)
        if isinstance(reply, Down):
            self._backlog.put(late)
        elif isinstance(reply, Exception):
            self._refused(reply)
            self._events.emit(NotKept(late.key[0], "full" if str(reply).startswith("OOM") else "refused"))
        else:
            self._refusal = None
            if isinstance(reply, bytes):
                self._near_is_wrong(late, reply)
            self._events.emit(Kept(late.key[0], self._clock.now() - late.since))
        self._catch_up()

    def _near_is_wrong(self, late: Unwritten, value: bytes) -> None:
        """Another server was faster, while this one was away: its answer is the one that is given again."""
        self._near.forget(*late.key)
        with suppress(UnknownLayout):
            self._near.keep(late.key, decode(value), late.keep_s)

    def _catch_up(self) -> None:
        while (
            self._backlog
            and self._link.is_up
            and self._link.unanswered < _PORTION
            and self._in_flight_bytes < _PORTION_BYTES
        ):
            self._write(self._backlog.take())

    def abandon(self, key: Key) -> None:
        work = self._working.get(key)
        if work is None:
            self._free(key)
            return
        work.holders = max(0, work.holders - 1)
        self._let_go(key, work)

    def _free(self, key: Key) -> None:
        self._link.send(None, "EVALSHA", _SHA[ABANDON], "1", self._claim_key(key), self._owner)

    def _heard(self, message: list[Any]) -> None:
        """A message came: a result or an abandoned claim for our inbox, or word that results were cleared."""
        if message[0] != b"message":
            return
        channel, text = message[1], message[2]
        if channel != self._inbox.encode():
            model, _, cleared = text.decode(errors="replace").partition(":")
            self._near.forget(model or None, cleared or None)
            return
        try:
            end, left_ms = 20 + int(text[:8]), int(text[8:20])
            name = text[20:end].decode()
        except ValueError:
            log.warning("a message in the store's inbox is not of this server's making")
            return
        key, value = self._from_claim_key(name), text[end:]
        for waiter in list(self._waiting.get(key, ())):
            if value:
                self._leave(key, waiter)
                waiter.settle(self._found(key, waiter.fingerprint, value, left_ms, has_waited=True))
            else:
                self._ask_again(key, waiter)

    # ------------------------------------------------------------------ for people

    async def read(self, key: Key) -> Stored | Kind | None:
        known = await self._near.read(key)
        if isinstance(known, Stored):
            return known
        try:
            value = await self._link.ask("GET", self._result_key(key))
            if value is not None:
                return decode(value)
            owner = await self._link.ask("HGET", self._claim_key(key), "o")
            # A claim whose owner died is nobody's work.
            is_running = owner is not None and await self._link.ask("EXISTS", self._leases.encode() + owner)
        except (Down, hiredis.ReplyError, UnknownLayout):
            is_running = False
        is_ours = key in self._working and self._working[key].holders > 0
        return Kind.OWNER if is_running or is_ours else None

    def entries(self, model: str | None) -> AsyncIterator[Entry]:
        return self._listing.entries(model)

    async def clear(self, model: str | None, key: str | None = None) -> int:
        count = await self._listing.remove(model, key)
        self._near.forget(model, key)
        self._link.send(None, "PUBLISH", f"{self._space}:all", f"{model or ''}:{key or ''}")
        return count

    def _result_key(self, key: Key) -> str:
        return f"{self._space}:r:{key[0]}:{key[1]}"

    def _from_claim_key(self, name: str) -> Key:
        model, _, key = name.removeprefix(f"{self._space}:c:").partition(":")
        return model, key

    def _claim_key(self, key: Key) -> str:
        return f"{self._space}:c:{key[0]}:{key[1]}"
