"""Ways into a cluster through redis-py: one per hash tag, with the commands for one node in one pipeline.

redis-py knows the nodes and their slots, follows MOVED and ASK, and logs in. It takes about ten times the time of
`link.py` for a command, so commands that come while a node is asked wait for that answer and go out together. That also
keeps them in order. A lane is a breaker like a link: a node that does not answer in time loses all its lanes, and they
look for their slot's node anew until one has greeted them.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import cycle
from typing import Any

import hiredis
import msgspec
from redis import exceptions
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from timebound.store.address import Address
from timebound.store.line import CONNECT_S, LATE_S, Done, Down, Line, Report, reply_to_come
from timebound.store.refusal import explain

_ENDED = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ClusterDownError,
    exceptions.ClusterError,
    exceptions.MasterDownError,
    exceptions.NoScriptError,
    exceptions.ReadOnlyError,
    exceptions.RedisClusterException,
    exceptions.SlotNotCoveredError,
    exceptions.TryAgainError,
    OSError,
)
"""The node is not, or no longer, the one to talk to: look for the right one."""
_RAISED = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
_WRITES_NOTHING = ("MISCONF", "NOREPLICAS", "UNBLOCKED")
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.OutOfMemoryError, "OOM "),
    (exceptions.NoPermissionError, "NOPERM "),
    (exceptions.AuthenticationError, "WRONGPASS "),
)
"""redis-py takes the first word off these errors."""


class _Call(msgspec.Struct, eq=False):
    lane: Lane
    done: Done
    command: tuple[Any, ...]
    is_over: bool = False


class _Login(CredentialProvider):
    """Asked at each connection, so that a new password counts from then on."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        login = self._address.login
        return ("",) if login is None else login

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


