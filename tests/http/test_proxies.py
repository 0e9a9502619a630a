"""What proxies say of a request: when it came, and from whom; and who is believed."""

from __future__ import annotations

import math
import socket
import struct

import pytest

from timebound.admission import Peers
from timebound.clock import ManualClock
from timebound.http.announced import read_announcement
from timebound.http.proxies import Proxies, read_stamp, way_back_s

NOW = 1_700_000_000.5
LONGEST_S = 60.0


def proxies(named: str = "10.0.0.0/8,127.0.0.1,::1") -> Proxies:
    return Proxies(named, longest_s=LONGEST_S, clock=ManualClock(), wall=lambda: NOW)


@pytest.mark.parametrize(
    "value",
    [
        b"t=1700000000.123",  # nginx: t=${msec}
        b"1700000000.123",
        b" t=1700000000.123 ",
        b"1700000000123",  # milliseconds
        b"t=1700000000123000",  # microseconds, as Apache has them
        b"t=1700000000123000000",
    ],
)
def test_a_stamp_is_read_in_every_form_in_use(value: bytes) -> None:
    assert read_stamp(value) == pytest.approx(1_700_000_000.123)


@pytest.mark.parametrize("value", [b"", b"t=", b"now", b"t=-5", b"inf", b"nan", b"12", b"1e40", b"\xff"])
def test_what_is_no_time_is_no_stamp(value: bytes) -> None:
    assert math.isnan(read_stamp(value))


@pytest.mark.parametrize(
    ("stamp", "age_s"),
    [
        (NOW - 0.25, 0.25),
        (NOW, 0.0),
        (NOW + 5.0, 0.0),  # never later than now
        (NOW - LONGEST_S - 1.0, 0.0),  # no request has that long: a clock is wrong
    ],
)
def test_a_stamp_counts_only_within_bounds(stamp: float, age_s: float) -> None:
    assert proxies().age_s([(b"x-request-start", b"t=%.3f" % stamp)]) == pytest.approx(age_s)


def test_stamps_that_are_not_believed_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    believed = proxies()
    for _ in range(1000):
        believed.age_s([(b"x-request-start", b"t=%.3f" % (NOW + 9.0))])
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("address", "is_believed"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("::1", True), ("11.0.0.1", False), ("junk", False), (None, False)],
)
def test_only_who_is_named_is_believed(address: str | None, is_believed: bool) -> None:
    assert proxies().trusts(address) == is_believed
    assert proxies("unix").trusts(None)


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ([b"203.0.113.7"], "203.0.113.7"),
        ([b"1.2.3.4, 203.0.113.7, 10.9.9.9"], "203.0.113.7"),  # what is left of it anybody may have written
        ([b"1.2.3.4", b"203.0.113.7"], "203.0.113.7"),
        ([b"203.0.113.7:5123"], "203.0.113.7"),
        ([b"[2001:db8::5]:443"], "2001:db8::5"),
        ([b"2001:db8::5"], "2001:db8::5"),
        ([b"10.7.7.7, 10.9.9.9"], "10.7.7.7"),
        ([b"203.0.113.7, unknown, 10.9.9.9"], "10.9.9.9"),
        ([b""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_on_the_way_who_is_no_proxy_of_ours(forwarded: list[bytes], client: str) -> None:
    assert proxies().client("10.0.0.1", [(b"x-forwarded-for", value) for value in forwarded]) == client


def test_a_way_of_thousands_of_hops_is_not_followed() -> None:
    hops = [(b"x-forwarded-for", b",".join([b"10.0.0.9"] * 4000))]
    assert proxies().client("10.0.0.1", hops) == "10.0.0.9"


def test_the_way_back_of_a_local_peer_is_short() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ours, _ = server.accept()
        with ours:
            client.sendall(b"x")
            ours.recv(1)
            assert 0.0 <= way_back_s(ours) < 0.1
    assert way_back_s(None) == 0.0


V4 = socket.inet_aton("203.0.113.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 5123, 8000)
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::5") * 2 + struct.pack("!HH", 5123, 8000)


def binary(command: int, family: int, told: bytes) -> bytes:
    return b"\r\n\r\n\x00\r\nQUIT\n" + bytes([command, family]) + struct.pack("!H", len(told)) + told


@pytest.mark.parametrize(
    ("announcement", "address"),
    [
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 5123 8000\r\n", "203.0.113.7"),
        (b"PROXY TCP6 2001:db8::5 ::1 5123 8000\r\n", "2001:db8::5"),
        (b"PROXY UNKNOWN\r\n", None),
        (binary(0x21, 0x11, V4), "203.0.113.7"),
        (binary(0x21, 0x21, V6), "2001:db8::5"),
        (binary(0x21, 0x11, V4 + b"\x04\x00\x03abc"), "203.0.113.7"),  # with something more to say
        (binary(0x20, 0x00, b""), None),  # the proxy's own check
    ],
)
def test_an_announcement_is_read_however_it_is_cut(announcement: bytes, address: str | None) -> None:
    for cut in range(1, len(announcement)):
        assert read_announcement(announcement[:cut]) is None
    assert read_announcement(announcement + b"GET / HTTP/1.1") == (address, b"GET / HTTP/1.1")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY\r\n",
        b"PROXY TCP4 nobody 10.0.0.1 5123 8000\r\n",
        b"PROXY TCP4 203.0.113.7\r\n",
        b"PROXY TCP4 " + b"1" * 200,
        b"PROXY \xff\r\n",
        binary(0x31, 0x11, V4),
        binary(0x21, 0x11, V4[:6]),
        binary(0x21, 0x11, V4)[:14] + b"\xff\xff",
    ],
)
def test_what_is_no_announcement_is_found_out_at_once(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any says so
        read_announcement(data)


def test_seats_are_given_back() -> None:
    peers = Peers(1)
    assert peers.come("203.0.113.7")
    peers.go("203.0.113.7")
    assert len(peers) == 0
