"""The fingerprint of a body: the same for attempts of one request, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from math import inf
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.reading import is_heavy
from timebound.store.fingerprint import of_bytes, of_json, of_sample
from timebound.types import ModelInfo

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3))
FIELDS = st.dictionaries(st.text(max_size=6), VALUES, max_size=6)


def text(fields: dict[str, Any], **how: Any) -> bytes:
    return json.dumps(fields, **how).encode()


@given(FIELDS, st.randoms(use_true_random=False))
def test_the_order_of_fields_is_the_same_to_it(fields: dict[str, Any], random: Any) -> None:
    pairs = list(fields.items())
    random.shuffle(pairs)
    assert of_json(text(fields), ()) == of_json(text(dict(pairs)), ())


@given(FIELDS, VALUES, VALUES)
def test_ignored_fields_may_differ(fields: dict[str, Any], one: Any, two: Any) -> None:
    bodies = [text({**fields, "retry": value}) for value in (one, two)]
    missing = text({name: value for name, value in fields.items() if name != "retry"})
    prints = {of_json(body, {"retry"}) for body in [*bodies, missing]}
    assert len(prints) == 1


def test_whitespace_between_fields_is_the_same_to_it() -> None:
    tight, wide = b'{"a":1,"b":"x"}', b'\n{ "a" : 1 ,\t"b":\r\n "x"  }\n'
    assert of_json(tight, ()) == of_json(wide, ())


def test_whitespace_inside_a_text_is_not() -> None:
    assert of_json(b'{"a":"x y"}', ()) != of_json(b'{"a":"xy"}', ())


@given(FIELDS, FIELDS)
def test_no_two_different_lists_of_fields_read_alike(one: dict[str, Any], two: dict[str, Any]) -> None:
    is_same = text(one, sort_keys=True) == text(two, sort_keys=True)
    assert (of_json(text(one), ()) == of_json(text(two), ())) == is_same


@given(st.lists(st.text("ab1:", max_size=4), max_size=5), st.lists(st.text("ab1:", max_size=4), max_size=5))
def test_where_a_name_ends_and_its_value_begins_counts(one: list[str], two: list[str]) -> None:
    """Names and values made of what lies between them, which a careless join would confuse."""
    first, second = ({name: name[::-1] for name in names} for names in (one, two))
    assert (of_json(text(first), ()) == of_json(text(second), ())) == (first == second)


def test_a_name_with_wide_characters_does_not_swallow_its_value() -> None:
    bodies = [{"é": "x"}, {"é1": "x"}, {"e": "éx"}, {"éx": ""}, {"": "éx"}]
    prints = {of_json(text(body, ensure_ascii=False), ()) for body in bodies}
    assert len(prints) == len(bodies)


@pytest.mark.parametrize(
    "body", [b"[1,2]", b'"text"', b"7", b"null", b"not json", b"{", b'{"a":"\\ud800"}', b'{"a":["\xff"]}']
)
def test_a_body_that_is_no_object_is_taken_as_it_is_if_it_cannot_be_read_better(body: bytes) -> None:
    assert of_json(body, {"retry"}) == of_bytes(body)
    assert of_json(b"[1.0, \n2 ]", ()) == of_json(b"[1,2]", ())


ANY = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: abs(number) > 1e-99 or number == 0),
        st.text(max_size=8),
        st.text('"\\\\.0,e19]}{:', max_size=12),
        st.sampled_from([1e2, 1e16, 1e22, 123456789012345680000.0, 2.0**53, 1.0, 0.1, "1.0", '",1.0,"', "\\", '\\"']),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=4), ANY, max_size=5)


def retold(value: Any, random: Any) -> str:
    """The same JSON value, written by another hand: fields in any order, spaces, escapes, numbers in other forms."""

    def space() -> str:
        return str(random.choice(["", "", " ", "\n\t"]))

    if isinstance(value, dict):
        pairs = list(value.items())
        random.shuffle(pairs)
        parts = [f"{retold(name, random)}{space()}:{space()}{retold(each, random)}" for name, each in pairs]
        return "{" + space() + f"{space()},{space()}".join(parts) + space() + "}"
    if isinstance(value, list):
        return "[" + space() + f",{space()}".join(retold(each, random) for each in value) + space() + "]"
    if isinstance(value, str):
        how = random.choice(["plain", "ascii", "escaped"])
        if how == "escaped":
            units = value.encode("utf-16-be", "surrogatepass")
            return '"' + "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)) + '"'
        return json.dumps(value, ensure_ascii=how == "ascii")
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    forms = [json.dumps(value)]
    exact = Decimal(repr(value))
    if exact == exact.to_integral_value() and abs(exact) < 10**30 and str(exact) != "-0.0":
        forms += [f"{exact:f}".partition(".")[0]]
        if abs(exact) < 2**53:
            forms += [f"{exact:f}".partition(".")[0] + ".0", f"{exact:e}", f"{exact:E}".replace("E+", "E")]
    return str(random.choice(forms))


@given(OBJECTS | ANY, st.randoms(use_true_random=False))
def test_a_body_that_is_written_by_another_hand_is_the_same(value: Any, random: Any) -> None:
    first, again = (retold(value, random).encode("utf-8", "surrogatepass") for _ in range(2))
    assert of_json(first, ()) == of_json(again, ())


@given(OBJECTS, OBJECTS)
def test_bodies_of_other_values_are_not_the_same(one: Any, two: Any) -> None:
    assert (of_json(text(one), ()) == of_json(text(two), ())) == (plain(one) == plain(two))


def plain(value: Any) -> Any:
    """A value that equals another's exactly if JSON does not tell them apart: true is not 1, and 1.0 is."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (type(value).__name__, value)
    return ("-0.0",) if repr(value) == "-0.0" else Decimal(repr(value))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (9007199254740993, 9007199254740992),
        (2**64 + 1, 2**64),
        (10**30 + 1, 10**30),
        ("1.0", "1"),
        ([1.0, "x1.0,"], [1.0, "x1,"]),
        ({"a": "\\", "b": 1.5}, {"a": "\\\\", "b": 1.5}),
        (True, 1),
        ("null", None),
        ([[], {}], [{}, []]),
    ],
)
def test_values_that_only_look_alike_are_told_apart(one: Any, two: Any) -> None:
    for name in ("a", "b"):
        assert of_json(text({name: one}), ()) != of_json(text({name: two}), ())
    assert of_json(text({"in": [1.0, one]}), ()) != of_json(text({"in": [1.0, two]}), ())


