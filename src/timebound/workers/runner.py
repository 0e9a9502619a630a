"""Computes one batch inside a worker: prepare each item, infer all together, finish each; one outcome per item."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from timebound.backends.ensemble import Steps, Votes, heard_by, in_steps, on_cores
from timebound.body import is_too_deep, read_json
from timebound.clock import Clock
from timebound.errors import RequestError
from timebound.model import Model, name_of
from timebound.types import UNFINISHED, Outcome, Report, Timing
from timebound.workers.votes import votes_line

log = logging.getLogger("timebound.worker")

_CAUGHT = (Exception, SystemExit)
"""What the user's code may raise at the cost of its own item; exit() in a model must not end a slot's thread."""


_NO_MEMORY = ("failed to allocate memory", "bad_alloc", "out of memory", "can't allocate memory", "bad allocation")

Ask: TypeAlias = Callable[[Report], bool]
"""Takes the answers so far; says whether the next member is to run."""


class _Prepared:
    """A batch after `prepare`: what goes on, and the outcome of what does not, by its place."""

    def __init__(self, size: int, asked: Collection[int]) -> None:
        self.size = size
        self.asked = asked
        """Places of the items that want the members' votes."""
        self.places: list[int] = []
        self.requests: list[Any] = []
        self.bodies: list[bytes | memoryview] = []
        self.items: list[Any] = []
        self.refused: dict[int, Outcome] = {}
        self.prepare_s = 0.0


class _Voted:
    """One item's output, and what it would be by each member alone."""

    __slots__ = ("alone", "output")

    def __init__(self, output: Any, alone: list[tuple[str, Any]]) -> None:
        self.output = output
        self.alone = alone


