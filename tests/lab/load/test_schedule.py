from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from timebound.errors import SetupError
from timebound.lab.load.schedule import Phase, bursts, even, poisson, trace


def test_poisson_arrivals_have_the_rate_of_each_phase_and_are_repeatable() -> None:
    phases = [Phase(100.0, 50.0), Phase(10.0, 50.0)]
    first, second = (list(poisson(phases, seed=3)) for _ in range(2))
    assert first == second == sorted(first)
    assert sum(time < 50.0 for time in first) == pytest.approx(5000, rel=0.05)
    assert sum(time >= 50.0 for time in first) == pytest.approx(500, rel=0.15)
    gaps = [after - before for before, after in pairwise(first[:4000])]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)  # as for independent arrivals


def test_another_seed_gives_other_times() -> None:
    assert list(poisson([Phase(10.0, 5.0)], 1)) != list(poisson([Phase(10.0, 5.0)], 2))


def test_even_arrivals_have_equal_distances() -> None:
    assert list(even([Phase(4.0, 1.1)])) == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_bursts_keep_the_mean_rate_and_are_three_times_as_high() -> None:
    phases = bursts(10.0, 8.0)
    assert sum(phase.rate * phase.seconds for phase in phases) == pytest.approx(80.0)
    assert sum(phase.seconds for phase in phases) == pytest.approx(8.0)
    assert max(phase.rate for phase in phases) == 30.0


def test_a_trace_begins_at_zero_in_order_and_may_have_a_heading(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time,user\n100.5,a\n100.0,b\n# a remark\n\n102.0,c\n")
    assert trace(file) == [0.0, 0.5, 2.0]
    assert trace(file, speed=2.0) == [0.0, 0.25, 1.0]


@pytest.mark.parametrize(("text", "words"), [("", "holds no times"), ("1.0\nsoon\n", "line 2: 'soon' is no time")])
def test_a_trace_that_cannot_be_read_says_where(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(SetupError, match=words):
        trace(file)
