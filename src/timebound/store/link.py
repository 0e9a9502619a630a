"""One connection to Redis: commands of one turn of the event loop go out in one write, replies come back in order.

Why not redis-py: per command it takes 34 to 46 us of the gateway's CPU, this takes about 4, because nothing here is a
task, a lock or a pool. hiredis does the parsing. One connection is enough: Redis is single-threaded, and pipelining
keeps it busy. Being one, it also carries the messages of RESP3 subscriptions.

It is also the breaker. Replies come in order, so if the oldest is late, all are: then the connection is closed,
everything that waits is told so, and nobody waits again until a new connection has answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import hiredis

from timebound.store.address import Address

log = logging.getLogger("timebound.store")

Done: TypeAlias = Callable[[Any], None]
"""Takes a reply, or the exception in its place: `Down` or `hiredis.ReplyError`."""

_LATE_S = 0.005
"""If a timer fires this much too late, it was this process that slept, and replies may lie unread."""
_CONNECT_S = 0.5
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.5)
"""Between attempts to connect; the last for ever: nobody waits for it, and sharing is back soon after Redis is."""
_ENDED = ("READONLY", "LOADING", "MASTERDOWN", "NOSCRIPT", "CLUSTERDOWN", "UNBLOCKED", "MISCONF", "NOREPLICAS")
"""Replies of a server that is not, or no longer, the one to talk to, or writes nothing at all: connect again."""
_FULL = "OOM"
"""A server without memory cannot keep anything more, but still says what it has."""


class Down(Exception):
    """There is no connection, or it broke before the reply came; its text says why, where that is known."""


class Link:
    """Keeps a connection to one address. `on_up` is called with it ready, `on_down` with the reason, `on_push` with
    every message. `greeting` gives the commands that must succeed before it is up."""

    def __init__(
        self,
        address: Address,
        loop: asyncio.AbstractEventLoop,
        *,
        patience_s: float,
        greeting: Callable[[], list[tuple[Any, ...]]] = list,
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[str], None] = lambda reason: None,
        on_push: Callable[[list[Any]], None] = lambda message: None,
    ) -> None:
        self._address = address
        self._loop = loop
        self.patience_s = patience_s
        self._greeting = greeting
        self._on_up = on_up
        self._on_down = on_down
        self._on_push = on_push
        self._wire: _Wire | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.is_up = False
        self.is_refused = False  # whether the last attempt failed for something that the operator must change
        self.reason: str | None = "not connected yet"

    @property
    def unanswered(self) -> int:
        """Commands whose reply has not come."""
        return self._wire.unanswered if self._wire is not None else 0

    async def start(self) -> None:
        """Connect, and stay connected from now on; returns when the first attempt has succeeded or failed."""
        first = self._loop.create_future()
        self._keeper = asyncio.create_task(self._keep_connected(first))
        await first

    async def stop(self) -> None:
        """Send what is waiting, wait for the replies within reason, and close."""
        end = self._loop.time() + 1.0
        while self.is_up and self.unanswered and self._loop.time() < end:
            await asyncio.sleep(0.005)
        self._close("stopped")
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    def send(self, done: Done | None, *command: Any) -> None:
        """Send a command; `done` gets its reply, or `Down` at once if there is no connection."""
        if self._wire is None or not self.is_up:
            if done is not None:
                done(Down(self.reason))
            return
        self._wire.send(done, command)

    async def ask(self, *command: Any) -> Any:
        """Send a command and wait for its reply; raises `Down` or `hiredis.ReplyError`."""
        if self._wire is None or not self.is_up:
            raise Down(self.reason)
        return await self._wire.ask(command)

    async def _keep_connected(self, first: asyncio.Future[None]) -> None:
        failures = 0
        while True:
            self._lost.clear()
            trouble = await self._connect()
            if trouble is None:
                failures = 0
                if self.reason is not None:
                    log.info("the store is connected", extra={"store": self._address.shown})
                self.is_up, self.reason = True, None
                self._on_up()
            elif trouble != self.reason:
                log.warning("the store cannot be reached: %s", trouble, extra={"store": self._address.shown})
                self.reason = trouble
            if not first.done():
                first.set_result(None)
            if trouble is None:
                await self._lost.wait()
            await asyncio.sleep(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
            failures += 1

    async def _connect(self) -> str | None:
        """One attempt; why it failed, or None."""
        wire = _Wire(self._loop, self)
        self.is_refused = False
        trouble = "stopped"
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._reach(wire)
                await self._greet(wire)
            self._wire = wire
            return None
        except TimeoutError:
            trouble = f"no answer within {_CONNECT_S:g} s"
        except (OSError, Down) as error:
            trouble = getattr(error, "strerror", None) or str(error) or "it closed the connection"
        except ValueError as error:  # of a host that no name can be
            trouble = str(error)
        except hiredis.HiredisError as error:
            trouble = _explain(str(error))
            self.is_refused = trouble != str(error)
        finally:
            if self._wire is not wire:
                wire.close(trouble)
        return trouble

    async def _reach(self, wire: _Wire) -> None:
        address = self._address
        if address.path is not None:
            await self._loop.create_unix_connection(lambda: wire, address.path)
        else:
            await self._loop.create_connection(lambda: wire, address.host, address.port, ssl=address.tls)

    async def _greet(self, wire: _Wire) -> None:
        commands = [*self._hello(), *self._greeting(), ("PING",)]
        replies = [wire.ask(command) for command in commands]
        for reply in await asyncio.gather(*replies, return_exceptions=True):
            if isinstance(reply, BaseException) and not str(reply).startswith(_FULL):
                raise reply

    def _hello(self) -> list[tuple[Any, ...]]:
        address = self._address
        login: tuple[Any, ...] = ()
        if address.password is not None:
            login = ("AUTH", address.user or "default", address.password)
        hello: list[tuple[Any, ...]] = [("HELLO", "3", *login, "SETNAME", "timebound")]
        if address.database:
            hello.append(("SELECT", str(address.database)))
        return hello

    def push(self, message: list[Any]) -> None:
        """A message of a subscription came in."""
        self._on_push(message)

    def lost(self, wire: _Wire, reason: str) -> None:
        """This connection is of no use any more."""
        if wire is self._wire:
            self._close(reason)
        else:
            wire.close(reason)

    def _close(self, reason: str) -> None:
        wire, self._wire = self._wire, None
        if wire is None:
            return
        self.is_up, self.reason = False, reason
        if reason != "stopped":
            log.warning("the store is lost: %s", reason, extra={"store": self._address.shown})
        wire.close(reason)
        self._on_down(reason)
        self._lost.set()


class _Wire(asyncio.Protocol):
    """The bytes of one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self._loop = loop
        self._link = link
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[float, Done | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited_longer = False

    @property
    def unanswered(self) -> int:
        return len(self._waiting)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, done: Done | None, command: tuple[Any, ...]) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(command))
        if command[0] == "SUBSCRIBE":
            return  # confirmed by a message, not by a reply
        self._waiting.append((self._loop.time(), done))
        if self._timer is None:
            self._timer = self._loop.call_later(self._link.patience_s, self._check)

    def ask(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The reply to come, or the exception in its place; nothing is replied to a subscription."""
        reply: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any) -> None:
            if reply.done():
                return
            if isinstance(value, Exception):
                reply.set_exception(value)
            else:
                reply.set_result(value)

        self.send(done, command)
        if command[0] == "SUBSCRIBE":
            reply.set_result(None)
        return reply

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._has_waited_longer = False
        try:
            while (reply := self._reader.gets()) is not _NOTHING:
                if isinstance(reply, hiredis.PushNotification):
                    self._link.push(reply)
                elif self._waiting:
                    self._answer(reply)
        except hiredis.ProtocolError as error:
            self._link.lost(self, f"it does not speak Redis: {error}")

    def _answer(self, reply: Any) -> None:
        done = self._waiting.popleft()[1]
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_ENDED):
            self._link.lost(self, str(reply))
            reply = Down(str(reply))  # what was asked may be asked again of the next connection
        if done is not None:
            done(reply)

    def _check(self) -> None:
        """The patience with the oldest command may be over."""
        self._timer = None
        if not self._waiting:
            return
        now = self._loop.time()
        due = self._waiting[0][0] + self._link.patience_s
        if now < due:
            self._timer = self._loop.call_later(due - now, self._check)
        elif now - due > _LATE_S and not self._has_waited_longer:
            self._has_waited_longer = True
            self._timer = self._loop.call_later(_LATE_S, self._check)
        else:
            self._link.lost(self, f"no reply within {self._link.patience_s * 1e3:.0f} ms")

    def connection_lost(self, error: Exception | None) -> None:
        self._link.lost(self, str(error) if error is not None else "it closed the connection")

    def close(self, reason: str) -> None:
        """Tell everyone who waits, and hang up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            if done is not None:
                done(Down(reason))


_NOTHING = object()


def _explain(error: str) -> str:
    """What Redis said, with the cure where it is known."""
    if error.startswith(("NOAUTH", "WRONGPASS")) or "AUTH" in error:
        return f"{error}; give the password in the URL: redis://:password@host:6379/0"
    if error.startswith("NOPERM"):
        return f"{error}; give this user the right to it"
    if "unknown command" in error and "HELLO" in error.upper():
        return "it is older than Redis 6; use Redis 6 or newer"
    return error
