"""What every store promises, tested on each of them: two gateways, one key."""

from __future__ import annotations

import pytest
from tests.store.gateways import KEEP_S, OTHER_PRINT, PRINT, Gateways, ask, claim, stored

from timebound.store.base import Entry, Key, Kind, Store, Stored
from timebound.types import Quality, Source

KEY: Key = ("digits", "a-key")
ODD_KEYS = [
    "a:b:c",
    ":",
    "two words",
    "ünï-✓-漢字-🙂",
    "a/b/../c",
    "tab\tand\nline",
    "*?[a]\\",
    "%2F",
    "x" * 256,
    "'\"{}",
]


async def listed(store: Store, model: str | None = None) -> list[Entry]:
    return [entry async for entry in store.entries(model)]


async def test_the_first_to_claim_a_key_owns_it_and_the_next_joins(gateways: Gateways) -> None:
    async with gateways:
        assert await claim(gateways.one, KEY) is Kind.OWNER
        assert await claim(gateways.two, KEY) is Kind.JOINED


async def test_a_finished_key_gives_its_result_to_everyone(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        gateways.one.complete(KEY, stored(b"7"), KEEP_S)
        await gateways.settled()
        for store in (gateways.one, gateways.two):
            answer = await ask(store, KEY).last()
            assert (answer.kind, answer.stored) == (Kind.RESULT, stored(b"7"))


async def test_another_body_is_a_conflict_while_in_work_and_when_finished(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        assert await claim(gateways.two, KEY, OTHER_PRINT) is Kind.CONFLICT
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        for store in (gateways.one, gateways.two):
            assert await claim(store, KEY, OTHER_PRINT) is Kind.CONFLICT


async def test_who_joined_gets_the_result_once_it_is_there_and_only_once(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        joined = [ask(gateways.two, KEY) for _ in range(3)]
        for told in joined:
            assert (await told.last()).kind is Kind.JOINED
        gateways.one.complete(KEY, stored(b"7"), KEEP_S)
        await gateways.settled()
        for told in joined:
            answer = await told.last(2)
            assert answer.stored is not None
            assert (answer.kind, answer.stored.result.source) == (Kind.RESULT, Source.JOINED)
            assert answer.stored.result.outcome.body == b"7"
            assert told.kinds == [Kind.JOINED, Kind.RESULT]


async def test_an_abandoned_key_is_owned_by_who_joined_it(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        joined = ask(gateways.two, KEY)
        await joined.last()
        gateways.one.abandon(KEY)
        assert (await joined.last(2)).kind is Kind.OWNER
        assert await claim(gateways.one, KEY) is (Kind.JOINED)
        gateways.two.complete(KEY, stored(b"8"), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.one, KEY) is Kind.RESULT


async def test_an_abandoned_key_that_nobody_joined_is_free(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        gateways.one.abandon(KEY)
        await gateways.settled()
        assert await gateways.two.read(KEY) is None
        assert await claim(gateways.two, KEY, OTHER_PRINT) is Kind.OWNER


async def test_a_result_is_kept_for_its_time_and_no_longer(gateways: Gateways) -> None:
    async with gateways:
        gateways.one.complete(KEY, stored(), 0.3)
        gateways.one.complete(("digits", "longer"), stored(), KEEP_S)
        await gateways.settled()
        await gateways.pass_time(0.5)
        for store in (gateways.one, gateways.two):
            assert await store.read(KEY) is None
            assert [entry.key for entry in await listed(store)] == ["longer"]
            assert await claim(store, ("digits", "longer")) is Kind.RESULT
        assert await claim(gateways.one, KEY) is Kind.OWNER


@pytest.mark.parametrize("joins", [False, True])
async def test_a_result_seen_at_another_gateway_is_not_kept_longer_there(gateways: Gateways, *, joins: bool) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        if joins:
            joined = ask(gateways.two, KEY)
            await joined.last()
        gateways.one.complete(KEY, stored(), 0.5)
        if joins:
            assert (await joined.last(2)).kind is Kind.RESULT
        else:
            await gateways.settled()
            assert await claim(gateways.two, KEY) is Kind.RESULT
        await gateways.pass_time(0.7)
        assert await claim(gateways.two, KEY) is Kind.OWNER


async def test_the_first_answer_stays(gateways: Gateways) -> None:
    async with gateways:
        gateways.one.complete(KEY, stored(b"first"), KEEP_S)
        await gateways.settled()
        gateways.two.complete(KEY, stored(b"second"), KEEP_S)
        await gateways.settled()
        found = await gateways.one.read(KEY)
        assert isinstance(found, Stored)
        assert found.result.outcome.body == b"first"


async def test_a_full_answer_replaces_a_partial_one_everywhere(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        gateways.one.complete(KEY, stored(b"part", is_full=False), KEEP_S)
        await gateways.settled()
        early = await ask(gateways.two, KEY).last()
        assert early.stored is not None
        assert early.stored.result.quality is Quality.PARTIAL
        gateways.one.complete(KEY, stored(b"whole"), KEEP_S)
        gateways.one.complete(KEY, stored(b"less", is_full=False), KEEP_S)
        await gateways.settled()
        for store in (gateways.one, gateways.two):
            late = await ask(store, KEY).last()
            assert late.stored == stored(b"whole")


async def test_reading_tells_running_from_finished_from_unknown(gateways: Gateways) -> None:
    async with gateways:
        assert await gateways.two.read(KEY) is None
        await claim(gateways.one, KEY)
        assert [await store.read(KEY) for store in (gateways.one, gateways.two)] == [Kind.OWNER, Kind.OWNER]
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert [await store.read(KEY) for store in (gateways.one, gateways.two)] == [stored(), stored()]


async def test_a_listing_has_every_result_of_a_model_or_of_all(gateways: Gateways) -> None:
    async with gateways:
        gateways.one.complete(("digits", "a"), stored(b"12345"), KEEP_S)
        gateways.one.complete(("digits", "b:c"), stored(is_full=False), KEEP_S)
        gateways.one.complete(("digits2", "a"), stored(), KEEP_S)
        await gateways.settled()
        found = {entry.key: entry for entry in await listed(gateways.two, "digits")}
        assert {key: entry.quality for key, entry in found.items()} == {"a": "full", "b:c": "partial"}
        assert (found["a"].model, found["a"].bytes, found["a"].at) == ("digits", 5, stored().at)
        assert 0 < found["a"].expires_in_s <= KEEP_S
        assert len(await listed(gateways.two)) == 3
        for pattern in ("*", "digits?", "[d]igits", "nobody", "digit"):
            assert await listed(gateways.two, pattern) == []


async def test_clearing_forgets_one_key_a_model_or_all_and_says_how_many(gateways: Gateways) -> None:
    async with gateways:
        keys = [(model, key) for model in ("digits", "digits2") for key in ("a", "b", "c:d")]
        for key in keys:
            gateways.one.complete(key, stored(), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.two, keys[0]) is Kind.RESULT
        assert await gateways.one.clear("digits", "c:d") == 1
        assert await gateways.one.clear("digits", "c:d") == 0
        for pattern in ("*", "digits?", "[d]igits", "nobody"):
            assert await gateways.one.clear(pattern) == 0
        assert await gateways.one.clear("digits") == 2
        await gateways.settled()
        for store in (gateways.one, gateways.two):
            assert await claim(store, keys[0]) in (Kind.OWNER, Kind.JOINED)
            assert await claim(store, keys[3]) is Kind.RESULT
        assert await gateways.two.clear(None) == 3
        assert await listed(gateways.one) == []


@pytest.mark.parametrize("name", ODD_KEYS)
async def test_a_key_may_have_any_characters(gateways: Gateways, name: str) -> None:
    key = ("digits", name)
    async with gateways:
        assert await claim(gateways.one, key) is Kind.OWNER
        joined = ask(gateways.two, key)
        assert (await joined.last()).kind is Kind.JOINED
        gateways.one.complete(key, stored(b"7"), KEEP_S)
        assert (await joined.last(2)).kind is Kind.RESULT
        assert [entry.key for entry in await listed(gateways.two, "digits")] == [name]
        assert await gateways.two.clear("digits", name) == 1
        await gateways.settled()
        assert await gateways.one.read(key) is None


async def test_results_and_claims_of_two_models_are_apart(gateways: Gateways) -> None:
    async with gateways:
        assert await claim(gateways.one, ("a", "k")) is Kind.OWNER
        assert await claim(gateways.two, ("b", "k"), OTHER_PRINT) is Kind.OWNER
        gateways.one.complete(("a", "k"), stored(), KEEP_S)
        await gateways.settled()
        assert await gateways.one.read(("b", "k")) is Kind.OWNER


@pytest.mark.parametrize("size", [0, 1, 900_000])
async def test_results_of_any_usual_size_come_back_as_they_were(gateways: Gateways, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with gateways:
        gateways.one.complete(KEY, stored(body), KEEP_S)
        await gateways.settled()
        assert await gateways.two.read(KEY) == stored(body)


async def test_a_result_that_came_too_late_for_its_claim_is_kept_all_the_same(gateways: Gateways) -> None:
    async with gateways:
        await claim(gateways.one, KEY)
        gateways.one.abandon(KEY)
        gateways.one.complete(KEY, stored(), KEEP_S)
        await gateways.settled()
        assert await claim(gateways.two, KEY, PRINT) is Kind.RESULT


async def test_a_store_in_order_has_no_trouble(gateways: Gateways) -> None:
    async with gateways:
        assert gateways.one.trouble is None
        assert gateways.two.trouble is None
