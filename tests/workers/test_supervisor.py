"""How long a dead worker's place stays empty."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from timebound.workers.supervisor import backoff_s


def test_a_worker_that_died_once_is_replaced_at_once() -> None:
    assert backoff_s(0) == 0.0
    assert backoff_s(1) == 0.0


def test_the_wait_doubles_with_every_quick_death() -> None:
    waits = [backoff_s(deaths) for deaths in range(2, 7)]
    assert waits[0] > 0
    assert [later / earlier for earlier, later in pairwise(waits)] == [2.0] * 4


@given(st.integers(0, 10**9))
def test_the_wait_grows_and_stays_below_ten_seconds(deaths: int) -> None:
    assert 0 <= backoff_s(deaths) <= backoff_s(deaths + 1) <= 10.0
