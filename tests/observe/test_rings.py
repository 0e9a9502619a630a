"""The recent past in fixed memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timebound.observe.rings import Recent, Ring


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 10))
def test_a_ring_has_the_last_rows_in_order(values: list[int], length: int) -> None:
    ring = Ring(("one", "double"), length)
    for value in values:
        ring.put((value, 2 * value))
    assert ring.columns() == {"one": values[-length:], "double": [2 * value for value in values[-length:]]}


@given(st.integers(0, 40), st.integers(1, 10), st.integers(-1, 40))
def test_recent_things_come_newest_first_and_only_those_after_a_number(count: int, length: int, after: int) -> None:
    recent: Recent[str] = Recent(length)
    for number in range(count):
        recent.put(str(number))
    expected = [number for number in range(count)[-length:] if number > after]
    assert list(recent.newest(after)) == [(number, str(number)) for number in reversed(expected)]
