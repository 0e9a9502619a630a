"""One connection to Redis: commands of one turn of the event loop go out in one write, replies come back in order.

Why not redis-py: per command it takes 34 to 46 us of the gateway's CPU, this takes about 4, because nothing here is a
task, a lock or a pool. hiredis does the parsing. One connection is enough: Redis is single-threaded, and pipelining
keeps it busy. Being one, it also carries the messages of RESP3 subscriptions.

It is also the breaker. Replies come in order, so if the oldest is late, all are: then the connection is closed,
everything that waits is told so, and nobody waits again until a new connection has answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from timebound.store.address import Address
from timebound.store.line import CONNECT_S, LATE_S, Done, Down, Line, Report, log, reply_to_come
from timebound.store.refusal import explain

_ENDED = ("READONLY", "LOADING", "MASTERDOWN", "NOSCRIPT", "CLUSTERDOWN", "UNBLOCKED", "MISCONF", "NOREPLICAS")
"""Replies of a server that is not, or no longer, the one to talk to, or writes nothing at all: connect again."""
_FULL = "OOM"
"""A server without memory cannot keep anything more, but still says what it has."""


class Link(Line):
    """Keeps a connection to one address, or to whichever is next. `on_push` gets every message. `greeting` gives the
    commands that must succeed before it is up."""

    def __init__(
        self,
        address: Address | Callable[[], Address],
        loop: asyncio.AbstractEventLoop,
        *,
        patience_s: float,
        report: Report | None = None,
        greeting: Callable[[], list[tuple[Any, ...]]] = list,
        on_up: Callable[[], None] = lambda: None,
        on_down: Callable[[str], None] = lambda reason: None,
        on_push: Callable[[list[Any]], None] = lambda message: None,
    ) -> None:
        where: Callable[[], Address] = (lambda: address) if isinstance(address, Address) else address
        if report is None:
            report = Report(where().shown)
        super().__init__(loop, report, patience_s=patience_s, on_up=on_up, on_down=on_down)
        self._where = where
        self._greeting = greeting
        self.on_push = on_push
        self._wire: _Wire | None = None
        self._lookup: asyncio.Future[list[Any]] | None = None

    @property
    def unanswered(self) -> int:
        return self._wire.unanswered if self._wire is not None else 0

    def send(self, done: Done | None, *command: Any) -> None:
        if self._wire is None or not self.is_up:
            if done is not None:
                done(Down(self.reason))
            return
        self._wire.send(done, command)

    async def ask(self, *command: Any) -> Any:
        if self._wire is None or not self.is_up:
            raise Down(self.reason)
        return await self._wire.ask(command)

    async def _connect(self) -> str | None:
        wire = _Wire(self._loop, self)
        self.is_refused = False
        trouble = "stopped"
        try:
            address = self._where()
            async with asyncio.timeout(CONNECT_S):
                await self._reach(wire, address)
                await self._greet(wire, address)
            self._wire = wire
            return None
        except TimeoutError:
            trouble = f"no answer within {CONNECT_S:g} s"
        except (OSError, Down) as error:
            trouble = getattr(error, "strerror", None) or str(error) or "it closed the connection"
        except ValueError as error:  # of a host that no name can be
            trouble = str(error)
        except hiredis.HiredisError as error:
            trouble = explain(str(error))
            self.is_refused = trouble != str(error)
        finally:
            if self._wire is not wire:
                wire.close(trouble)
        return trouble

    async def _reach(self, wire: _Wire, address: Address) -> None:
        if address.path is not None:
            await self._loop.create_unix_connection(lambda: wire, address.path)
        else:
            name = address.host if address.tls is not None else None
            for *_, place in (found := await self._look_up(address)):
                try:
                    await self._loop.create_connection(
                        lambda: wire, place[0], address.port, ssl=address.tls, server_hostname=name
                    )
                    return
                except OSError:
                    if place is found[-1][-1]:
                        raise

    async def _look_up(self, address: Address) -> list[Any]:
        """The places of the host. A lookup that outlasts an attempt is left to the next one: each holds a thread."""
        lookup = self._lookup or asyncio.ensure_future(
            self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        )
        self._lookup = lookup
        try:
            return await asyncio.shield(lookup)
        finally:
            if lookup.done():
                self._lookup = None

    async def _greet(self, wire: _Wire, address: Address) -> None:
        commands = [*_hello(address), *self._greeting(), ("PING",)]
        replies = [wire.ask(command) for command in commands]
        for reply in await asyncio.gather(*replies, return_exceptions=True):
            if isinstance(reply, BaseException) and not str(reply).startswith(_FULL):
                raise reply

    def lost(self, wire: _Wire, reason: str) -> None:
        """This connection is of no use any more."""
        if wire is self._wire:
            self._close(reason)
        else:
            wire.close(reason)

    def _hang_up(self, reason: str) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close(reason)


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
        reply, done = reply_to_come(self._loop)
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
                try:
                    if isinstance(reply, hiredis.PushNotification):
                        self._link.on_push(reply)
                    elif self._waiting:
                        self._answer(reply)
                except Exception:  # of one reply; everybody else's are still to come
                    log.exception("a reply of the store was not understood")
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
        elif now - due > LATE_S and not self._has_waited_longer:
            self._has_waited_longer = True
            self._timer = self._loop.call_later(LATE_S, self._check)
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


def _hello(address: Address) -> list[tuple[Any, ...]]:
    login = address.login
    words = () if login is None else ("AUTH", *login)
    hello: list[tuple[Any, ...]] = [("HELLO", "3", *words, "SETNAME", "timebound")]
    if address.database:
        hello.append(("SELECT", str(address.database)))
    return hello
