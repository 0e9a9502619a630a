"""A second worker on a device is refused where it has no room."""

from __future__ import annotations

import pytest

from timebound.errors import SetupError
from timebound.workers.second import check_room, loading_beside


class Card:
    name = "cuda:0"

    def __init__(self, free: int | None) -> None:
        self._free = free

    def free_bytes(self) -> int | None:
        return self._free


@pytest.mark.parametrize(("free", "needs"), [(11_000, 10_000), (None, 10_000), (0, 0)])
def test_a_second_worker_may_come_where_there_is_room_or_nobody_knows(free: int | None, needs: int) -> None:
    check_room(Card(free), needs)


def test_without_room_the_sentence_says_how_much_there_is_and_what_to_do() -> None:
    with pytest.raises(SetupError, match=r"cuda:0 has 3\.1 GB free, .* needed 7\.9 GB .*; restart the server"):
        check_room(Card(3_100_000_000), 7_900_000_000)


def test_weights_that_do_not_fit_beside_others_say_so() -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(SetupError, match="no room for a second copy"), loading_beside(True):
        raise SetupError("Net.load() failed") from error
    with pytest.raises(SetupError, match="failed"), loading_beside(False):
        raise SetupError("Net.load() failed") from error