class Nodes:
    """A cluster's nodes, and what waits to be sent to each."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        self._address = address
        self._loop = loop
        wait_s = max(CONNECT_S, patience_s)
        self.greet_s = 2 * wait_s  # for all lanes of a node together
        wishes: dict[str, Any] = dict(address.tls_files)
        if wishes.get("ssl_cert_reqs") == "none":
            wishes["ssl_check_hostname"] = False
        if address.password is not None or address.password_file is not None:
            wishes["credential_provider"] = _Login(address)
        self._client = RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in ((address.host, address.port), *address.others)],
            require_full_coverage=False,
            retry=Retry(NoBackoff(), 0),
            reinitialize_steps=0,  # a MOVED moves its slot alone; else every fifth would close all connections
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
            max_connections=16,
            client_name="timebound",
            ssl=address.tls is not None,
            **wishes,
        )
        self._waiting: dict[str, list[_Call]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._preparing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._prepared: dict[str, float] = {}
        self._turn: Iterator[ClusterNode] | None = None

    async def look(self, since: float) -> None:
        """Learn which node has which slots, unless that was done since; raises what redis-py raises.

        Many lanes are lost at once, and one look serves all.
        """
        async with self._looking:
            if self._looked < since:
                if self._looked < 0:
                    await self._client.initialize()
                else:
                    await self._client.nodes_manager.initialize()
                self._turn = None
                self._looked = self._loop.time()

    async def prepare(self, node: ClusterNode, commands: list[tuple[Any, ...]], since: float) -> None:
        """Have a node do these, unless it has done so since; raises `Down` or `hiredis.ReplyError`."""
        name = str(node.name)
        async with self._preparing[name]:
            if self._prepared.get(name, -1.0) < since:
                for command in commands:
                    await self.ask_node(node, *command)
                self._prepared[name] = self._loop.time()

    def node_of(self, key: str) -> ClusterNode:
        """The node that has this key's slot."""
        node = self._client.get_node_from_key(key)
        if node is None:
            raise Down("no node has this part of the keys")
        return node

    def primaries(self) -> list[ClusterNode]:
        return list(self._client.get_primaries())

    def next_address(self) -> Address:
        """Some node's, and another one's next time."""
        nodes = self._client.get_nodes()
        if self._turn is None and nodes:
            self._turn = cycle(sorted(nodes, key=lambda node: str(node.name)))
        if self._turn is None:
            return self._address
        node = next(self._turn)
        address = self._address
        return Address(
            address.shown,
            str(node.host),
            int(node.port),
            user=address.user,
            password=address.password,
            tls=address.tls,
            password_file=address.password_file,
        )

    async def ask_node(self, node: ClusterNode, *command: Any) -> Any:
        """One command to this node; raises `Down` or `hiredis.ReplyError`."""
        try:
            return await self._client.execute_command(*command, target_nodes=node)
        except _RAISED as error:
            raise reply_of(error) from None

    def put(self, node: ClusterNode, call: _Call) -> None:
        """Send this to a node with what else waits for it."""
        name = str(node.name)
        self._waiting.setdefault(name, []).append(call)
        if name not in self._sending:
            self._sending[name] = asyncio.create_task(self._send_all(name))

    async def stop(self) -> None:
        """Hang up."""
        for task in self._sending.values():
            task.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)
        await self._client.aclose()

    async def _send_all(self, name: str) -> None:
        try:
            while calls := [call for call in self._waiting.pop(name, ()) if not call.is_over]:
                replies = await self._send(calls)
                for call, reply in zip(calls, replies, strict=True):
                    call.lane.answer(call, reply)
        finally:
            del self._sending[name]

    async def _send(self, calls: list[_Call]) -> list[Any]:
        pipeline = self._client.pipeline()
        for call in calls:
            pipeline.execute_command(*call.command)
        replies = asyncio.create_task(pipeline.execute(raise_on_error=False))
        patience_s = min(call.lane.patience_s for call in calls)
        due = self._loop.time() + patience_s  # what waited did so for an answer that came in time
        try:
            await asyncio.wait({replies}, timeout=max(0.0, due - self._loop.time()))
            if not replies.done() and self._loop.time() - due > LATE_S:
                await asyncio.wait({replies}, timeout=LATE_S)
            if not replies.done():
                return [Down(f"no reply within {patience_s * 1e3:.0f} ms")] * len(calls)
            return [reply_of(reply) if isinstance(reply, Exception) else reply for reply in replies.result()]
        except _RAISED as error:
            return [reply_of(error)] * len(calls)
        finally:
            replies.cancel()


class OnNodes:
    """All results of a cluster, for a listing."""

    def __init__(self, nodes: Nodes, namespace: str) -> None:
        self._nodes = nodes
        self.start = f"{namespace}:{{*}}:r:"
        self._head = re.compile(rf"{re.escape(namespace)}:(\{{[0-9]+\}}):r:".encode())

    def name(self, key: bytes) -> str:
        return self._head.sub(b"", key, count=1).decode(errors="replace")

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        for node in self._nodes.primaries():
            cursor = 0
            while True:
                cursors, keys = await self._nodes.ask_node(node, "SCAN", cursor, "MATCH", pattern, "COUNT", 500)
                cursor = int(cursors[node.name])
                slots: dict[bytes, list[bytes]] = {}
                for key in keys:
                    if found := self._head.match(key):
                        slots.setdefault(found[1], []).append(key)
                for together in slots.values():
                    yield together
                if cursor == 0:
                    break

    async def ask(self, key: bytes, *command: Any) -> Any:
        return await self._nodes.ask_node(self._nodes.node_of(key.decode(errors="replace")), *command)


