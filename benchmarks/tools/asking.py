"""A plain client that asks one thing at a time: for what is about answers, not about speed."""

import json
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks.tools.load import FOR_EVER_S, Traffic, local_address
from timebound.lab.load.attempts import Exchange
from timebound.lab.load.client import Reply, fetch


@dataclass(frozen=True)
class Answer:
    """A reply, how long it took from sending, and None for both if the connection was lost."""

    reply: Reply | None
    seconds: float

    @property
    def is_full(self) -> bool:
        """Whether the model answered; a fallback is no answer here."""
        return self.reply is not None and self.reply.status == 200 and self.reply.quality == "full"

    @property
    def source(self) -> str:
        """computed, joined or stored."""
        return self.reply.source if self.reply is not None else ""


class OnceTraffic(Traffic):
    """Requests to the app in apps/once_app.py, each with a key of its own, or always the same few keys."""

    _numbers = count()

    def __init__(self, port: int, headers: str = "", *, keys: int | None = None, prefix: str = "") -> None:
        super().__init__(f"{prefix}/predictions/once", port, headers)
        self._known = [self.exchange(f"known-{number}", number) for number in range(keys or 0)]

    def next(self) -> Exchange:
        number = next(self._numbers)
        return self._known[number % len(self._known)] if self._known else self.exchange(f"u-{number}", number)

    def exchange(self, uuid: str, number: int) -> Exchange:
        """The request with this key; the number is what is doubled."""
        body = json.dumps({"uuid": uuid, "n": number}).encode()
        right = {"uuid": uuid, "twice": 2 * number}

        def is_right(reply: Reply) -> bool:
            answer: Any = json.loads(reply.body)
            if reply.quality == "fallback":
                return bool(answer == {"uuid": uuid, "twice": None})
            return bool(answer == right)

        return Exchange(self._head(len(body)) + body, is_right)


async def ask(port: int, exchange: Exchange) -> Answer:
    """Ask over a connection of its own."""
    began = time.perf_counter()
    try:
        reply: Reply | None = await fetch(local_address(port), exchange.request, FOR_EVER_S)
    except ConnectionError:
        reply = None
    return Answer(reply, time.perf_counter() - began)
