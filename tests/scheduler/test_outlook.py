"""What who asks now would get, as the page says it."""

from __future__ import annotations

import pytest
from tests.scheduler.test_offered import TAKES_S, offer, scheduler

from timebound.scheduler.outlook import outlook


def ahead(made: object, now: float = 1.0) -> list[float]:
    """Seconds by the number of members."""
    view = made.view(now)  # type: ignore[attr-defined]
    return outlook(view, view.models[0])


def test_on_an_idle_server_it_is_what_the_members_take() -> None:
    assert ahead(scheduler(members=3)) == pytest.approx([TAKES_S, 2 * TAKES_S, 3 * TAKES_S], rel=0.3)


def test_what_waits_goes_first_with_as_many_members() -> None:
    made = scheduler(slots=2, members=2)
    offer(made, 40, now=1.0)
    one, two = ahead(made)
    assert one == pytest.approx(41 / 2 * TAKES_S, rel=0.3)
    assert two == pytest.approx(41 * TAKES_S, rel=0.3)


def test_a_busy_slot_is_waited_for() -> None:
    made = scheduler()
    offer(made, 1, now=1.0)
    assert made.take(1.0) is not None
    assert ahead(made)[0] == pytest.approx(2 * TAKES_S, rel=0.3)
    assert ahead(made, now=1.009)[0] == pytest.approx(1.1 * TAKES_S, rel=0.3)
    assert ahead(scheduler())[0] < ahead(made)[0]
