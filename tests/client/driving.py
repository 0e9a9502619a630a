"""Drives a call's steps on a manual clock: a test says what each server answers and how long that takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from timebound.client.address import read_address
from timebound.client.asking import Asking, Options
from timebound.client.call import Attempt, Lost, Pause, Surroundings, steps
from timebound.client.message import Reply
from timebound.client.retry import Standing
from timebound.clock import ManualClock

Said = Reply | Lost
Server = Callable[[Attempt], tuple[float, Said]]
"""Seconds that it takes, and what it says then; a client does not wait beyond the attempt's end."""

REFUSED = Lost("connection refused")
SLOW = Lost("no answer in time", is_down=False)


def reply(status: int = 200, body: Any = None, **headers: str) -> Reply:
    """A reply with a JSON body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"content-type": "application/json"} | named, json.dumps(body or {}).encode())


def problem(status: int, code: str, **headers: str) -> Reply:
    return reply(status, {"code": code, "detail": f"it is {code}"}, **headers)


class Drive:
    """One call; `at` are the times of its attempts, `asked` their servers, `heads` what was sent."""

    def __init__(self, *servers: Server, random: Callable[[], float] = lambda: 0.5, now: float = 1000.0) -> None:
        self.clock = ManualClock(now)
        self.began = now
        self._servers = servers
        addresses = [read_address(f"http://server-{number}:8000") for number in range(len(servers))]
        self._by_url = dict(zip([address.url for address in addresses], servers, strict=True))
        self.around = Surroundings(addresses, Standing(len(servers)), self.clock, random)
        self.attempts: list[Attempt] = []
        self.at: list[float] = []
        self.heads: list[str] = []
        self.pauses: list[float] = []

    @property
    def asked(self) -> list[str]:
        return [attempt.address.host for attempt in self.attempts]

    @property
    def took_s(self) -> float:
        return self.clock.now() - self.began

    def ask(self, retries: int | None = None, attempt_timeout: float | None = None, **options: Any) -> Reply:
        """Ask to the end; raises what the call raises."""
        urls = tuple(self._by_url)
        asking = Asking(urls, {"retries": retries, "attempt_timeout": attempt_timeout, "clock": self.clock})
        asked: Options = options  # type: ignore[assignment]
        return self.drive(asking._asked("mood", {"text": "fine"}, asked))

    def drive(self, question: Any) -> Reply:
        following = steps(question, self.around)
        said: Said | None = None
        while True:
            try:
                step = following.send(said)
            except StopIteration as end:
                found: Reply = end.value[0]
                return found
            if isinstance(step, Pause):
                self.pauses.append(step.seconds)
                self.clock.advance(step.seconds)
                said = None
            else:
                said = self._attempt(step)

    def _attempt(self, attempt: Attempt) -> Said:
        self.attempts.append(attempt)
        self.at.append(self.took_s)
        self.heads.append(attempt.head(self.clock.now(), 0.0).decode())
        takes_s, said = self._by_url[attempt.address.url](attempt)
        left_s = attempt.until - self.clock.now()
        self.clock.advance(min(takes_s, left_s))
        return said if takes_s < left_s else SLOW


def script(*said: Said, takes_s: float = 0.01) -> Server:
    """A server that says these in turn, and the last one for ever."""
    left = list(said)

    def answer(_: Attempt) -> tuple[float, Said]:
        return takes_s, left.pop(0) if len(left) > 1 else left[0]

    return answer


def told_ms(head: str) -> float:
    """The limit in a head."""
    return float(head.split("timebound-timeout-ms: ")[1].split("\r\n", maxsplit=1)[0])
