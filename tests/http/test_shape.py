"""The gateway's first look at a body: it reads the key and never refuses what the worker would take."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from timebound.body import FirstLook
from timebound.errors import RequestError
from timebound.model import request_schema
from timebound.types import ModelInfo


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Place(Struct):
    city: str
    zip: int | None = None


class Picture(Struct):
    id: str
    image: str
    place: Place | None = None
    retry: int = 0
    score: float = 0.0


class Limited(Struct):
    name: Annotated[str, Meta(min_length=2, max_length=4, pattern="^[a-z]+$")]
    age: Annotated[int, Meta(ge=0, lt=150)] = 1
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    even: Annotated[int, Meta(multiple_of=2)] = 2


class Rich(Struct):
    """Fields of types that JSON has no word for, or that the gateway does not look into."""

    when: datetime.datetime | None = None
    day: datetime.date | None = None
    length: datetime.timedelta | None = None
    price: decimal.Decimal | None = None
    who: uuid.UUID | None = None
    data: bytes = b""
    colour: Colour | None = None
    level: Level | None = None
    mode: Literal["a", 1, None] = None
    pair: tuple[int, str] | None = None
    table: dict[int, Place] = {}
    rows: list[list[float]] = []
    either: int | str | list[int] | None = None
    number: int | float = 0
    anything: Any = None
    nothing: None = None


class Renamed(Struct, rename="camel"):
    user_id: str
    two_words: int = msgspec.field(default=0, name="two words")


class Strict(Struct, forbid_unknown_fields=True):
    n: int


class Tagged(Struct, tag="picture"):
    n: int


class Row(Struct, array_like=True):
    n: int


class Chain(Struct):
    value: int
    next: Chain | None = None


class Empty(Struct):
    pass


TYPES: list[type[Struct]] = [Picture, Limited, Rich, Renamed, Strict, Tagged, Row, Chain, Empty]


def shape(kind: type[Struct] | None, key: str | None = None) -> FirstLook:
    schema = None if kind is None else msgspec.json.schema(kind)
    return FirstLook(ModelInfo(name="m", request_schema=schema, key=key))


def refused(kind: type[Struct], body: bytes, key: str | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        shape(kind, key).check(body)
    return caught.value


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("id", "a"),
        ("retry", "3"),
        ("place.city", "Rome"),
        ("place.zip", "7"),
        ("place.street", None),
        ("place", None),
        ("id.more", None),
    ],
)
def test_the_key_is_read_also_from_inside(key: str, found: str | None) -> None:
    body = b'{"id": "a", "image": "", "retry": 3, "place": {"city": "Rome", "zip": 7}}'
    assert shape(Picture, key).check(body)[0] == found


@pytest.mark.parametrize("key", ["place.city", "place.zip", "place"])
def test_a_key_that_is_not_there_is_none(key: str) -> None:
    assert shape(Picture, key).check(b'{"id": "a", "image": ""}')[0] is None
    assert shape(Picture, key).check(b'{"id": "a", "image": "", "place": null}')[0] is None


def test_a_model_without_a_key_reads_none() -> None:
    assert shape(Picture).check(b'{"id": "a", "image": ""}')[0] is None


def test_a_key_goes_by_its_name_in_the_body() -> None:
    assert shape(Renamed, "userId").check(b'{"userId": "a"}')[0] == "a"
    assert shape(Renamed, "two words").check(b'{"userId": "a", "two words": 5}')[0] == "5"


def test_a_missing_field_is_named() -> None:
    error = refused(Picture, b'{"id": "a"}')
    assert (error.code, error.field) == ("bad_input", "image")


def test_a_wrong_type_is_named() -> None:
    error = refused(Picture, b'{"id": "a", "image": 7}')
    assert (error.code, error.field, error.detail) == ("bad_input", "image", "Expected 'str', got 'int'")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "a"}', "name"),
        (b'{"name": "abcde"}', "name"),
        (b'{"name": "AB"}', "name"),
        (b'{"name": "ab", "age": -1}', "age"),
        (b'{"name": "ab", "age": 150}', "age"),
        (b'{"name": "ab", "share": 0}', "share"),
        (b'{"name": "ab", "share": 1.5}', "share"),
        (b'{"name": "ab", "share": "x"}', "share"),
        (b'{"name": "ab", "even": 3}', "even"),
    ],
)
def test_limits_on_scalars_are_checked(body: bytes, field: str) -> None:
    error = refused(Limited, body)
    assert (error.code, error.field) == ("bad_input", field)


def test_an_unknown_field_is_refused_only_where_the_type_forbids_it() -> None:
    assert refused(Strict, b'{"n": 1, "m": 2}').code == "bad_input"
    assert shape(Picture).check(b'{"id": "a", "image": "", "extra": [1]}')[0] is None


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("body", [b"", b"{", b"nope", b'{"a" 1}'])
def test_what_is_no_json_is_refused_for_every_type(kind: type[Struct], body: bytes) -> None:
    assert refused(kind, body).code == "malformed_json"


def test_without_a_schema_any_json_passes() -> None:
    assert shape(None).check(b"[1, 2]")[0] is None


def test_a_tagged_type_takes_bodies_without_the_tag_as_its_decoder_does() -> None:
    body = b'{"n": 1}'
    assert msgspec.json.decode(body, type=Tagged) == Tagged(1)
    assert shape(Tagged).check(body)[0] is None


@pytest.mark.parametrize(
    "inside",
    [b'"\xff"', b"1e999", b'"\\ud800"', b"[" * 2000 + b"]" * 2000],
    ids=["not utf-8", "number out of range", "half a surrogate", "deep"],
)
def test_a_broken_value_around_the_key_is_a_request_error(inside: bytes) -> None:
    body = b'{"id": "a", "image": "", "place": {"city": "Rome", "zip": 7, "more": %b}}' % inside
    try:
        found, _ = shape(Picture, "place.city").check(body)
    except RequestError as error:
        found = error.code
    assert found in {"Rome", "malformed_json", "bad_input"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RICH: dict[str, list[Any]] = {
    "when": ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00", None],
    "day": ["2024-01-01", None],
    "length": ["PT1S", None],
    "price": ["1.10", 1.10, 3],
    "who": [str(uuid.UUID(int=5)), uuid.UUID(int=5).hex],
    "data": ["", "AAEC"],
    "colour": ["red", None],
    "level": [1],
    "mode": ["a", 1, None],
    "pair": [[1, "x"], None],
    "table": [{}, {"1": {"city": "x"}}],
    "rows": [[], [[1, 2.5]]],
    "either": [1, "x", [1], None],
    "number": [1, 1.5, 10**30],
    "anything": [None, {"a": [1]}],
    "nothing": [None],
}
BODIES: dict[type, Any] = {
    Picture: st.fixed_dictionaries(
        {"id": st.text(max_size=3), "image": st.text(max_size=3)},
        optional={
            "place": st.none() | st.fixed_dictionaries({"city": st.text(max_size=3)}),
            "retry": st.integers(),
            "score": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        },
    ),
    Limited: st.fixed_dictionaries(
        {"name": st.from_regex("[a-z]{1,5}", fullmatch=True)},
        optional={"age": st.integers(-2, 152), "share": st.none() | st.floats(-1, 2), "even": st.integers(0, 4)},
    ),
    Rich: st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in RICH.items()}),
    Renamed: st.fixed_dictionaries({"userId": st.text(max_size=3)}, optional={"two words": st.integers()}),
    Strict: st.fixed_dictionaries({"n": st.integers()}, optional={"m": st.integers()}),
    Tagged: st.fixed_dictionaries({"n": st.integers(), "type": st.sampled_from(["picture", "other"])}),
    Row: st.lists(st.integers(), max_size=2),
    Chain: st.fixed_dictionaries({"value": st.integers()}, optional={"next": JSON}),
    Empty: JSON,
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RICH.items() for value in values])
def test_a_type_the_first_look_does_not_know_is_left_to_the_worker(name: str, value: Any) -> None:
    body = msgspec.json.encode({name: value})
    msgspec.json.decode(body, type=Rich)
    assert shape(Rich).check(body)[0] is None


@given(st.sampled_from(TYPES).flatmap(lambda kind: st.tuples(st.just(kind), BODIES[kind] | JSON)))
@example((Rich, {name: values[0] for name, values in RICH.items()}))
def test_whatever_the_workers_decoder_takes_the_first_look_takes(sent: tuple[type[Struct], Any]) -> None:
    kind, value = sent
    body = msgspec.json.encode(value)
    try:
        msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return
    assert shape(kind).check(body)[0] is None


class Text(Struct):
    text: str
    words: list[str] = []


@pytest.mark.parametrize(
    ("field", "body", "size"),
    [
        ("text", b'{"text": "abcd"}', 4.0),
        ("words", b'{"text": "", "words": ["a", "b"]}', 2.0),
        ("text", b'{"text": ""}', 1.0),
        ("words", b'{"text": "abcd"}', 1.0),
    ],
)
def test_the_size_is_the_length_of_a_field_and_at_least_one(field: str, body: bytes, size: float) -> None:
    info = ModelInfo(name="m", request_schema=request_schema(Text), size_field=field)
    assert FirstLook(info).check(body) == (None, size)


def test_without_a_size_field_every_request_counts_as_one() -> None:
    assert shape(Picture).check(b'{"id": "a", "image": "abc"}')[1] == 1.0
