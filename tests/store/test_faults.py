"""A real Redis is hurt in every way we know: claims are answered all the same, and shared again soon after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.redis_server import RedisServer
from tests.store.gateways import KEEP_S, OTHER_PRINT, RedisGateways, ask, claim, eventually, stored
from tests.store.stand_in import stand_in

from timebound.store.base import Key, Kind, Store, Stored

pytestmark = pytest.mark.live

KEY: Key = ("digits", "a-key")
PATIENCE_S = 0.3


@asynccontextmanager
async def two_on(redis: RedisServer, lease_s: float = 2.0) -> AsyncIterator[RedisGateways]:
    async with RedisGateways(redis.url, "test", patience_s=PATIENCE_S, lease_s=lease_s) as gateways:
        yield gateways


async def is_alone(store: Store, key: Key) -> bool:
    """Whether a claim is answered within the store's patience, and that it cannot be shared."""
    asked = time.monotonic()
    kind = await claim(store, key)
    assert time.monotonic() - asked < PATIENCE_S + 2  # generous: others use this machine too
    return kind is Kind.UNAVAILABLE


async def assert_shared_again(gateways: RedisGateways) -> None:
    """Both are connected, and what the one computes the other gets."""
    stores = (gateways.one, gateways.two)
    for number in range(100):
        await eventually(lambda: all(store.trouble is None for store in stores), "both connected")
        key = ("digits", f"shared-{number}")
        owned = ask(gateways.one, key)
        kinds = [(await owned.last()).kind]
        joined = ask(gateways.two, key)
        kinds.append((await joined.last()).kind)
        gateways.one.complete(key, stored(b"shared"), KEEP_S)
        if kinds == [Kind.OWNER, Kind.JOINED]:
            assert (await joined.last(2)).kind is Kind.RESULT
            return
        await asyncio.sleep(0.02)  # the loss was not noticed before
    pytest.fail(f"they do not share: {kinds}, {[store.trouble for store in stores]}")


async def test_killed_and_started_again_empty() -> None:
    with RedisServer() as redis:
        async with two_on(redis) as gateways:
            # Given a key in work, one that waits for it, and a finished one
            gateways.one.complete(("digits", "before"), stored(b"before"), KEEP_S)
            await claim(gateways.one, KEY)
            joined = ask(gateways.two, KEY)
            await joined.last()
            # When Redis is gone
            redis.kill()
            # Then who waited computes it, new keys are computed, and each remembers what it has seen
            assert (await joined.last(2)).kind is Kind.UNAVAILABLE
            assert await is_alone(gateways.one, ("digits", "meanwhile"))
            assert await claim(gateways.one, ("digits", "before")) is Kind.RESULT
            assert "redis: " in str(gateways.one.trouble)
            gateways.one.complete(KEY, stored(b"while it was away"), KEEP_S)
            # When it is back, what is in work is claimed, and what was computed meanwhile is written
            redis.start()
            back = time.monotonic()
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            assert time.monotonic() - back < 2 + 3  # two seconds are promised, three are for a busy machine
            await gateways.settled()
            assert isinstance(await gateways.two.read(KEY), Stored)
            assert await claim(gateways.two, ("digits", "meanwhile"), OTHER_PRINT) is Kind.CONFLICT
            assert await claim(gateways.two, ("digits", "meanwhile")) is Kind.JOINED
            await assert_shared_again(gateways)
        assert gateways.reasons() == []


async def test_paused_and_resumed() -> None:
    with RedisServer() as redis:
        async with two_on(redis, lease_s=1.0) as gateways:
            await claim(gateways.one, KEY)
            redis.pause()
            assert await is_alone(gateways.two, KEY)
            assert await is_alone(gateways.one, ("digits", "paused"))
            assert gateways.two.trouble == f"redis: no reply within {PATIENCE_S * 1e3:.0f} ms"
            # Given gateway one ends its work on a key while nobody listens, and owns another still
            gateways.one.abandon(("digits", "paused"))
            redis.resume()
            # Then no stale claim holds anybody up, also none that lay in Redis's buffers
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            assert await claim(gateways.two, ("digits", "paused")) is Kind.OWNER
            await assert_shared_again(gateways)


