"""How much is offered to a server that is tuned."""

from __future__ import annotations

import pytest

from timebound.lab.overload import Offered, overload


class World:
    """A server that answers so much, and a client that can ask so much: beyond it every call waits and is late."""

    def __init__(self, server_rps: float, client_rps: float) -> None:
        self.server_rps, self.client_rps = server_rps, client_rps
        self.rates: list[float] = []

    def offer(self, rate: float) -> Offered:
        self.rates.append(rate)
        if rate > self.client_rps:
            return Offered(rate, 0.0, 0.0, True)
        useful = min(rate, self.server_rps)
        return Offered(rate, useful, useful / rate, False)


def test_a_server_is_offered_more_until_it_is_too_much() -> None:
    world = World(server_rps=250, client_rps=10_000)
    assert overload(world.offer, 130, 100).useful_rps == 250
    assert world.rates == pytest.approx([130, 195, 292.5])


def test_what_a_busy_client_spoils_is_not_held_against_the_server() -> None:
    world = World(server_rps=1e9, client_rps=12_000)
    done = overload(world.offer, 9000, 7000)
    assert (done.rate, done.goodput) == (9000, 1.0)
    assert world.rates == [9000, 13_500]


def test_a_client_that_is_asked_too_much_at_once_is_asked_less() -> None:
    world = World(server_rps=1e9, client_rps=5000)
    done = overload(world.offer, 9000, 7000)
    assert (done.rate, done.goodput) == (4000, 1.0)


def test_calls_that_wait_for_an_overloaded_server_are_its_own_fault() -> None:
    """With a long deadline all connections wait for answers, but what it can do it does."""
    done = overload(lambda rate: Offered(rate, 950, 950 / rate, True), 1300, 1000)
    assert (done.rate, done.useful_rps) == (1300, 950)


def test_it_ends_where_nothing_is_answered_at_all() -> None:
    world = World(server_rps=1e9, client_rps=1)
    assert overload(world.offer, 9000, 7000).useful_rps == 0
    assert len(world.rates) == 5