class Runner:
    """Runs batches of one model. Safe to use from several slots if the model is."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.model = model
        self.name = name_of(type(model))
        self.members = len(getattr(model.net, "members", ())) or 1
        self._clock = clock
        self._has_told_of_halving = False  # once is enough to be noticed
        self._memory_failures = 0  # of all slots; counted, not marked, because they share this runner
        request = type(model).Request
        self._decode: Callable[[Any], Any] = bytes if request is None else msgspec.json.Decoder(request).decode
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode

    def run(
        self,
        bodies: Sequence[bytes | memoryview],
        ask: Ask | None = None,
        ask_after_s: float = 0.0,
        cores: int = 1,
        votes: Collection[int] = (),
    ) -> Report | None:
        """One outcome per body, in order; never raises for what a client or the model did wrong.

        With `ask`, an ensemble reports after each member but the last, and once it has run for `ask_after_s` it goes
        on only if told so; None says that it was not, and the last report stands. With several `cores` its members
        run side by side and nothing is asked. For the items at the places in `votes` the report also says what each
        member of the ensemble would have answered alone.
        """
        start, failures = self._clock.now(), self._memory_failures
        batch = self._prepare(bodies, votes if self.members > 1 else ())
        batch.prepare_s = self._clock.now() - start
        if ask is not None and self.members > 1 and cores == 1 and batch.items:
            outputs = self._infer_in_steps(batch, ask, ask_after_s)
            if outputs is None:
                return None
        else:
            with on_cores(cores):
                outputs = self._infer_apart(batch.items, with_votes=bool(batch.asked))
        infer_s = self._clock.now() - start - batch.prepare_s
        report = self._report(batch, outputs, infer_s, self.members)
        if self._memory_failures == failures:
            return report
        return msgspec.structs.replace(report, is_short_of_memory=True)

    def _prepare(self, bodies: Sequence[bytes | memoryview], asked: Collection[int]) -> _Prepared:
        batch = _Prepared(len(bodies), asked)
        for place, body in enumerate(bodies):
            try:
                request = self.decode(body)
                item = self.model.prepare(request)
            except _CAUGHT as error:
                batch.refused[place] = self._failure(error, "prepare", body)
            else:
                batch.places.append(place)
                batch.requests.append(request)
                batch.bodies.append(body)
                batch.items.append(item)
        return batch

    def _infer_in_steps(self, batch: _Prepared, ask: Ask, ask_after_s: float) -> list[Any] | None:
        """Outputs after all members, or None if the ensemble was told to leave it at fewer."""
        stacked = stack(batch.items)
        start = self._clock.now()
        broken: list[Exception] = []
        votes = Votes() if batch.asked else None

        def unstacked(infer: Callable[[], Any]) -> list[Any]:
            rows = unstack(infer(), len(batch.items), self.name)
            return rows if votes is None else self._with_votes(rows, votes, stacked)

        def report(infer: Callable[[], Any], members: int) -> bool:
            infer_s = self._clock.now() - start
            so_far = self._report(batch, unstacked(infer), infer_s, members)
            if infer_s < ask_after_s:  # no need to wait for a decision; but the next member may hang or fail
                so_far = msgspec.structs.replace(so_far, is_note=True)
            try:
                return ask(so_far)
            except Exception as error:
                broken.append(error)
                raise

        steps = Steps(lambda: self.model.infer(stacked), report)
        try:
            with in_steps(steps), heard_by(votes):
                outputs = unstacked(lambda: self.model.infer(stacked))
        except _CAUGHT as error:
            if broken:  # it was the asking that failed, not the model
                raise
            self._memory_failures += is_for_want_of_memory(error)
            return self._infer_apart(batch.items, with_votes=bool(batch.asked))
        return outputs if steps.is_complete else None

    def _report(self, batch: _Prepared, outputs: Sequence[Any], infer_s: float, members: int) -> Report:
        start = self._clock.now()
        voted: Sequence[Any] = ()
        if batch.asked:
            voted, outputs = outputs, [out.output if isinstance(out, _Voted) else out for out in outputs]
        each = zip(batch.requests, outputs, batch.bodies, strict=True)
        done = [self._finish(request, out, body) for request, out, body in each]
        if members < self.members:  # what `finish` cannot do with these, it may with all
            done = [msgspec.structs.replace(one, code=UNFINISHED) if one.code else one for one in done]
        finished = iter(done)
        outcomes = [batch.refused.get(place) or next(finished) for place in range(batch.size)]
        votes = self._votes(batch, voted) if batch.asked else {}
        timing = Timing(batch.prepare_s, infer_s, self._clock.now() - start)
        return Report(outcomes, timing, members, self.members, votes)

    def _votes(self, batch: _Prepared, voted: Sequence[Any]) -> dict[int, str]:
        """For each item that asked: the members' own answers, each made by `finish` as the answer was."""
        return {
            place: votes_line([(member, self._finish(request, output)) for member, output in item.alone])
            for place, request, item in zip(batch.places, batch.requests, voted, strict=True)
            if place in batch.asked and isinstance(item, _Voted) and item.alone
        }

    def decode(self, body: bytes | memoryview) -> Any:
        """The typed request of a body, or the raw bytes; raises `RequestError` naming the field at fault."""
        return read_json(self._decode, body)

    def infer(self, items: Sequence[Any]) -> list[Any]:
        """One output per item; raises `ValueError` if the model gives another number of them."""
        outputs = self.model.infer(stack(items))
        return unstack(outputs, len(items), self.name)

    def _infer_with_votes(self, items: Sequence[Any]) -> list[Any]:
        stacked, votes = stack(items), Votes()
        with heard_by(votes):
            rows = unstack(self.model.infer(stacked), len(items), self.name)
        return self._with_votes(rows, votes, stacked)

    def _with_votes(self, rows: list[Any], votes: Votes, stacked: Any) -> list[Any]:
        """Each item's output with what each member heard so far makes of it alone."""
        count = len(rows)
        try:
            with heard_by(None):
                each = votes.alone(lambda: self.model.infer(stacked))
                alone = [(member, unstack(outputs, count, self.name)) for member, outputs in each]
        except _CAUGHT as error:  # the answer itself is there; it is only its details that cannot be had
            log.warning("%s: the members' votes cannot be told", self.name, exc_info=error)
            alone = []
        return [_Voted(row, [(member, own[place]) for member, own in alone]) for place, row in enumerate(rows)]

    def encode(self, answer: Any) -> Outcome:
        """An answer as the client will get it: JSON, or bytes as they are."""
        if isinstance(answer, bytes | bytearray):
            return Outcome(bytes(answer), media="application/octet-stream")
        return Outcome(self._encode(answer))

    def _infer_apart(self, items: list[Any], *, with_votes: bool = False) -> list[Any]:
        """Outputs, or the exception in the place of an item that fails: a failing batch is halved to find it."""
        if not items:
            return []
        try:
            return self._infer_with_votes(items) if with_votes else self.infer(items)
        except _CAUGHT as error:
            self._memory_failures += is_for_want_of_memory(error)
            if len(items) == 1:
                return [error]
            if not self._has_told_of_halving:
                self._has_told_of_halving = True
                log.warning("%s: a batch of %d failed and is computed in halves", self.name, len(items), exc_info=error)
        middle = len(items) // 2
        parts = items[:middle], items[middle:]
        return [output for part in parts for output in self._infer_apart(part, with_votes=with_votes)]

    def _finish(self, request: Any, output: Any, body: bytes | memoryview = b"") -> Outcome:
        if isinstance(output, _CAUGHT):
            return self._failure(output, "infer", body)
        try:
            return self.encode(self.model.finish(output, request))
        except _CAUGHT as error:
            return self._failure(error, "finish", body)

    def _failure(self, error: BaseException, stage: str, body: bytes | memoryview) -> Outcome:
        """Our own errors are shown to the client; anything else is logged in full and answered neutrally."""
        if isinstance(error, RequestError):
            return failure(error.code, error.detail, error.field)
        if stage == "prepare" and isinstance(error, ValueError):
            # What a typical prepare raises on unfit input (int("x"), np.frombuffer, json ...): the client's doing.
            return failure("bad_input", f"the input cannot be used ({type(error).__name__})")
        if isinstance(error, RecursionError) and is_too_deep(body):
            return failure("bad_input", "the input is nested too deeply")
        log.error("%s.%s failed", self.name, stage, exc_info=error)
        return failure("model_failed", f"{stage} failed on this item; the server's log has the details")


