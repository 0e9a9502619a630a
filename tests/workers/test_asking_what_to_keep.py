"""What may be kept is asked for few requests at a time, and who does not answer is not waited for again and again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timebound.workers.redaction import Redaction


class Helper:
    """Keeps the first letter, or says nothing."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self._is_silent = is_silent
        self._under_way = 0
        self.most = 0

    def redact(self, model: str, body: bytes, done: Callable[[bytes | None], None]) -> None:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        if not self._is_silent:
            asyncio.get_running_loop().call_soon(self._answer, body, done)

    def _answer(self, body: bytes, done: Callable[[bytes | None], None]) -> None:
        self._under_way -= 1
        done(body[:1] or None)


@contextmanager
def asking(helper: Helper) -> Iterator[Redaction]:
    """Somebody to be asked by this thread, with an event loop in another one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Redaction(helper, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_each_gets_its_own_in_order_and_few_are_asked_at_a_time() -> None:
    helper = Helper()
    with asking(helper) as redaction:
        bodies = [b"%d!" % (number % 10) for number in range(100)]
        assert redaction.of([("m", body) for body in bodies]) == [body[:1] for body in bodies]
        assert helper.most == 32
        large = [("m", b"x" * 400_000)] * 5
        helper.most = 0
        assert redaction.of([*large, ("m", b""), ("m", b"y" * 1_000_001), ("m", b"z")]) == [b"x"] * 5 + [
            None,
            None,
            b"z",
        ]
        assert helper.most <= 3


def test_who_does_not_answer_is_waited_for_once() -> None:
    with asking(Helper(is_silent=True)) as redaction:
        assert redaction.of([("m", b"x")]) == [None]
        began = time.monotonic()
        assert redaction.of([("m", b"x")] * 320) == [None] * 320
        assert time.monotonic() - began < 1.0


def test_of_a_loop_that_is_closed_nothing_is_expected() -> None:
    with asking(Helper()) as redaction:
        pass
    assert redaction.of([("m", b"x")]) == [None]
