"""What only the Redis store does: leases, several claims of one gateway, what stays near, and who may not connect."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.redis_server import RedisServer
from tests.store.gateways import KEEP_S, OTHER_PRINT, PRINT, RedisGateways, ask, claim, eventually, stored

from timebound.errors import RequestError, SetupError
from timebound.events import TakenOver
from timebound.store.base import Key, Kind, Store
from timebound.store.value import LONGEST, encode

pytestmark = pytest.mark.live

KEY: Key = ("digits", "a-key")


async def test_a_dead_gateways_keys_are_taken_over_when_its_lease_is_over(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace, lease_s=0.5) as gateways:
        # Given a gateway that owns a key and died
        leave_claim(redis, namespace, lease_ms=400)
        joined = ask(gateways.one, KEY), ask(gateways.two, KEY)
        for told in joined:
            assert (await told.last()).kind is Kind.JOINED
        # Then one of those who wait gets the key, and the other joins that
        answers = asyncio.gather(*(told.last(2) for told in joined))
        owner = await eventually(lambda: [told for told in joined if Kind.OWNER in told.kinds], "a new owner")
        assert [type(event) for event in gateways.heard] == [TakenOver]
        (gateways.one if owner == [joined[0]] else gateways.two).complete(KEY, stored(), KEEP_S)
        kinds = sorted(answer.kind.value for answer in await answers)
        assert kinds == ["owner", "result"]


async def test_a_living_gateway_keeps_its_keys_beyond_a_lease(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace, lease_s=0.4) as gateways:
        await claim(gateways.one, KEY)
        joined = ask(gateways.two, KEY)
        await joined.last()
        await gateways.pass_time(1.2)  # three leases
        assert joined.kinds == [Kind.JOINED]
        gateways.one.complete(KEY, stored(), KEEP_S)
        assert (await joined.last(2)).kind is Kind.RESULT


async def test_a_dead_gateways_key_does_not_count_as_running(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace, lease_s=0.3) as gateways:
        leave_claim(redis, namespace, lease_ms=300)
        assert await gateways.two.read(KEY) is Kind.OWNER
        await eventually(lambda: not redis.ask("EXISTS", f"{namespace}:o:dead.1"), "the end of the lease")
        assert await gateways.two.read(KEY) is None


async def test_a_gateway_that_stops_frees_its_keys_at_once(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace, lease_s=60.0) as gateways:
        await claim(gateways.one, KEY)
        joined = ask(gateways.two, KEY)
        await joined.last()
        await gateways.one.stop()
        assert (await joined.last(2)).kind is Kind.OWNER
    assert redis.ask("KEYS", f"{namespace}:*") == []


async def test_a_key_is_not_freed_while_another_request_of_this_gateway_has_it(
    redis: RedisServer, namespace: str
) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        # Given a client that leaves before Redis has answered, and its retry
        first, second = ask(gateways.one, KEY), ask(gateways.one, KEY)
        await first.last()
        gateways.one.abandon(KEY)
        assert (await second.last()).kind is Kind.OWNER
        await gateways.settled()
        # Then the retry is computed on behalf of everybody
        joined = ask(gateways.two, KEY)
        assert (await joined.last()).kind is Kind.JOINED
        # And the key is free when that comes to nothing, too
        gateways.one.abandon(KEY)
        assert (await joined.last(2)).kind is Kind.OWNER


async def test_two_requests_that_wait_for_one_key_do_not_free_it_for_each_other(
    redis: RedisServer, namespace: str
) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        await claim(gateways.one, KEY)
        left, waiting = ask(gateways.two, KEY), ask(gateways.two, KEY)
        await waiting.last()
        gateways.one.abandon(KEY)
        await left.last(2)
        gateways.two.abandon(KEY)  # nobody waits for it any more
        assert (await waiting.last(2)).kind is Kind.OWNER
        await gateways.settled()
        assert await claim(gateways.one, KEY) is Kind.JOINED


async def test_a_result_that_is_too_large_stays_in_its_gateway(redis: RedisServer, namespace: str) -> None:
    large = stored(b"x" * LONGEST)
    async with RedisGateways(redis.url, namespace) as gateways:
        await claim(gateways.one, KEY)
        joined = ask(gateways.two, KEY)
        await joined.last()
        gateways.one.complete(KEY, large, KEEP_S)
        assert (await joined.last(2)).kind is Kind.OWNER
        assert gateways.reasons() == ["too_large"]
        assert await gateways.one.read(KEY) == large


async def test_a_value_of_a_later_version_is_computed_and_left_alone(redis: RedisServer, namespace: str) -> None:
    name = f"{namespace}:r:digits:a-key"
    redis.ask("SET", name, b"\x09f-from-the-future")
    async with RedisGateways(redis.url, namespace) as gateways:
        assert await claim(gateways.one, KEY) is Kind.UNAVAILABLE
        assert await gateways.two.read(KEY) is None
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert [entry async for entry in gateways.two.entries(None)] == []
    assert redis.ask("GET", name) == b"\x09f-from-the-future"


GARBAGE = {
    "a text": b"somebody was here",
    "a full one that begins alike": b"\x01f" + b"\xff" * 100,
    "a partial one that begins alike": b"\x01p" + b"\xff" * 100,
    "cut off": encode(stored())[:-3],
    "not UTF-8": encode(stored()).replace(b"json", b"\xff\xfe\xff\xfe"),
    "nothing but zeros": bytes(LONGEST),
    "far too long": bytes(40_000_000),
    "nothing at all": b"",
}


@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_under_a_key_counts_as_nothing_and_is_replaced(
    redis: RedisServer, namespace: str, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    redis.ask("SET", f"{namespace}:r:digits:a-key", value)
    caplog.set_level(logging.WARNING, "timebound.store")
    async with RedisGateways(redis.url, namespace, patience_s=0.5) as gateways:
        assert await gateways.two.read(KEY) is None
        assert [entry async for entry in gateways.one.entries(None)] == []
        assert await claim(gateways.one, KEY) is Kind.OWNER
        joined = ask(gateways.two, KEY)
        assert (await joined.last()).kind is Kind.JOINED
        gateways.one.complete(KEY, stored(), KEEP_S)
        assert (await joined.last(2)).kind is Kind.RESULT
        async with RedisGateways(redis.url, namespace) as others:
            assert await claim(others.one, KEY) is Kind.RESULT
        assert gateways.one.trouble is None
    assert not [line for line in caplog.messages if "lost" in line]


async def test_garbage_that_comes_while_a_key_is_in_work_is_replaced_too(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        await claim(gateways.one, KEY)
        redis.ask("SET", f"{namespace}:r:digits:a-key", "garbage")
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.two, KEY) is Kind.RESULT


async def test_a_message_with_garbage_for_a_result_is_asked_about(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        await claim(gateways.one, KEY)
        joined = ask(gateways.two, KEY)
        await joined.last()
        name = f"{namespace}:c:digits:a-key".encode()
        for inbox in redis.ask("PUBSUB", "CHANNELS", f"{namespace}:i:*"):
            redis.ask("PUBLISH", inbox, b"%08d%012d" % (len(name), 1000) + name + b"\x01f" + b"\xff" * 40)
        await gateways.settled()
        assert joined.kinds == [Kind.JOINED]
        gateways.one.complete(KEY, stored(), KEEP_S)
        assert (await joined.last(2)).kind is Kind.RESULT


@pytest.mark.parametrize("kind", ["r", "c"])
@pytest.mark.parametrize("other", [("RPUSH", "a list"), ("SADD", "a set"), ("SET", "a text"), ("HSET", "a", "hash")])
async def test_something_else_in_the_place_of_a_result_or_a_claim_goes(
    redis: RedisServer, namespace: str, kind: str, other: tuple[str, ...]
) -> None:
    redis.ask(other[0], f"{namespace}:{kind}:digits:a-key", *other[1:])
    async with RedisGateways(redis.url, namespace) as gateways:
        assert await gateways.two.read(KEY) is None
        assert [entry async for entry in gateways.one.entries(None)] == []
        assert await claim(gateways.one, KEY) is Kind.OWNER
        assert await claim(gateways.one, ("digits", "another")) is Kind.OWNER
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.two, KEY) is Kind.RESULT
        assert gateways.one.trouble is None


@pytest.mark.parametrize("place", ["r", "c"])
async def test_something_else_that_comes_while_a_key_is_in_work_hurts_nobody(
    redis: RedisServer, namespace: str, place: str
) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        await claim(gateways.one, KEY)
        name = f"{namespace}:{place}:digits:a-key"
        redis.ask("DEL", name)
        redis.ask("RPUSH", name, "a list")
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.two, KEY) is Kind.RESULT
        assert gateways.reasons() == []


async def test_messages_that_are_none_of_ours_are_passed_over(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace) as gateways:
        inboxes = redis.ask("PUBSUB", "CHANNELS", f"{namespace}:*")
        assert len(inboxes) == 3
        for inbox in inboxes:
            for text in (b"", b"nonsense", b"\xff\xfe", b"00000004000000000000abcdvalue"):
                redis.ask("PUBLISH", inbox, text)
        await gateways.settled()
        assert (gateways.one.trouble, gateways.two.trouble) == (None, None)


async def test_namespaces_are_apart(redis: RedisServer, namespace: str) -> None:
    async with RedisGateways(redis.url, namespace) as ours, RedisGateways(redis.url, f"{namespace}-2") as theirs:
        ours.one.complete(KEY, stored(), KEEP_S)
        await ours.settled()
        assert await claim(theirs.one, KEY, OTHER_PRINT) is Kind.OWNER
        assert await theirs.one.clear(None) == 0
        assert await claim(ours.two, KEY) is Kind.RESULT


async def test_clearing_while_redis_is_away_is_refused_in_a_sentence() -> None:
    with RedisServer() as redis:
        async with RedisGateways(redis.url, "test") as gateways:
            gateways.one.complete(KEY, stored(), KEEP_S)
            await gateways.settled()
            redis.kill()
            await eventually(lambda: gateways.one.trouble, "the loss")
            for call in (gateways.one.clear(None), gateways.one.clear(*KEY), first(gateways.one)):
                with pytest.raises(RequestError) as refused:
                    await call
                assert refused.value.code == "store_unavailable"
            assert await gateways.one.read(KEY) == stored()


async def test_a_wrong_password_ends_the_start_and_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer("--requirepass", "right-one") as redis, caplog.at_level(logging.DEBUG):
        for login in ("", ":wrong-one@", "nobody:wrong-one@"):
            gateway = RedisGateways(f"redis://{login}127.0.0.1:{redis.port}", "test").open()
            with pytest.raises(SetupError, match="give the password in the URL") as refused:
                await gateway.start()
            assert f"redis://127.0.0.1:{redis.port}/0" in str(refused.value)
            assert "wrong-one" not in str(refused.value) + caplog.text + repr(vars(gateway))
        async with RedisGateways(f"redis://:right-one@127.0.0.1:{redis.port}", "test") as gateways:
            assert await claim(gateways.one, KEY) is Kind.OWNER


async def first(store: Store) -> Any:
    async for entry in store.entries(None):
        return entry
    return None


def leave_claim(redis: RedisServer, namespace: str, *, lease_ms: int) -> None:
    """What a gateway that was killed leaves behind in Redis: a claim, and a lease that nobody renews."""
    redis.ask("SET", f"{namespace}:o:dead.1", "1", "PX", str(lease_ms))
    redis.ask("HSET", f"{namespace}:c:digits:a-key", "o", "dead.1", "f", PRINT)
