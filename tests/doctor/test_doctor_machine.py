from __future__ import annotations

import pytest

from timebound.doctor.finding import State
from timebound.doctor.machine import broken_bounds, cores, files, libraries, memory, processor, punctuality, python


def test_a_limit_below_one_core_is_told_and_above_it_is_kept() -> None:
    assert cores(4, 0.5).state is State.WARNING
    assert (cores(4, 2.5).state, cores(4, 2.5).text[-12:]) == (State.OK, "2 counted on")


def test_more_connections_than_files_is_told_with_both_cures() -> None:
    finding = files(1024, 4096)
    assert finding.state is State.WARNING
    assert "ulimit -n 4160" in finding.cure
    assert "--max-connections 960" in finding.cure
    assert files(1024, 960).state is State.OK
    assert files(-1, 10**6).state is State.OK


@pytest.mark.parametrize(
    ("version", "bounds", "broken"),
    [
        ("2.4.6", ">=2.0", []),
        ("1.9", ">=1.10", [(">=", "1.10")]),
        ("2.0.0", ">=1.0,<2", [("<", "2")]),
        ("1.54.0rc1", ">=0.54,<0.55", [("<", "0.55")]),
    ],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, broken: list[tuple[str, str]]) -> None:
    assert broken_bounds(version, bounds) == broken


def test_a_missing_or_old_library_is_a_problem_and_an_extra_is_not() -> None:
    assert libraries(["msgspec>=0.1", "no-such-thing>=1; extra == 'torch'"]).state is State.OK
    finding = libraries(["no-such-thing>=1", "msgspec>=999"])
    assert finding.state is State.PROBLEM
    assert "no-such-thing is missing" in finding.text
    assert "not >=999" in finding.text


def test_small_old_and_slow_machines_are_told() -> None:
    assert memory(100).state is State.PROBLEM
    assert processor("x86_64", {"sse2"}).state is State.WARNING
    assert processor("x86_64", {"avx2", "fma"}).state is State.OK
    assert processor("aarch64", set()).state is State.OK
    assert python("CPython", "3.10.4").state is State.PROBLEM
    assert python("CPython", "3.13.1").state is State.OK
    assert punctuality([0.0001, 0.030], 0.010).state is State.WARNING
    assert punctuality([0.0001, 0.003], 0.010).state is State.OK
