"""Whose heavy body is looked at next."""

from __future__ import annotations

from math import inf

from timebound.clock import ManualClock
from timebound.reading.turns import MOST, MOST_OF_ONE, MOST_SENDERS, QUICK_S, Turns


class Reader:
    """Turns with a manual clock, and senders whose bodies take a known time."""

    def __init__(self, **seconds: float) -> None:
        self.clock = ManualClock(100.0)
        self.turns: Turns[str] = Turns(self.clock.now)
        self._seconds = seconds
        self._number = 0

    def put(self, sender: str, count: int = 1, *, limit_s: float = inf) -> bool:
        for _ in range(count):
            self._number += 1
            is_in = self.turns.put(self._number, "body", sender, self.clock.now() + limit_s)
        return is_in

    def read(self, count: int, *, is_for_quick: bool = False) -> list[str]:
        """So many bodies; whose they were, in capitals if they were not read."""
        whose = []
        for _ in range(count):
            turn = self.turns.take(is_for_quick=is_for_quick)
            assert turn is not None
            _, sender, body = turn
            whose.append(sender if body is not None else sender.upper())
            if body is not None:
                self.clock.advance(self._seconds[sender])
                self.turns.took(sender, self._seconds[sender])
        return whose


def test_a_sender_of_quick_bodies_waits_for_one_slow_body_at_most() -> None:
    reader = Reader(a=1.0, b=1.0, c=1.0, d=1.0, quick=0.01)
    for sender in "abcd":
        reader.put(sender, 50)
    reader.read(8)
    for _ in range(5):
        reader.put("quick")
        assert reader.read(1) == ["quick"]
        reader.read(1)


def test_senders_have_the_same_time_whatever_they_send() -> None:
    reader = Reader(slow=0.4, quick=0.1)
    reader.put("slow", 50)
    reader.put("quick", 50)
    whose = reader.read(40)
    assert 0.7 < whose.count("quick") / 4 / whose.count("slow") < 1.3


def test_who_was_away_has_saved_nothing() -> None:
    reader = Reader(here=0.1, back=0.1)
    reader.put("back")
    reader.read(1)
    reader.put("here", 100)
    reader.read(50)
    reader.put("back", 50)
    assert 8 <= reader.read(20).count("here") <= 12


def test_the_second_reader_is_for_those_whose_bodies_are_quick() -> None:
    reader = Reader(slow=5 * QUICK_S, quick=0.1 * QUICK_S)
    reader.put("slow", 3)
    reader.read(1)
    reader.put("quick")
    assert reader.read(1, is_for_quick=True) == ["quick"]
    assert reader.read(1) == ["slow"]


def test_what_cannot_be_in_time_is_not_read_and_is_not_held_against_its_sender_for_ever() -> None:
    reader = Reader(slow=1.0)
    reader.put("slow", 2)
    reader.read(2)
    reader.put("slow", 4, limit_s=0.3)
    assert reader.read(4) == ["SLOW", "SLOW", "slow", "SLOW"]


def test_each_sender_and_all_together_may_have_so_many_waiting() -> None:
    reader = Reader()
    assert reader.put("a", MOST_OF_ONE)
    assert not reader.put("a")
    for sender in ("b", "c", "d"):
        assert reader.put(sender, MOST_OF_ONE)
    assert len(reader.turns) == MOST
    assert not reader.put("e")
    reader.turns.drop(1)
    assert reader.put("e")


def test_only_so_many_senders_are_known() -> None:
    reader = Reader()
    for number in range(3 * MOST_SENDERS):
        reader.put(str(number))
        reader.turns.drop(number + 1)
    assert len(reader.turns._senders) <= MOST_SENDERS
    assert len(reader.turns) == 0


def test_who_waits_is_let_go_when_it_is_closed() -> None:
    turns: Turns[str] = Turns(ManualClock(0.0).now)
    turns.close()
    assert turns.take() is None
