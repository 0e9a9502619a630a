"""Heavy bodies are looked at in another process, and the event loop does not feel it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import Signature, signature
from time import process_time
from typing import Any

import msgspec
import pytest
import uvloop

from timebound.body import FirstLook
from timebound.clock import MonotonicClock
from timebound.errors import Refusal, RequestError
from timebound.reading import LIGHT, Reading, is_heavy
from timebound.reading.turns import MOST_OF_ONE
from timebound.store.fingerprint import of_bytes, of_json
from timebound.types import Body, ModelInfo

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "x": {"type": "number"}, "values": {"type": "array"}},
    "required": ["values"],
}
INFO = ModelInfo(name="m", request_schema=SCHEMA, key="id", size_field="values", key_ignore=["sent_at"])
_TICK_S = 0.002
VALUES = b'{"id":"a","values":[' + b",".join([b"0.25"] * 200_000) + b"]}"
FIELDS = b'{"values":[],' + b",".join(b'"%x":1' % place for place in range(1_000_000)) + b"}"


async def longest_turn_s(reading: Reading, *bodies: bytes, needs_print: bool) -> float:
    """How much this process computed at most, on the loop or in a thread, between two of its pauses."""
    looks = asyncio.gather(
        *(reading.looked(INFO, body, needs_print=needs_print) for body in bodies), return_exceptions=True
    )
    longest_s = 0.0
    while not looks.done():
        before = process_time()
        await asyncio.sleep(_TICK_S)
        longest_s = max(longest_s, process_time() - before)
    return longest_s


def look_s(body: bytes) -> float:
    """How much a first look at this body, without its fingerprint, computes where it is done."""
    before = process_time()
    with suppress(RequestError):
        FirstLook(INFO).check(body)
    return process_time() - before


def with_reading(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own, the kind the server has, with a reading that ends with it."""

    async def run(**arguments: Any) -> None:
        reading = Reading(asyncio.get_running_loop())
        try:
            await test(reading, **arguments)
        finally:
            reading.close()

    names = [parameter for name, parameter in signature(test).parameters.items() if name != "reading"]

    def synchronous(**arguments: Any) -> None:
        uvloop.run(run(**arguments))

    synchronous.__signature__ = Signature(names)  # type: ignore[attr-defined]
    return synchronous


@with_reading
async def test_what_is_said_of_a_heavy_body_is_what_the_loop_would_have_found(reading: Reading) -> None:
    key, size, fingerprint = await reading.looked(INFO, VALUES, needs_print=False)
    assert (key, size) == FirstLook(INFO).check(VALUES) == ("a", 200_000)
    assert fingerprint == of_json(VALUES, INFO.key_ignore)
    assert (await reading.looked(INFO, FIELDS, needs_print=False))[2] == b""  # nobody asked for it


@with_reading
async def test_what_is_wrong_with_a_heavy_body_is_told_as_ever(reading: Reading) -> None:
    wrong = b'{"id":7,' + VALUES[1:]
    for body in (wrong, wrong[:-1], b"[" * 300_000):
        with pytest.raises(RequestError) as expected:
            FirstLook(INFO).check(body)
        with pytest.raises(RequestError) as told:
            await reading.looked(INFO, body, needs_print=True)
        facts = [(error.value.code, error.value.detail, error.value.field) for error in (told, expected)]
        assert facts[0] == facts[1]


@pytest.mark.parametrize("needs_print", [True, False])
@with_reading
async def test_the_loop_goes_on_while_ten_megabytes_are_looked_at(reading: Reading, *, needs_print: bool) -> None:
    await reading.looked(INFO, VALUES, needs_print=True)  # its process is there
    # On the loop, or in a thread, a look would show whole in one turn. What other programs do is not counted, but a
    # cold cache is: the best of some tries counts, on both sides.
    turns = [await longest_turn_s(reading, FIELDS, VALUES, needs_print=needs_print) for _ in range(6)]
    here = [look_s(FIELDS) + look_s(VALUES) for _ in range(3)]
    assert min(turns) < min(here) / 2


