"""The order in which several workers run the tests."""

from __future__ import annotations

from tests.order import dealt


def test_each_worker_begins_with_its_share_of_the_long_ones_and_groups_stay_together() -> None:
    tests = ["a", "b", "X1", "c", "X2", "d", "e", "f", "g", "Y1", "Z1", "Z2", "h", "V1"]
    order = dealt(tests, lambda name: name[0] if name[0].isupper() else None, workers=3)
    # As xdist gives them out at first: 14 tests are 4, 5 and 5.
    assert order == ["X1", "X2", "V1", "a", "Y1", "b", "c", "d", "e", "Z1", "Z2", "f", "g", "h"]


def test_nothing_is_left_out_where_there_are_fewer_tests_than_workers_or_all_are_long() -> None:
    for tests in ([], [1], [1, 2], list(range(7))):
        assert sorted(dealt(tests, lambda number: number, workers=3)) == tests
        assert sorted(dealt(tests, lambda _: 0, workers=3)) == tests
        assert sorted(dealt(tests, lambda _: None, workers=3)) == tests
