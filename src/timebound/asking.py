"""What a program asks a gateway in its own process: an item becomes a question, and the result an answer."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec

from timebound.body import FirstLook
from timebound.catalogue import Catalogue
from timebound.clock import Clock, is_length
from timebound.errors import BadInput, DeadlineMissed, RequestError
from timebound.reading import LIGHT, Looked, Reading, is_heavy
from timebound.requests.dispatcher import Dispatcher
from timebound.requests.identity import Identity, check_key
from timebound.tensors.item import MARK
from timebound.types import Body, ModelInfo, Quality, Question, Result, Source


class Answer(msgspec.Struct, frozen=True):
    """What a model answered, and how that came about."""

    body: bytes
    media: str
    quality: Quality
    source: Source
    members: int
    of_members: int
    batch_size: int
    version: str
    headers: dict[str, str] = {}
    """Those that the model gave with a `timebound.Reply`."""

    @property
    def value(self) -> Any:
        """The answer itself: what its JSON says, or the bytes if it is none."""
        return msgspec.json.decode(self.body) if self.media == "application/json" else self.body


class Asking:
    """The way in without a protocol. Nobody has longer than `max_deadline_s`."""

    def __init__(
        self, catalogue: Catalogue, requests: Dispatcher, reading: Reading, *, clock: Clock, max_deadline_s: float
    ) -> None:
        self._catalogue = catalogue
        self._requests = requests
        self._reading = reading
        self._clock = clock
        self._max_deadline_s = max_deadline_s
        self._numbers = count(1)
        self._looks: dict[str, tuple[FirstLook | None, Identity]] = {}
        catalogue.listen(self._add_model, self._remove_model)

    def _add_model(self, info: ModelInfo) -> None:
        self._looks[info.name] = (FirstLook(info) if info.body is Body.JSON else None, Identity(info))

    def _remove_model(self, name: str, _: str | None) -> None:
        self._looks.pop(name, None)

    async def ask(self, model: str, item: Any, deadline: float | None, key: str | None, priority: int) -> Answer:
        """A model's answer to one item, as `Gateway.ask` says."""
        return await self._asked(await self._question(model, item, deadline, key, priority))

    async def again(self, info: ModelInfo, body: bytes) -> Answer:
        """What this version answers now to a body that came before, in whatever protocol; under no key."""
        now = self._clock.now()
        until = now + min(info.deadline_s, self._max_deadline_s)
        is_read = body.startswith(MARK)  # tensors, of which nothing is to be looked at
        size = 1.0 if is_read else (await self._look(info, body, until - now, needs_print=False))[1]
        question = Question(f"again-{next(self._numbers):x}", info.base, body, now, until, None, size)
        question.served, question.version = info.name, info.version
        return await self._asked(question)

    async def _asked(self, question: Question) -> Answer:
        answer: asyncio.Future[Result | RequestError] = asyncio.get_running_loop().create_future()

        def deliver(result: Result | RequestError) -> None:
            if not answer.done():
                answer.set_result(result)

        attempt = self._requests.submit(question, deliver)
        try:
            result = await answer
        except asyncio.CancelledError:
            self._requests.gone(attempt)
            raise
        if isinstance(result, RequestError):
            raise result
        return _answer(result)

    async def _question(
        self, model: str, item: Any, deadline: float | None, key: str | None, priority: int
    ) -> Question:
        if not self._looks:
            raise RequestError("the gateway is not started; write: async with tb.Gateway(...)", code="not_ready")
        if model not in self._looks:
            names = ", ".join(self._catalogue.names) or "none yet"
            raise RequestError(f"there is no model {model!r}; served are: {names}", code="unknown_model")
        if deadline is not None and not is_length(deadline):
            raise BadInput(f"the deadline is {deadline!r}; give a number of seconds above zero, such as deadline=0.25")
        if not isinstance(priority, int):
            raise BadInput(f"the priority is {priority!r}; give a whole number, such as priority=1")
        if key is not None and not isinstance(key, str):
            raise BadInput(f"the key is {key!r}; give a text, such as key='order-7'")
        body = bytes(item) if isinstance(item, bytes | bytearray | memoryview) else _encoded(item)
        info = self._catalogue.models[model]
        now, limit_s = self._clock.now(), info.deadline_s if deadline is None else deadline
        until = now + min(limit_s, self._max_deadline_s)
        identity = self._looks[model][1]
        needs_print = key is not None or identity.is_by_content
        found, size, fingerprint = await self._look(info, body, until - now, needs_print=needs_print)
        key = key or found or None
        if key is not None:
            check_key(key)
        if key is not None or identity.is_by_content:
            key, fingerprint = identity.of(key, body, fingerprint)
        return Question(f"ask-{next(self._numbers):x}", model, body, now, until, key, size, priority, fingerprint)

    async def _look(self, info: ModelInfo, body: bytes, limit_s: float, *, needs_print: bool) -> Looked:
        """The key in a body, its size and its fingerprint, read here or, if it is heavy, elsewhere."""
        if len(body) > LIGHT and is_heavy(body, info, needs_print=needs_print):
            return await self._looked(info, body, limit_s, needs_print=needs_print)
        shape = self._looks[info.name][0]
        return (None, 1.0, b"") if shape is None else (*shape.check(body), b"")

    async def _looked(self, info: ModelInfo, body: bytes, limit_s: float, *, needs_print: bool) -> Looked:
        try:
            looked = self._reading.looked(info, body, needs_print=needs_print, until=self._clock.now() + limit_s)
            return await asyncio.wait_for(looked, limit_s)
        except TimeoutError:
            raise DeadlineMissed("the deadline came while the body was read") from None


def _encoded(item: Any) -> bytes:
    try:
        return msgspec.json.encode(item)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the item cannot be written as JSON: {error}") from None


def _answer(result: Result) -> Answer:
    outcome = result.outcome
    if outcome.code:
        facts: dict[str, Any] = msgspec.json.decode(outcome.body)
        kind = BadInput if outcome.code == BadInput.code else RequestError
        raise kind(facts["detail"], code=outcome.code, field=facts["field"])
    return Answer(
        outcome.body,
        outcome.media,
        result.quality,
        result.source,
        result.members,
        result.of_members,
        result.batch_size,
        result.version,
        dict(line.split(": ", 1) for line in outcome.headers.splitlines()),
    )
