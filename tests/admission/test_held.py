"""What clients take of the gateway's memory and of its seats."""

from __future__ import annotations

from timebound.admission import Held, Peers


def test_a_hold_counts_until_nobody_knows_it() -> None:
    held = Held(100)
    hold = held.hold()
    assert hold.reach(60)
    assert not held.has_room(41)
    assert not hold.reach(101)
    assert held.bytes == 60
    other = held.hold()
    assert other.reach(40)
    del hold
    assert held.bytes == 40
    del other
    assert held.bytes == 0


def test_what_is_there_already_counts_without_room() -> None:
    held = Held(100)
    hold = held.hold()
    assert hold.reach(90)
    hold.stand_for(110)
    assert held.is_over
    hold.stand_for(10)
    assert (held.bytes, held.is_over) == (10, False)


def test_one_address_has_so_many_connections() -> None:
    peers = Peers(2)
    assert [peers.come("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert peers.come("10.0.0.2")
    peers.go("10.0.0.1")
    peers.go("10.0.0.1")
    assert peers.come("10.0.0.1")
    for _ in range(2):
        peers.go("10.0.0.1")
    peers.go("10.0.0.2")
    assert len(peers) == 0


def test_the_addresses_of_one_ipv6_network_count_as_one() -> None:
    peers = Peers(1)
    assert peers.come("2001:db8::1")
    assert not peers.come("2001:db8::ffff:1%eth0")
    assert peers.come("2001:db8:0:1::1")
    assert peers.come("10.0.0.1")
    assert not peers.come("::ffff:10.0.0.1")
