"""The fingerprint of a body: the same for attempts of one request, and for nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebound.store.fingerprint import of_bytes, of_json

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


@pytest.mark.parametrize("body", [b"[1, 2]", b'"text"', b"7", b"null", b"not json"])
def test_a_body_that_is_no_object_is_taken_as_it_is(body: bytes) -> None:
    assert of_json(body, {"retry"}) == of_bytes(body)


def test_an_object_is_not_its_bytes() -> None:
    assert of_json(b"{}", ()) != of_bytes(b"{}")
    assert len(of_bytes(b"")) == len(of_json(b"{}", ())) == 16