class Lane(Line):
    """The way to the keys with one hash tag, all in one slot."""

    def __init__(
        self,
        nodes: Nodes,
        slot_key: str,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        *,
        patience_s: float,
        greeting: Callable[[], list[tuple[Any, ...]]],
        on_up: Callable[[], None],
        on_down: Callable[[str], None],
        on_push: Callable[[list[Any]], None],
    ) -> None:
        del on_push  # one inbox serves all lanes
        super().__init__(loop, report, patience_s=patience_s, on_up=on_up, on_down=on_down)
        self._nodes = nodes
        self._slot_key = slot_key
        self._greeting = greeting
        self._calls: dict[_Call, None] = {}

    @property
    def unanswered(self) -> int:
        return len(self._calls)

    def send(self, done: Done | None, *command: Any) -> None:
        if self.is_up:
            self._put(done or _pass_over, command)
        elif done is not None:
            done(Down(self.reason))

    async def ask(self, *command: Any) -> Any:
        if not self.is_up:
            raise Down(self.reason)
        return await self._reply(command)

    def _reply(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        reply, done = reply_to_come(self._loop)
        self._put(done, command)
        return reply

    def _put(self, done: Done, command: tuple[Any, ...]) -> None:
        call = _Call(self, done, command)
        try:
            node = self._nodes.node_of(self._slot_key)
        except (Down, *_RAISED) as error:
            done(Down(str(error)))
            self._close(str(error))
            return
        self._calls[call] = None
        self._nodes.put(node, call)

    def answer(self, call: _Call, reply: Any) -> None:
        """The reply to a call of this lane, or the exception in its place."""
        if call.is_over:
            return
        call.is_over = True
        del self._calls[call]
        if isinstance(reply, Down):
            self._close(str(reply))
        call.done(reply)

    async def _connect(self) -> str | None:
        self.is_refused = False
        try:
            since = self._loop.time()
            async with asyncio.timeout(self._nodes.greet_s):
                await self._nodes.look(since)
                await self._greet(since)
        except TimeoutError:
            trouble = f"no answer within {self._nodes.greet_s:g} s"
        except Down as error:
            trouble = str(error)
        except Exception as error:  # redis-py raises of many kinds, and this must go on trying
            said = str(error if isinstance(error, hiredis.ReplyError) else reply_of(error))
            trouble = explain(said)
            self.is_refused = trouble != said
        else:
            return None
        self._hang_up(trouble)
        return trouble

    async def _greet(self, since: float) -> None:
        node = self._nodes.node_of(self._slot_key)
        commands = self._greeting()
        once = [("SCRIPT LOAD", each[2]) for each in commands if each[0] == "SCRIPT"]
        once += [each for each in commands if each[0] == "PUBLISH"]
        await self._nodes.prepare(node, once, since)
        own = [self._reply(each) for each in commands if each[0] not in ("SCRIPT", "PUBLISH", "SUBSCRIBE")]
        for reply in await asyncio.gather(*own, return_exceptions=True):
            # A node without memory cannot keep anything more, but still says what it has.
            if isinstance(reply, BaseException) and "OOM" not in str(reply):
                raise reply

    def _hang_up(self, reason: str) -> None:
        calls, self._calls = self._calls, {}
        for call in calls:
            call.is_over = True
            call.done(Down(reason))


def reply_of(error: BaseException) -> Exception:
    """What redis-py raised as a line's user expects it."""
    if isinstance(error, exceptions.AuthenticationError):
        return hiredis.ReplyError(f"WRONGPASS {error}")
    if isinstance(error, exceptions.RedisClusterException) and error.__cause__ is not None:
        return reply_of(error.__cause__)
    if "Cluster mode is not enabled" in str(error):
        return hiredis.ReplyError("ERR cluster support disabled")
    if isinstance(error, exceptions.ResponseError) and not isinstance(error, _ENDED):
        for kind, code in _CODES:
            if isinstance(error, kind):
                return hiredis.ReplyError(f"{code}{error}")
        if not str(error).startswith(_WRITES_NOTHING):
            return hiredis.ReplyError(str(error))
    return Down(str(error) or "it closed the connection")


def _pass_over(reply: Any) -> None:
    """Nobody waits for this reply."""