async def test_what_is_in_work_when_the_connection_breaks_stays_this_gateways_beyond_its_old_lease() -> None:
    with RedisServer() as redis:
        async with RedisGateways(redis.url, "test", lease_s=1.0) as gateways:
            await claim(gateways.one, KEY)
            redis.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await eventually(lambda: len(redis.ask("KEYS", "test:o:*.2")) == 2, "new connections with new leases")
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            await gateways.settled()
            joined = ask(gateways.two, KEY)
            assert (await joined.last()).kind is Kind.JOINED
            await gateways.pass_time(1.5)  # one lease and a half
            assert joined.kinds == [Kind.JOINED]
            gateways.one.complete(KEY, stored(), KEEP_S)
            assert (await joined.last(2)).kind is Kind.RESULT


async def test_not_there_at_the_start() -> None:
    with RedisServer() as redis:
        redis.kill()
        async with two_on(redis) as gateways:
            assert await is_alone(gateways.one, KEY)
            gateways.one.complete(KEY, stored(b"early"), KEEP_S)
            redis.start()
            await assert_shared_again(gateways)
            found = await gateways.two.read(KEY)
            assert isinstance(found, Stored)
            assert found.result.outcome.body == b"early"


async def test_full_and_emptied() -> None:
    with RedisServer("--maxmemory-policy", "noeviction") as redis:
        async with two_on(redis) as gateways:
            gateways.one.complete(("digits", "before"), stored(b"before"), KEEP_S)
            await claim(gateways.one, KEY)
            joined = ask(gateways.two, KEY)
            await joined.last()
            await gateways.settled()
            redis.ask("CONFIG", "SET", "maxmemory", "1")
            # It still says what it has
            assert await claim(gateways.two, ("digits", "before")) is Kind.RESULT
            assert await gateways.two.read(("digits", "before")) == stored(b"before")
            # Who waits gets the result though it cannot be kept
            gateways.one.complete(KEY, stored(b"unkept"), KEEP_S)
            assert (await joined.last(2)).kind is Kind.RESULT
            assert gateways.reasons() == ["full"]
            # New keys are computed, and the trouble is told
            assert await is_alone(gateways.one, ("digits", "new"))
            assert "OOM" in str(gateways.one.trouble)
            # One that connects now can still read
            late = gateways.open()
            await late.start()
            assert await claim(late, ("digits", "before")) is Kind.RESULT
            await eventually(lambda: "OOM" in str(late.trouble), "word of the full memory")
            redis.ask("CONFIG", "SET", "maxmemory", "0")
            await eventually(lambda: late.trouble is None, "the end of the trouble, without any request")
            await late.stop()
            await assert_shared_again(gateways)


async def test_flushed_under_way() -> None:
    with RedisServer() as redis:
        async with two_on(redis, lease_s=0.6) as gateways:
            await claim(gateways.one, KEY)
            joined = ask(gateways.two, KEY)
            await joined.last()
            redis.ask("FLUSHALL")
            gateways.one.complete(KEY, stored(b"flushed"), KEEP_S)
            # Nobody told who waits: it asks by itself when the lease would have been over
            answer = await joined.last(2)
            assert answer.kind is Kind.RESULT
            await assert_shared_again(gateways)


async def test_a_lease_that_was_flushed_is_taken_again() -> None:
    with RedisServer() as redis:
        async with two_on(redis, lease_s=0.6) as gateways:
            redis.ask("FLUSHALL")
            await eventually(lambda: len(redis.ask("KEYS", "test:o:*")) == 2, "both leases")
            await claim(gateways.one, KEY)
            assert await claim(gateways.two, KEY) is Kind.JOINED


async def test_scripts_flushed() -> None:
    with RedisServer() as redis:
        async with two_on(redis) as gateways:
            await claim(gateways.one, KEY)
            redis.ask("SCRIPT", "FLUSH")
            gateways.one.complete(KEY, stored(b"kept"), KEEP_S)
            assert await is_alone(gateways.two, ("digits", "other"))
            await assert_shared_again(gateways)
            await gateways.settled()
            assert await gateways.two.read(KEY) == stored(b"kept")
            assert gateways.reasons() == []