@with_reading
async def test_a_process_that_is_killed_is_replaced(reading: Reading) -> None:
    first = await reading.looked(INFO, VALUES, needs_print=True)
    os.kill(reading.pids[0], signal.SIGKILL)
    assert await reading.looked(INFO, VALUES, needs_print=True) == first


@with_reading
async def test_a_body_made_to_take_long_is_refused_and_those_after_it_are_read(reading: Reading) -> None:
    endless = b'{"values":[],' + b",".join([b'"x":5e-324'] * 800_000) + b"}"
    slow = asyncio.ensure_future(reading.looked(INFO, endless, needs_print=False))
    after = asyncio.ensure_future(reading.looked(INFO, VALUES, needs_print=True))
    with pytest.raises(RequestError, match="too long to read"):
        await slow
    assert (await after)[0] == "a"


@with_reading
async def test_who_does_not_want_to_know_any_more_is_not_told(reading: Reading) -> None:
    told: list[Any] = []
    forget = reading.look(INFO, VALUES, told.append, needs_print=True)
    forget()
    await reading.looked(INFO, VALUES, needs_print=True)
    assert (told, len(reading)) == ([], 0)


@with_reading
async def test_the_fingerprint_of_a_raw_body_needs_no_process(reading: Reading) -> None:
    raw = ModelInfo(name="m", body=Body.RAW)
    body = b"x" * 1_000_000
    assert await reading.looked(raw, body, needs_print=True) == (None, 1.0, of_bytes(body))
    assert reading.pids == []


PICTURE = msgspec.json.encode({"id": "5e1c-4f3b", "image": "QUJD" * 50_000})


@pytest.mark.parametrize(
    ("body", "needs_print", "expected"),
    [
        (PICTURE, True, False),
        (PICTURE[:30_000], True, False),
        (VALUES[:20_000], False, False),
        (VALUES[:20_000], True, True),
        (VALUES[:100_000], False, True),
        (PICTURE * 2, False, True),
        (b'{"x":5e-324,' + b" " * LIGHT + b"}", False, True),
        (b'{"x":"e-' + b"-" * 100 + b'"}', False, False),
    ],
)
def test_only_what_may_take_long_is_heavy(body: bytes, needs_print: bool, expected: bool) -> None:
    info = ModelInfo(name="m", request_schema=SCHEMA)
    assert is_heavy(body, info, needs_print=needs_print) is expected


def test_a_raw_body_is_heavy_only_with_a_key() -> None:
    info = ModelInfo(name="m", body=Body.RAW)
    assert is_heavy(PICTURE * 2, info, needs_print=True)
    assert not is_heavy(PICTURE * 2, info, needs_print=False)


@with_reading
async def test_senders_of_bodies_that_take_long_keep_nobody_elses_from_being_read_in_time(reading: Reading) -> None:
    slow = b'{"values":[],' + b",".join([b'"x":5e-324'] * 300_000) + b"}"  # some tenths of a second each
    crowd: list[asyncio.Future[Any]] = []
    for _ in range(10):
        looks = [reading.looked(INFO, slow, needs_print=False, sender=f"abuser {number}") for number in range(4)]
        crowd += map(asyncio.ensure_future, looks)
    await asyncio.wait(crowd[:4])  # by now it is known whose bodies take long
    for _ in range(3):
        until = MonotonicClock().now() + 5.0
        looked = reading.looked(INFO, VALUES, needs_print=True, sender="well-behaved", until=until)
        assert (await asyncio.wait_for(looked, 5.0))[0] == "a"
    assert sum(look.done() for look in crowd) < 20
    for look in crowd:
        look.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


@with_reading
async def test_too_many_bodies_of_one_sender_are_refused(reading: Reading) -> None:
    looks = [
        asyncio.ensure_future(reading.looked(INFO, VALUES[:-1], needs_print=False, sender="one"))
        for _ in range(MOST_OF_ONE + 20)
    ]
    await asyncio.sleep(0)
    refused = [look for look in looks if look.done() and isinstance(look.exception(), Refusal)]
    assert 0 < len(refused) <= 20
    for look in looks:
        look.cancel()
    await asyncio.gather(*looks, return_exceptions=True)
