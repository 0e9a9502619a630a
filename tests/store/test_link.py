"""The one connection to Redis: pipelined, impatient, and back by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import hiredis
import pytest
from tests.redis_server import RedisServer, free_port
from tests.store.gateways import PATIENCE_S, eventually
from tests.store.stand_in import Reply, stand_in

from timebound.store.address import read_address
from timebound.store.line import Down
from timebound.store.link import Link

pytestmark = pytest.mark.live

GREETED = b"%1\r\n+server\r\n+redis\r\n+PONG\r\n"
"""What a Redis says to HELLO and PING."""


class Linked:
    """A link and what it reported."""

    def __init__(self, url: str, *, patience_s: float = 5.0, greeting: tuple[tuple[str, ...], ...] = ()) -> None:
        self.ups = 0
        self.downs: list[str] = []
        self.pushes: list[list[Any]] = []
        self.link = Link(
            read_address(url),
            asyncio.get_running_loop(),
            patience_s=patience_s,
            greeting=lambda: list(greeting),
            on_up=self._up,
            on_down=self.downs.append,
            on_push=self.pushes.append,
        )

    def _up(self) -> None:
        self.ups += 1

    async def __aenter__(self) -> Linked:
        async with asyncio.timeout(PATIENCE_S):
            await self.link.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.link.stop()


def greets_then(what: bytes) -> Reply:
    def reply(writer: asyncio.StreamWriter, count: int) -> None:
        writer.write(GREETED if count == 0 else what)

    return reply


async def test_commands_of_one_turn_go_out_in_one_write_and_replies_come_in_order() -> None:
    answers = b"".join(b":%d\r\n" % n for n in range(1000))
    async with stand_in(greets_then(answers)) as (url, came), Linked(url) as linked:
        before = len(came)
        replies = await asyncio.gather(*(linked.link.ask("ECHO", str(n)) for n in range(1000)))
        assert replies == list(range(1000))
        assert b"".join(came[before:]).count(b"ECHO") == 1000
        assert len(came) - before < 10  # TCP may cut a write, but there were not a thousand


async def test_many_commands_get_their_own_replies(redis: RedisServer) -> None:
    async with Linked(redis.url) as linked:
        replies = await asyncio.gather(*(linked.link.ask("ECHO", str(n)) for n in range(5000)))
        assert replies == [str(n).encode() for n in range(5000)]
        assert linked.link.unanswered == 0


async def test_an_error_is_the_reply_of_its_own_command_only(redis: RedisServer) -> None:
    async with Linked(redis.url) as linked:
        replies: list[Any] = []
        for command in (("ECHO", "a"), ("NOSUCH",), ("ECHO", "b")):
            linked.link.send(replies.append, *command)
        await eventually(lambda: len(replies) == 3, "three replies")
        assert (replies[0], type(replies[1]), replies[2]) == (b"a", hiredis.ReplyError, b"b")
        assert linked.link.is_up


async def test_messages_come_beside_replies(redis: RedisServer, namespace: str) -> None:
    async with Linked(redis.url, greeting=(("SUBSCRIBE", namespace),)) as linked:
        assert await linked.link.ask("PUBLISH", namespace, "hello") == 1
        assert [push[2] for push in linked.pushes if push[0] == b"message"] == [b"hello"]


async def test_a_late_reply_ends_the_connection_and_everybody_is_told_once() -> None:
    async with stand_in(greets_then(b"")) as (url, _), Linked(url, patience_s=0.2) as linked:
        told: list[Any] = []
        for _ in range(5):
            linked.link.send(told.append, "ECHO", "x")
        await eventually(lambda: told, "the end of patience")
        assert [type(reply) for reply in told] == [Down] * 5
        assert linked.downs == ["no reply within 200 ms"]
        # Until it is back nobody waits for it.
        if not linked.link.is_up:
            linked.link.send(told.append, "ECHO", "x")
            assert isinstance(told[-1], Down)


async def test_a_server_that_does_not_speak_redis_is_no_store() -> None:
    def reply(writer: asyncio.StreamWriter, count: int) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with stand_in(reply) as (url, _), Linked(url) as linked:
        assert not linked.link.is_up
        assert "does not speak Redis" in str(linked.link.reason)


async def test_garbage_later_on_ends_the_connection_and_it_comes_back() -> None:
    async with stand_in(greets_then(b"?garbage\r\n")) as (url, _), Linked(url) as linked:
        with pytest.raises(Down):
            await linked.link.ask("ECHO", "x")
        await eventually(lambda: linked.ups == 2, "a new connection")
        assert "does not speak Redis" in linked.downs[0]


async def test_a_server_that_hangs_up_is_gone_and_looked_for_again() -> None:
    def reply(writer: asyncio.StreamWriter, count: int) -> None:
        if count == 0:
            writer.write(GREETED)
        else:
            writer.close()

    async with stand_in(reply) as (url, _), Linked(url) as linked:
        with pytest.raises(Down):
            await linked.link.ask("ECHO", "x")
        await eventually(lambda: linked.ups == 2, "a new connection")


async def test_a_reply_that_says_this_is_not_the_server_ends_the_connection() -> None:
    said = b"-READONLY You can't write against a replica.\r\n"
    async with stand_in(greets_then(said)) as (url, _), Linked(url) as linked:
        with pytest.raises(Down, match="READONLY"):
            await linked.link.ask("SET", "a", "b")
        assert linked.downs == ["READONLY You can't write against a replica."]


async def test_nobody_at_the_address_is_a_reason_and_no_error() -> None:
    async with Linked(f"redis://127.0.0.1:{free_port()}") as linked:
        assert not linked.link.is_up
        assert "refused" in str(linked.link.reason).lower()
        with pytest.raises(Down):
            await linked.link.ask("PING")


@pytest.mark.parametrize("host", ["two..dots", "x" * 70, "no-such-host.invalid"])
async def test_a_host_that_cannot_be_is_a_reason_and_holds_nobody_up(host: str) -> None:
    async with Linked(f"redis://{host}") as linked:
        assert not linked.link.is_up
        assert linked.link.reason


async def test_a_server_that_is_silent_from_the_start_holds_nobody_up() -> None:
    async with stand_in(lambda writer, count: None) as (url, _), Linked(url, patience_s=0.2) as linked:
        assert not linked.link.is_up
        assert "no reply within 200 ms" in str(linked.link.reason)


async def test_it_can_be_stopped_while_it_connects() -> None:
    async with stand_in(lambda writer, count: None) as (url, came):
        linked = Linked(url)
        starting = asyncio.create_task(linked.link.start())
        await eventually(lambda: came, "a greeting")
        await linked.link.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert not linked.link.is_up


async def test_a_unix_socket_and_a_database_of_ones_own(redis: RedisServer, namespace: str) -> None:
    async with Linked(f"unix://{redis.path}?db=3") as linked:
        await linked.link.ask("SET", namespace, "here")
    assert redis.ask("GET", namespace) is None
    async with Linked(f"redis://127.0.0.1:{redis.port}/3") as linked:
        assert await linked.link.ask("GETDEL", namespace) == b"here"


async def test_a_password_and_a_user(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("user default off\nuser us on >p@ss:/w ~* &* +@all\n")
    with RedisServer("--aclfile", str(users)) as redis:
        async with Linked(f"redis://us:p%40ss%3A%2Fw@127.0.0.1:{redis.port}") as linked:
            assert await linked.link.ask("ACL", "WHOAMI") == b"us"
        for login in ("", "us:wrong@", ":wrong@"):
            async with Linked(f"redis://{login}127.0.0.1:{redis.port}") as linked:
                assert not linked.link.is_up
                assert "give the password in the URL" in str(linked.link.reason)
                assert "wrong@" not in str(linked.link.reason)


async def test_tls_to_a_server_whose_certificate_is_trusted(certificate: Path) -> None:
    cert, key, port = certificate / "cert.pem", certificate / "key.pem", str(free_port())
    files = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert))
    with RedisServer("--tls-port", port, *files):
        asked = f"ssl_ca_certs={cert}&ssl_certfile={cert}&ssl_keyfile={key}"
        async with Linked(f"rediss://localhost:{port}/0?{asked}") as linked:
            await eventually(lambda: linked.link.is_up, f"TLS: {linked.link.reason}")
            assert await linked.link.ask("ECHO", "secret") == b"secret"
        unchecked = f"ssl_cert_reqs=none&ssl_certfile={cert}&ssl_keyfile={key}"
        async with Linked(f"rediss://127.0.0.1:{port}/0?{unchecked}") as linked:
            await eventually(lambda: linked.link.is_up, f"TLS: {linked.link.reason}")
        async with Linked(f"rediss://localhost:{port}/0") as linked:
            assert not linked.link.is_up
            assert "certificate" in str(linked.link.reason).lower()
        async with Linked(f"redis://127.0.0.1:{port}/0") as linked:
            assert not linked.link.is_up


async def test_a_name_that_is_looked_up_for_longer_than_an_attempt_lasts_is_found_in_the_end(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    usual, asked = loop.getaddrinfo, 0

    async def slow(*host: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(1.2)  # a resolver slower than the link's patience
        return await usual(*host, **more)

    monkeypatch.setattr(loop, "getaddrinfo", slow)
    async with Linked(f"redis://localhost:{redis.port}/0") as linked:
        assert linked.link.reason == "no answer within 0.5 s"
        await eventually(lambda: linked.link.is_up, "a connection")
    assert asked == 1  # each holds a thread