def test_ignored_fields_are_left_out_of_an_object_with_many_too() -> None:
    fields = {f"f{number}": float(number) for number in range(64)}
    other = dict(reversed(list({name: int(value) for name, value in fields.items()}.items())))
    assert of_json(text(fields), {"retry"}) == of_json(text({"retry": 2, **other}), {"retry"})
    many = {**fields, "one more": {"b": [1], "a": 2}}
    more = {"retry": 1, "one more": {"a": 2.0, "b": [1.0]}, **other}
    assert of_json(text(many), {"retry"}) == of_json(text(more, indent=1), {"retry"})
    assert of_json(text(many), {"retry"}) != of_json(text({**many, "one more": {}}), {"retry"})


HARD: dict[str, Callable[[int], bytes]] = {
    "fields": lambda size: b"{" + b",".join(b'"%x":1' % place for place in range(size // 8)) + b"}",
    "texts and a whole number": lambda size: b'{"n":[1.0' + b',""' * (size // 3) + b"]}",
    "whole numbers": lambda size: b'{"n":[0' + b",0.0" * (size // 4) + b"]}",
    "large numbers": lambda size: b'{"n":[0' + b",1e16" * (size // 5) + b"]}",
    "tiny numbers": lambda size: b'{"n":[0' + b",5e-324" * (size // 7) + b"]}",
    "long numbers": lambda size: b'{"n":[0' + (b"," + b"1" * 4000) * (size // 4001) + b"]}",
    "dashes": lambda size: b'{"n":"' + b"e-" * (size // 2) + b'"}',
    "depth": lambda size: b'{"n":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "escaped quotes": lambda size: b'{"n":[1.5,"' + b'\\"' * (size // 2) + b'"]}',
    "escaped backslashes": lambda size: b'{"n":[1.5,"' + b"\\\\" * (size // 2) + b'"]}',
    "line ends": lambda size: b'{"n":[1.5,"' + b"\\n" * (size // 2) + b'"]}',
    "escaped characters": lambda size: b'{"n":[1.5,"' + b"\\u0001" * (size // 6) + b'"]}',
    "a text beside one escape": lambda size: b'{"n":[1.5,"\\n' + b"x" * size + b'"]}',
    "long names": lambda size: b"{" + b",".join(b'"%d%b":1.5' % (n, b"x" * (size // 400)) for n in range(400)) + b"}",
    "long escaped names": lambda size: (
        b"{" + b",".join(b'"%d%b":1.5' % (n, b'\\"' * (size // 800)) for n in range(400)) + b"}"
    ),
    "dashes in a list": lambda size: b'{"n":[1.5,"' + b"e-" * (size // 2) + b'"]}',
    "digits": lambda size: b'{"n":[1.5' + b"1" * size + b"]}",
}


@pytest.mark.parametrize("kind", HARD)
def test_no_small_body_takes_long(kind: str) -> None:
    """In processor time, at its best of several tries; a body may take 1 ms of the event loop, on a core of its own."""
    body = HARD[kind](16_000)
    assert least_s(lambda: of_json(body, ()), enough_s=0.001) < 0.001


@pytest.mark.parametrize("size", [1_500, 16_000, 64_000, 250_000])
@pytest.mark.parametrize("kind", HARD)
def test_no_light_body_takes_long(kind: str, size: int) -> None:
    """With what it takes to see that it is light."""
    body, info = HARD[kind](size), ModelInfo(name="m")

    def look() -> None:
        if not is_heavy(body, info, needs_print=True):
            of_json(body, ())

    hash_s = least_s(lambda: of_bytes(bytes(256_000)), enough_s=0.0003)  # a slow machine is slow at this too
    most_s = max(0.001, 4 * hash_s)
    assert least_s(look, enough_s=most_s) < most_s


def least_s(work: Callable[[], object], enough_s: float) -> float:
    """Processor time at its best: what shares the core makes everything slower, for as long as it is there."""
    best_s = inf
    for _ in range(500):
        began = process_time()
        work()
        best_s = min(best_s, process_time() - began)
        if best_s < enough_s:
            break
    return best_s


def test_a_mark_of_a_large_body_tells_it_from_others() -> None:
    body = bytes(range(256)) * 4096
    marks = {of_sample(each) for each in (body, body + b"x", b"x" + body[1:], body[:-1] + b"x", body[:-1])}
    assert len(marks) == 5


def test_an_object_is_not_its_bytes() -> None:
    assert of_json(b"{}", ()) != of_bytes(b"{}")
    assert len(of_bytes(b"")) == len(of_json(b"{}", ())) == 16
