"""A real cluster is used and hurt: slots move, a primary dies, rights are missing, passwords change."""

from __future__ import annotations

import asyncio
import time
from binascii import crc_hqx
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis_cluster import ClusterServers
from tests.redis_server import RedisServer
from tests.store.gateways import KEEP_S, RedisGateways, ask, claim, eventually, stored

from timebound.errors import SetupError
from timebound.store.base import Key, Kind
from timebound.store.cluster import TAGS, tags

pytestmark = pytest.mark.live

PATIENCE_S = 0.3


def slot(tag: str) -> int:
    return crc_hqx(tag.encode(), 0) % 16384


def tag_of(servers: ClusterServers, namespace: str, key: Key) -> str:
    """The hash tag of a key that is kept or in work."""
    name = next(name for name in servers.keys(f"{namespace}:*") if name.endswith(f":{key[0]}:{key[1]}".encode()))
    return name.partition(b"{")[2].partition(b"}")[0].decode()


async def keys_on(servers: ClusterServers, namespace: str, node: int, gateways: RedisGateways) -> Iterator[Key]:
    """Keys in a node's share of the slots, found by claiming some."""
    share = range(16384 * node // 3, 16384 * (node + 1) // 3)
    tried = [("digits", f"try-{number}") for number in range(60)]
    for key in tried:
        assert await claim(gateways.one, key) is Kind.OWNER
    return iter([key for key in tried if slot(tag_of(servers, namespace, key)) in share])


def test_tags_are_spread_evenly_over_the_slots() -> None:
    shares = sorted(slot(tag) * TAGS // 16384 for tag in tags())
    assert shares == list(range(TAGS))


async def test_all_keys_of_one_request_are_in_one_slot_and_requests_are_on_all_nodes(
    cluster: ClusterServers, namespace: str
) -> None:
    async with RedisGateways(cluster.url, namespace) as gateways:
        for number in range(100):
            gateways.one.complete(("digits", str(number)), stored(), KEEP_S)
        await gateways.settled()
        await eventually(lambda: len(cluster.keys(f"{namespace}:*:r:*")) == 100, "all results")
        counts = [len(keys) for keys in cluster.each("KEYS", f"{namespace}:*:r:*")]
        assert min(counts) > 10


async def test_a_slot_that_moves_is_followed_and_its_keys_stay_shared(namespace: str) -> None:
    with ClusterServers() as servers:
        async with RedisGateways(servers.url, namespace) as gateways:
            # Given a finished key and one in work, in a slot that then moves to another node
            key = next(await keys_on(servers, namespace, 0, gateways))
            gateways.one.complete(key, stored(b"before"), KEEP_S)
            await gateways.settled()
            moving, (source, target) = slot(tag_of(servers, namespace, key)), servers.nodes[:2]
            ids = [node.ask("CLUSTER", "MYID") for node in (source, target)]
            target.ask("CLUSTER", "SETSLOT", str(moving), "IMPORTING", ids[0])
            source.ask("CLUSTER", "SETSLOT", str(moving), "MIGRATING", ids[1])
            names = source.ask("CLUSTER", "GETKEYSINSLOT", str(moving), "1000")
            source.ask("MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *names)
            # While it moves, Redis lets nobody use several of its keys at once: nobody is held up by that
            assert await claim(gateways.two, key) in (Kind.RESULT, Kind.UNAVAILABLE)
            for node in (target, source):
                node.ask("CLUSTER", "SETSLOT", str(moving), "NODE", ids[1])
            # Afterwards everybody finds it at its new place
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            await eventually_reads(gateways, key, b"before")
            other, *_ = await keys_like(servers, namespace, moving, gateways)
            joined = ask(gateways.two, other)
            assert (await joined.last()).kind is Kind.JOINED
            gateways.one.complete(other, stored(b"after"), KEEP_S)
            assert (await joined.last(2)).kind is Kind.RESULT


async def keys_like(servers: ClusterServers, namespace: str, moving: int, gateways: RedisGateways) -> list[Key]:
    """Keys in work whose slot is this one."""
    tried = [("digits", f"like-{number}") for number in range(200)]
    for key in tried:
        assert await claim(gateways.one, key) is Kind.OWNER
    return [key for key in tried if slot(tag_of(servers, namespace, key)) == moving]


async def test_a_primary_that_dies_holds_nobody_up_and_sharing_is_back_by_itself(namespace: str) -> None:
    with ClusterServers(replicas=1, timeout_ms=1000) as servers:
        async with RedisGateways(servers.url, namespace, patience_s=PATIENCE_S) as gateways:
            # Given keys in work and finished on the node that dies, and somebody who waits for one
            key, finished, *_ = await keys_on(servers, namespace, 0, gateways)
            gateways.one.complete(finished, stored(b"kept"), KEEP_S)
            joined = ask(gateways.two, key)
            assert (await joined.last()).kind is Kind.JOINED
            await gateways.settled()
            servers.nodes[0].kill()
            # Then who waited computes it soon, and so does anybody else
            died = time.monotonic()
            assert (await joined.last(2)).kind is Kind.UNAVAILABLE
            assert time.monotonic() - died < PATIENCE_S + 2  # generous: others use this machine too
            assert gateways.two.trouble is not None
            gateways.one.complete(key, stored(b"meanwhile"), KEEP_S)
            # And when the replica has taken over, all is shared as before, with what was computed meanwhile
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            await eventually_reads(gateways, key, b"meanwhile")
            await eventually_reads(gateways, finished, b"kept")
            new = ("digits", "new")
            assert await claim(gateways.one, new) is Kind.OWNER
            again = ask(gateways.two, new)
            assert (await again.last()).kind is Kind.JOINED
            gateways.one.complete(new, stored(b"new"), KEEP_S)
            assert (await again.last(2)).kind is Kind.RESULT
        assert gateways.reasons() == []


async def eventually_reads(gateways: RedisGateways, key: Key, body: bytes) -> None:
    fresh = gateways.open(patience_s=5.0)  # it has nothing near
    await fresh.start()
    async with asyncio.timeout(20):
        while await fresh.read(key) != stored(body):
            await asyncio.sleep(0.02)
    await fresh.stop()


async def test_a_silent_node_costs_no_more_than_the_patience(namespace: str) -> None:
    with ClusterServers(timeout_ms=60_000) as servers:
        async with RedisGateways(servers.url, namespace, patience_s=PATIENCE_S) as gateways:
            key, *_ = await keys_on(servers, namespace, 0, gateways)
            elsewhere, *_ = await keys_on_other(servers, namespace, gateways)
            gateways.one.complete(elsewhere, stored(b"elsewhere"), KEEP_S)
            await gateways.settled()
            servers.nodes[0].pause()
            asked = time.monotonic()
            assert await claim(gateways.two, key) is Kind.UNAVAILABLE
            assert time.monotonic() - asked < PATIENCE_S + 2
            # Keys of other nodes are still shared
            assert await claim(gateways.two, elsewhere) is Kind.RESULT
            servers.nodes[0].resume()
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")


async def keys_on_other(servers: ClusterServers, namespace: str, gateways: RedisGateways) -> list[Key]:
    share = range(16384 // 3 + 1, 16384)
    tried = [("digits", f"other-{number}") for number in range(40)]
    for key in tried:
        assert await claim(gateways.one, key) is Kind.OWNER
    return [key for key in tried if slot(tag_of(servers, namespace, key)) in share]


async def test_a_dead_gateways_keys_are_taken_over_when_its_lease_is_over(
    cluster: ClusterServers, namespace: str
) -> None:
    async with RedisGateways(cluster.url, namespace, lease_s=0.6) as gateways:
        # Given a gateway that owns a key and then is silent
        dead = gateways.open()
        await dead.start()
        key = ("digits", "left-behind")
        assert await claim(dead, key) is Kind.OWNER
        for part in dead._parts:  # type: ignore[union-attr]  # as when its machine lost power
            part._renewal.cancel()  # type: ignore[union-attr]
        joined = ask(gateways.one, key)
        assert (await joined.last()).kind is Kind.JOINED
        assert (await joined.last(2)).kind is Kind.OWNER
        gateways.one.complete(key, stored(), KEEP_S)
        await dead.stop()


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        ("+@all -script", "script"),
        ("+@all -evalsha", "evalsha"),
        ("+@all -publish", "publish"),
        ("+@all -subscribe", "subscribe"),
    ],
)
@pytest.mark.parametrize("is_cluster", [False, True])
async def test_a_right_that_is_missing_is_named_at_the_start(
    cluster: ClusterServers, redis: RedisServer, namespace: str, rights: str, words: str, *, is_cluster: bool
) -> None:
    user = f"limited-{namespace}"
    nodes = cluster.nodes if is_cluster else [redis]
    for node in nodes:
        node.ask("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", *rights.split())
    place = f"redis-cluster://{user}:pw@{cluster.hosts}" if is_cluster else redis.url.replace("//", f"//{user}:pw@")
    store = RedisGateways(place, namespace).open()
    with pytest.raises(SetupError) as refused:
        await store.start()
    assert f"this user may not run {words}" in str(refused.value)
    assert "ACL SETUSER" in str(refused.value)
    assert "\n" not in str(refused.value)
    for node in nodes:
        node.ask("ACL", "DELUSER", user)


async def test_tls_to_a_cluster_checks_certificates_unless_told_not_to(
    tls_cluster: ClusterServers, namespace: str
) -> None:
    # A certificate that nobody vouches for is refused, by what sends commands and by what hears messages
    hosts = f"rediss-cluster://{tls_cluster.hosts}"
    doubtful = RedisGateways(hosts, namespace, patience_s=PATIENCE_S).open()
    await doubtful.start()
    assert "certificate" in str(doubtful.trouble).lower()
    assert await claim(doubtful, ("digits", "a")) is Kind.UNAVAILABLE
    await doubtful.stop()
    # And so is a client that speaks no TLS
    plain = RedisGateways(f"redis-cluster://{tls_cluster.hosts}", namespace, patience_s=PATIENCE_S).open()
    await plain.start()
    assert plain.trouble is not None
    await plain.stop()
    # Unless it need not be vouched for
    async with RedisGateways(f"{hosts}/?ssl_cert_reqs=none", namespace) as gateways:
        assert await claim(gateways.one, ("digits", "a")) is Kind.OWNER
        joined = ask(gateways.two, ("digits", "a"))
        assert (await joined.last()).kind is Kind.JOINED
        gateways.one.complete(("digits", "a"), stored(), KEEP_S)
        assert (await joined.last(2)).kind is Kind.RESULT


async def test_a_primary_that_dies_is_replaced_over_tls_too(certificate: Path, namespace: str) -> None:
    with ClusterServers(replicas=1, timeout_ms=1000, certificate=certificate) as servers:
        async with RedisGateways(servers.url, namespace, patience_s=PATIENCE_S) as gateways:
            key, *_ = await keys_on(servers, namespace, 0, gateways)
            servers.nodes[0].kill()
            gateways.one.complete(key, stored(b"meanwhile"), KEEP_S)
            await eventually(lambda: gateways.one.trouble is None and gateways.two.trouble is None, "both connected")
            await eventually_reads(gateways, key, b"meanwhile")


@pytest.mark.parametrize("is_cluster", [False, True])
async def test_a_new_password_in_its_file_counts_from_the_next_connection_on(
    namespace: str, tmp_path: Path, *, is_cluster: bool
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    with ClusterServers() if is_cluster else RedisServer() as servers:
        nodes = servers.nodes if isinstance(servers, ClusterServers) else [servers]
        for node in nodes:
            node.ask("ACL", "SETUSER", "us", "on", ">first", "~*", "&*", "+@all")
        hosts = servers.url.partition("://")
        url = f"{hosts[0]}://us@{hosts[2]}?password_file={file}" if not is_cluster else ""
        if isinstance(servers, ClusterServers):
            url = f"redis-cluster://us@{servers.hosts}/?password_file={file}"
        async with RedisGateways(url, namespace) as gateways:
            assert await claim(gateways.one, ("digits", "a")) is Kind.OWNER
            # When the password is changed, and every connection is lost
            for node in nodes:
                node.ask("ACL", "SETUSER", "us", ">second", "<first")
            file.write_text("second\n")
            for node in nodes:
                node.ask("CLIENT", "KILL", "USER", "us")
            # Then all is well with the new one
            async with asyncio.timeout(20):
                number = 0
                while True:
                    number += 1
                    key = ("digits", f"rotated-{number}")
                    if [await claim(gateways.one, key), await claim(gateways.two, key)] == [Kind.OWNER, Kind.JOINED]:
                        break
                    await asyncio.sleep(0.05)


async def test_one_redis_is_no_cluster_and_says_so(redis: RedisServer, namespace: str) -> None:
    store = RedisGateways(f"redis-cluster://127.0.0.1:{redis.port}", namespace).open()
    with pytest.raises(SetupError, match="it is no cluster; use redis://"):
        await store.start()
