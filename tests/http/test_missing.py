"""Which model a query names."""

from __future__ import annotations

import pytest

from timebound.http.missing import named_in


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"", None),
        (b"a=1", None),
        (b"model_name=", None),
        (b"other_model_name=a", None),
        (b"model_name=mood", "mood"),
        (b"a=1&model_name=%6dood+2&b=2", "mood 2"),
        (b"a=1&" * 7_000 + b"model_name=%E6%84%9F", "感"),
    ],
)
def test_a_query_names_a_model_among_however_many_fields(query: bytes, name: str | None) -> None:
    assert named_in(query) == name


def test_of_an_endless_name_the_beginning_is_read() -> None:
    assert len(named_in(b"model_name=" + b"a" * 30_000) or "") < 2_000
