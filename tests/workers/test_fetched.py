"""What `fetch` may give, and how it comes to `prepare`; mistakes that are told before anything is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.errors import SetupError
from timebound.model import check_class, doubtful_attributes
from timebound.workers.fetched import MOST_BYTES, Parcels, body_of
from timebound.workers.fetching import example_parcel


@dataclass
class Page:
    text: str


class ByUrl(tb.Model):
    example = {"url": "/"}  # noqa: RUF012 - read once, never changed

    class Request(tb.Struct):
        url: str
        data: bytes = b""

    async def fetch(self, request: Request) -> Page:
        return Page(request.url)

    def infer(self, batch: Any) -> Any:
        return [page.text for page in batch]


@pytest.mark.parametrize(
    "fetched", [ByUrl.Request("/a", b"\xff"), Page("text"), {"row": [1, 2.5, None]}, b"\x00raw", "text", 7]
)
def test_it_comes_as_it_was_given(fetched: Any) -> None:
    parcels = Parcels(ByUrl)
    parcel = parcels.pack(fetched, b"the body")
    assert parcels.unpack(memoryview(parcel)) == fetched
    assert bytes(body_of(parcel)) == b"the body"


def test_arrays_come_as_arrays() -> None:
    parcels = Parcels(ByUrl)
    found = parcels.unpack(parcels.pack({"row": np.arange(6, dtype="float32").reshape(2, 3), "n": np.int64(4)}, b""))
    assert found["row"].dtype == np.float32
    assert found["row"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["n"] == 4


@pytest.mark.parametrize(
    ("fetched", "said"),
    [(None, "gave nothing"), (object(), "gave a object"), (bytes(MOST_BYTES + 1), "can be handed over")],
)
def test_what_cannot_be_handed_over_is_told(fetched: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Parcels(ByUrl).pack(fetched, b"")


def test_tests_of_a_model_fetch_too() -> None:
    assert tb.testing.ask(ByUrl, {"url": "/here"}) == "/here"


def test_a_fetch_that_cannot_wait_for_others_is_refused() -> None:
    class Plain(ByUrl):
        def fetch(self, request: Any) -> Any:
            return request

    with pytest.raises(SetupError, match="write `async def fetch"):
        check_class(Plain)


def test_a_fetch_without_an_example_is_refused() -> None:
    class Unknown(ByUrl):
        example = None  # type: ignore[assignment]

    with pytest.raises(SetupError, match="set `example` to a body that fetch"):
        check_class(Unknown)


def test_a_library_that_holds_up_all_others_is_told() -> None:
    class Blocking(ByUrl):
        async def fetch(self, request: Any) -> Any:
            import requests

            return requests.get(request.url).text

    (doubt,) = doubtful_attributes(Blocking)
    assert "uses requests, which holds up all other requests" in doubt


def test_an_example_that_cannot_be_fetched_is_told_with_the_cure() -> None:
    class Away(ByUrl):
        async def fetch(self, request: Any) -> Any:
            raise ConnectionError("nobody is there")

    with pytest.raises(SetupError, match=r"nobody is there.*set `example_fetched`"):
        example_parcel(Away(), b'{"url": "/"}', MonotonicClock())
    Away.example_fetched = Page("known")
    assert Parcels(Away).unpack(example_parcel(Away(), b"{}", MonotonicClock())) == {"text": "known"}


def test_its_own_limit_is_kept() -> None:
    class Slow(ByUrl):
        fetch_limit = 0.01

        async def fetch(self, request: Any) -> Any:
            import asyncio

            await asyncio.sleep(30)

    with pytest.raises(tb.RequestError, match=r"longer than its limit of 0\.01 s"):
        tb.testing.ask(Slow, {"url": "/"})
