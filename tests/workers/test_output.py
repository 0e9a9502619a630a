"""What workers print is read at all times, and comes out whole and in order if somebody reads it."""

from __future__ import annotations

import os
import threading

import pytest

from timebound.workers.output import Relay

LINES = b"".join(b"%d %s\n" % (number, b"z" * (number % 300)) for number in range(5000))


def read_all(number: int) -> bytes:
    found = b""
    while piece := os.read(number, 1 << 16):
        found += piece
    os.close(number)
    return found


def write_all(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def test_everything_comes_out_in_order() -> None:
    source, target = os.pipe()
    relay = Relay(target)
    os.close(target)

    def print_all() -> None:
        write_all(relay.entrance, LINES)
        os.close(relay.entrance)

    printing = threading.Thread(target=print_all)
    printing.start()
    assert read_all(source) == LINES
    printing.join()


def test_whoever_prints_is_not_held_up_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    source, target = os.pipe()
    relay = Relay(target)
    os.close(target)
    for _ in range(10):  # of nearly a megabyte each, and nobody reads: this would wait for ever
        write_all(relay.entrance, LINES)
    os.close(relay.entrance)
    found = read_all(source)
    relay.writer.join(20)
    [told] = [record for record in caplog.records if "dropped" in record.message]
    assert len(found) + told.__dict__["bytes"] == 10 * len(LINES)
    assert found[: len(LINES)] == LINES


def test_a_reader_that_has_left_hurts_nobody() -> None:
    source, target = os.pipe()
    relay = Relay(target)
    os.close(target)
    os.close(source)
    write_all(relay.entrance, LINES)
    os.close(relay.entrance)
    relay.writer.join(20)
    assert not relay.writer.is_alive()
