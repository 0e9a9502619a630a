from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec

from timebound.schema import made_up


class Inner(msgspec.Struct):
    score: Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Asked(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(min_length=3, max_length=5)]
    count: Annotated[int, msgspec.Meta(ge=2, le=4)]
    kind: Literal["a", "b"]
    raw: bytes
    inner: list[Inner]
    pair: Annotated[list[int], msgspec.Meta(min_length=2, max_length=2)]
    maybe: int | None = None
    is_on: bool = False


def test_what_is_made_up_fits_the_schema_and_differs() -> None:
    (schema,), defs = msgspec.json.schema_components([Asked], ref_template="#/$defs/{name}")
    rng = random.Random(1)
    bodies = [made_up(schema, rng, defs) for _ in range(200)]
    asked = [
        msgspec.convert(body, Asked, strict=True) for body in map(msgspec.json.decode, map(msgspec.json.encode, bodies))
    ]
    assert {each.count for each in asked} == {2, 3, 4}
    assert {len(each.text) for each in asked} == {3, 4, 5}
    assert {each.kind for each in asked} == {"a", "b"}
    assert len({each.is_on for each in asked}) == 2
    assert len({len(each.inner) for each in asked}) > 3