def is_for_want_of_memory(error: BaseException) -> bool:
    """Whether Python, torch or onnxruntime could not allocate; the latter two say so only in name or text."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return any(sign in text for sign in _NO_MEMORY)


def failure(code: str, detail: str, field: str | None = None) -> Outcome:
    """An item's error as it crosses the wire."""
    facts = {"detail": _text(detail), "field": None if field is None else _text(field)}
    return Outcome(msgspec.json.encode(facts), code=code)


def _text(value: Any) -> str:
    """Whatever was given for a text, as one that JSON can say."""
    return str(value).encode("utf-8", "replace").decode()


def stack(items: Sequence[Any]) -> Any:
    """A batch from items: arrays (or dicts or tuples of arrays) of one shape are stacked, anything else is a list."""
    first = items[0]
    if isinstance(first, np.ndarray | np.generic):
        return np.stack(items) if all(_stacks_with(first, item) for item in items) else list(items)
    if isinstance(first, dict) and first and all(isinstance(i, dict) and i.keys() == first.keys() for i in items):
        return {name: stack([item[name] for item in items]) for name in first}
    if isinstance(first, tuple) and first and all(isinstance(i, tuple) and len(i) == len(first) for i in items):
        return tuple(stack([item[place] for item in items]) for place in range(len(first)))
    return list(items)


def _stacks_with(first: Any, item: Any) -> bool:
    if not isinstance(item, np.ndarray | np.generic) or item.shape != first.shape:
        return False
    # Texts of different lengths differ in dtype and stack all the same.
    return bool(item.dtype == first.dtype) or item.dtype.kind == first.dtype.kind == "U"


def unstack(outputs: Any, count: int, name: str) -> list[Any]:
    """One output per item, from arrays, dicts or tuples of arrays, or a list."""
    if isinstance(outputs, dict):
        columns = {key: unstack(value, count, name) for key, value in outputs.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(count)]
    if isinstance(outputs, tuple):
        parts = [unstack(value, count, name) for value in outputs]
        return [tuple(part[row] for part in parts) for row in range(count)]
    try:
        rows = list(outputs)
    except TypeError:
        raise ValueError(f"{name}.infer returned a {type(outputs).__name__}; return one output per item") from None
    if len(rows) != count:
        raise ValueError(f"{name}.infer returned {len(rows)} outputs for {count} items; return one output per item")
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"an answer holds a {type(value).__name__}, which JSON cannot say; convert it in finish()")
