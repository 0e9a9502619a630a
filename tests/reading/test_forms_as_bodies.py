"""Texts of a form become values by the types of the model's schema."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
import pytest

import timebound as tb
from timebound.errors import RequestError
from timebound.form import MOST_FIELDS, Field
from timebound.reading.forms import Filled, FormFacts, FormReader, Told, open_reader
from timebound.schema import follow


class Part(tb.Struct):
    x: int


class Every(tb.Struct):
    text: str = ""
    whole: int = 0
    part: float = 0.0
    yes: bool = False
    maybe: int | None = None
    mode: Literal["a", "b"] = "a"
    level: Literal[1, 2] = 1
    many: list[Annotated[int, tb.Meta(ge=0)]] = []  # noqa: RUF012 # a Struct makes a new one for each
    inner: Part | None = None
    data: bytes = b""
    id: str = ""


READER = FormReader(FormFacts(dict(msgspec.json.schema(Every)), "id"))


def filled(*fields: tuple[str, str | bytes]) -> Filled:
    return READER.fill([Field(name, v.encode() if isinstance(v, str) else v) for name, v in fields])


def value(name: str, *texts: str) -> Any:
    return getattr(msgspec.json.decode(filled(*((name, text) for text in texts)).body, type=Every), name)


@pytest.mark.parametrize(
    ("name", "texts", "wanted"),
    [
        ("text", ["12"], "12"),
        ("whole", ["-7"], -7),
        ("part", ["1.5"], 1.5),
        ("part", ["2"], 2.0),
        ("yes", ["on"], True),
        ("yes", ["False"], False),
        ("maybe", [""], None),
        ("maybe", ["4"], 4),
        ("mode", ["b"], "b"),
        ("level", ["2"], 2),
        ("many", ["1", "2"], [1, 2]),
        ("many", ["3"], [3]),
        ("many", ["[4, 5]"], [4, 5]),
        ("inner", ['{"x": 1}'], Part(1)),
    ],
)
def test_a_text_becomes_a_value_of_its_type(name: str, texts: list[str], wanted: Any) -> None:
    assert value(name, *texts) == wanted


@pytest.mark.parametrize("name", ["whole", "part", "yes"])
def test_a_text_that_is_no_such_value_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(RequestError) as told:
        value(name, "much")
    assert (told.value.code, told.value.field) == ("bad_input", name)


def test_a_field_that_comes_twice_is_refused() -> None:
    with pytest.raises(RequestError, match="more than once"):
        value("whole", "1", "2")


def test_a_field_that_the_class_does_not_have_may_come_twice_as_in_json() -> None:
    assert msgspec.json.decode(filled(("other", "1"), ("other", "2"), ("whole", "3")).body, type=Every).whole == 3


@pytest.mark.parametrize("name", ["whole", "part", "maybe", "level", "inner", "many"])
def test_an_empty_field_that_has_a_default_and_is_no_text_was_not_given(name: str) -> None:
    assert msgspec.json.decode(filled((name, "")).body) == {}


def test_an_empty_field_that_is_needed_is_refused() -> None:
    class Needs(tb.Struct):
        whole: int

    reader = FormReader(FormFacts(dict(msgspec.json.schema(Needs))))
    with pytest.raises(RequestError, match="Expected 'int'") as told:
        reader.fill([Field("whole", b"")])
    assert told.value.field == "whole"


def test_a_file_goes_where_base64_does() -> None:
    made = READER.fill([Field("upload", b"\xff\x00", filename="a.png")])
    assert msgspec.json.decode(made.body, type=Every).data == b"\xff\x00"


def test_a_file_in_a_field_that_the_class_does_not_have_is_not_even_written() -> None:
    class Numbers(tb.Struct):
        whole: int

    given = [
        Field("whole", b"3"),
        Field("file", bytes(1_000_000), filename="a.png"),
        Field("more", b"\xff", filename="b"),
    ]
    made = FormReader(FormFacts(dict(msgspec.json.schema(Numbers)))).fill(given)
    assert made.body == b'{"whole":3}'


@pytest.mark.parametrize("forbids", [True, False])
def test_a_file_in_a_field_of_another_name_stays_where_the_class_may_mind(*, forbids: bool) -> None:
    schema = dict(msgspec.json.schema(Every))
    every = {**follow(schema, schema["$defs"]), "additionalProperties": not forbids}
    reader = FormReader(FormFacts({**every, "$defs": schema["$defs"]}))
    given = [Field("text", b"a"), Field("file", b"b", filename="b"), Field("data", b"c", filename="c")]
    if forbids:
        with pytest.raises(RequestError, match="unknown field"):
            reader.fill(given)
    else:
        assert msgspec.json.decode(reader.fill(given).body)["file"] == "b"


def test_a_key_is_read_and_its_form_has_the_fingerprint_of_the_json() -> None:
    made = filled(("whole", "1"), ("id", "k"))
    assert made.key == "k"
    assert made.fingerprint == filled(("id", "k"), ("whole", "1")).fingerprint != b""


def test_a_flood_of_fields_is_refused_at_once() -> None:
    read = open_reader(msgspec.msgpack.encode(FormFacts(dict(msgspec.json.schema(Every)))))
    told = msgspec.msgpack.encode(Told(b"application/x-www-form-urlencoded"))
    with pytest.raises(RequestError, match=f"more than {MOST_FIELDS} fields"):
        read(told, b"many=1&" * 1_000_000)


def test_a_form_of_twenty_megabytes_is_read_well_within_a_second() -> None:
    body = (
        b'--b\r\ncontent-disposition: form-data; name="data"; filename="a"\r\n\r\n' + bytes(20_000_000) + b"\r\n--b--"
    )
    began = time.process_time()
    made = READER.read(Told(b"multipart/form-data; boundary=b"), body)
    assert time.process_time() - began < 1.0
    assert len(made.body) > 26_000_000