async def test_connections_killed() -> None:
    with RedisServer() as redis:
        async with two_on(redis) as gateways:
            await claim(gateways.one, KEY)
            assert redis.ask("CLIENT", "KILL", "TYPE", "pubsub") == 2
            gateways.one.complete(KEY, stored(b"kept"), KEEP_S)
            await assert_shared_again(gateways)
            await gateways.settled()
            assert await gateways.two.read(KEY) == stored(b"kept")


async def test_a_replica_that_cannot_be_written_to(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as primary, RedisServer() as redis:
        async with two_on(redis) as gateways:
            redis.ask("REPLICAOF", "127.0.0.1", str(primary.port))
            await claim(gateways.one, KEY)
            await eventually(lambda: "READONLY" in str(gateways.one.trouble), "the reason")
            caplog.clear()
            # While it stays one, it is degraded all the time and does not fill the log
            for _ in range(60):
                assert "READONLY" in str(gateways.one.trouble) or "MASTERDOWN" in str(gateways.one.trouble)
                await asyncio.sleep(0.01)
            assert len(caplog.records) < 10
            assert await is_alone(gateways.one, ("digits", "other"))
            redis.ask("REPLICAOF", "NO", "ONE")
            await assert_shared_again(gateways)


async def test_a_redis_that_takes_no_writes() -> None:
    with RedisServer() as redis:
        async with two_on(redis) as gateways:
            await claim(gateways.one, KEY)
            joined = ask(gateways.two, KEY)
            await joined.last()
            # Too few replicas: no writes, reads go on. A failed save (MISCONF) is treated alike, and not provoked here
            redis.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            gateways.one.complete(KEY, stored(b"kept"), KEEP_S)
            await eventually(lambda: "NOREPLICAS" in str(gateways.one.trouble), "the reason")
            redis.ask("CONFIG", "SET", "min-replicas-to-write", "0")
            await assert_shared_again(gateways)
            await gateways.settled()
            assert await gateways.two.read(KEY) == stored(b"kept")


async def test_stopping_takes_no_longer_because_redis_is_silent() -> None:
    with RedisServer() as redis:
        gateways = RedisGateways(redis.url, "test", patience_s=PATIENCE_S)
        await gateways.__aenter__()
        await claim(gateways.one, KEY)
        redis.pause()
        gateways.one.complete(KEY, stored(), KEEP_S)
        started = time.monotonic()
        await gateways.__aexit__()
        assert time.monotonic() - started < 2 + 2
        assert gateways.reasons() == ["stopped"]


async def test_a_long_absence_is_caught_up_with() -> None:
    with RedisServer() as redis:
        redis.kill()
        async with RedisGateways(redis.url, "test") as gateways:
            for number in range(10_000):
                gateways.one.complete(("digits", f"late-{number}"), stored(b"x" * 1400), KEEP_S)
            redis.start()
            await eventually(lambda: redis.ask("DBSIZE") >= 10_000, "everything written")
            assert gateways.reasons() == []


async def test_what_waits_is_written_in_portions_that_the_patience_allows() -> None:
    def reply(writer: asyncio.StreamWriter, count: int) -> None:
        if count == 0:
            writer.write(b"%1\r\n+server\r\n+redis\r\n" + b"+OK\r\n" * 7)

    async with stand_in(reply) as (url, came):
        store = RedisGateways(url, "test").open()
        for number in range(1000):
            store.complete(("digits", str(number)), stored(), KEEP_S)
        await store.start()
        await eventually(lambda: b"".join(came).count(b"EVALSHA"), "results on their way")
        await eventually(lambda: store.trouble is not None, "the end of its patience")
        assert b"".join(came).count(b"EVALSHA") <= 100
        await store.stop()


async def test_when_too_much_waits_the_oldest_is_lost_and_counted() -> None:
    with RedisServer() as redis:
        redis.kill()
        async with RedisGateways(redis.url, "test") as gateways:
            for number in range(20):
                gateways.one.complete(("digits", str(number)), stored(b"x" * 900_000), KEEP_S)
            assert set(gateways.reasons()) == {"down"}
            lost = len(gateways.reasons())
            redis.start()
            await eventually(lambda: len(redis.ask("KEYS", "test:r:*")) == 20 - lost, "the rest written")
            assert redis.ask("EXISTS", "test:r:digits:0") == 0
            assert redis.ask("EXISTS", "test:r:digits:19") == 1
