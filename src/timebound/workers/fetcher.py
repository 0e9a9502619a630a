"""The gateway's side of the fetching process: has `fetch` run there, and calls off what nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable

from timebound.types import Outcome
from timebound.workers.messages import Call
from timebound.workers.understudy import Understudy

CANCEL, FETCH = "cancel", "fetch"


class Fetcher(Understudy):
    """One process at a time, as an understudy: calls wait while it is away, and it is ended when it stands still."""

    pings = True
    asks_again = False

    def fetch(self, model: str, body: bytes, done: Callable[[Outcome, float], None]) -> int:
        """Have a request fetch what it needs; the number to call it off by.

        `done` is called once, at once if too much waits: with what was fetched and the body in one, and the size of
        that; or with an outcome whose code says why not: `process_gone` if its process ended, `ended_process` if that
        was while its own code ran, `gone_beside` if it was while that of another did.
        """
        return self._ask(FETCH, model, body, done)

    def call_off(self, number: int) -> None:
        """Nobody waits for it any more; `done` is still called."""
        if not self.take_back(number):
            self.tell(Call(number, CANCEL, "", b""))
