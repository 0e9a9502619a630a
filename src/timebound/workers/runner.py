"""Computes one batch inside a worker: prepare each item, infer all together, finish each; one outcome per item."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from timebound.backends.base import Backend
from timebound.body import read_json
from timebound.clock import Clock
from timebound.model import Model, decoder, name_of, padded_fields
from timebound.reply import Reply
from timebound.tensors.arrays import plain
from timebound.tensors.item import MARK
from timebound.types import UNFINISHED, Loss, Outcome, Report, Timing
from timebound.workers.failures import is_for_want_of_memory, is_lost_device, item_failure
from timebound.workers.padding import Padding
from timebound.workers.staging import Rows, stacks_with
from timebound.workers.tensor_items import TensorItems

log = logging.getLogger("timebound.worker")

CAUGHT = BaseException
"""What the user's code may raise at the cost of its own item: exit() or a CancelledError must not end a slot."""

Ask: TypeAlias = Callable[[Report], bool]
"""Takes the answers so far; says whether the next member is to run."""


class Usage(Protocol):
    """Seconds of a device that were used, and waited for behind other batches."""

    @property
    def device_s(self) -> float: ...
    @property
    def waited_s(self) -> float: ...


class Prepared:
    """A batch after `prepare`: what goes on, and the outcome of what does not, by its place."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.places: list[int] = []
        self.requests: list[Any] = []
        self.bodies: list[bytes | memoryview] = []
        self.items: Sequence[Any] = []
        self.refused: dict[int, Outcome] = {}
        self.prepare_s = 0.0
        self.ask: Ask | None = None
        self.ask_after_s = 0.0
        self.silent = (0, 0.0)
        """So many members run for so long without a word."""
        self.members_s: list[float] = []
        self.cores = 1
        self.votes: Collection[int] = ()
        """Places of the items that want the members' votes."""
        self.killers: dict[int, list[Loss]] = {}
        """Places of items that processes died of which prepared them."""


class Runner:
    """Runs batches of one model. Safe to use from several slots if the model is."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self.model = model
        self.name = name_of(type(model))
        self.members = len(getattr(model.net, "members", ())) or 1
        self.clock = clock
        self._has_told_of_halving = False  # once is enough to be noticed
        self.take_usage: Callable[[], Usage] | None = None
        """On a device: what the calls of this thread have used since it was last asked."""
        self.memory_failures = 0  # of all slots; counted, not marked, because they share this runner
        self._decode, is_raw = decoder(type(model))
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode
        self.tensors = TensorItems(model)
        fields = padded_fields(type(model))
        inputs = model.net.inputs if isinstance(model.net, Backend) and type(model).infer is Model.infer else ()
        self.stack: Callable[[Sequence[Any]], Any] = Padding(fields, inputs).stack if fields else stack
        """Makes a batch of items."""
        self._mark = None if is_raw else MARK  # a raw body may begin with any byte
        self.preparing: Callable[[Sequence[bytes | memoryview], bool], Prepared] | None = None
        """Prepares batches in other processes, if set."""

    def run(
        self,
        bodies: Sequence[bytes | memoryview],
        ask: Ask | None = None,
        ask_after_s: float = 0.0,
        cores: int = 1,
        votes: Collection[int] = (),
        *,
        silent: tuple[int, float] = (0, 0.0),
        is_suspect: bool = False,
    ) -> Report | None:
        """One outcome per body, in order; never raises for what a client or the model did wrong.

        The rest is for ensembles, see `EnsembleRunner`: None says that the last report stands.
        """
        start, failures = self.clock.now(), self.memory_failures
        batch = self._prepare(bodies) if self.preparing is None else self.preparing(bodies, is_suspect)
        batch.prepare_s = self.clock.now() - start
        batch.ask, batch.ask_after_s, batch.cores, batch.votes, batch.silent = ask, ask_after_s, cores, votes, silent
        report = self.compute(batch)
        if report is None or self.memory_failures == failures:
            return report
        return msgspec.structs.replace(report, is_short_of_memory=True)

    def compute(self, batch: Prepared) -> Report | None:
        """Infer and finish what was prepared."""
        start = self.clock.now()
        outputs = self.infer_apart(batch.items, self.infer)
        return self.report(batch, outputs, self.clock.now() - start)

    def _prepare(self, bodies: Sequence[bytes | memoryview]) -> Prepared:
        batch = Prepared(len(bodies))
        items: list[Any] = []
        batch.items = items
        for place, body in enumerate(bodies):
            try:
                request = self.decode(body)
                item = self.model.prepare(request)
            except CAUGHT as error:
                batch.refused[place] = item_failure(self.name, error, "prepare", body)
            else:
                batch.places.append(place)
                batch.requests.append(request)
                batch.bodies.append(body)
                items.append(item)
        return batch

    def report(self, batch: Prepared, outputs: Sequence[Any], infer_s: float, members: int | None = None) -> Report:
        """What became of each item, after all members or so many."""
        start, done = self.clock.now(), members or self.members
        made = self.finish_all(batch, outputs)
        if done < self.members:  # what `finish` cannot do with these, it may with all
            made = [msgspec.structs.replace(one, code=UNFINISHED) if one.code else one for one in made]
        finished = iter(made)
        outcomes = [batch.refused.get(place) or next(finished) for place in range(batch.size)]
        timing = Timing(batch.prepare_s, infer_s, self.clock.now() - start)
        if self.take_usage is None:
            return Report(outcomes, timing, done, self.members, killers=batch.killers)
        used = self.take_usage()
        report = Report(outcomes, timing, done, self.members, killers=batch.killers)
        return msgspec.structs.replace(report, device_s=used.device_s, waited_s=used.waited_s)

    def finish_all(self, batch: Prepared, outputs: Sequence[Any]) -> list[Outcome]:
        """Each item's answer, or its error."""
        each = zip(batch.requests, outputs, batch.bodies, strict=True)
        return [self.finish(request, out, body) for request, out, body in each]

    def decode(self, body: bytes | memoryview) -> Any:
        """The typed request of a body, or the raw bytes; raises `RequestError` naming the field at fault."""
        if body[:1] == self._mark:
            return self.tensors.request(body)
        return read_json(self._decode, body)

    def infer(self, items: Sequence[Any]) -> list[Any]:
        """One output per item; raises `ValueError` if the model gives another number of them."""
        outputs = self.model.infer(self.stack(items))
        return unstack(outputs, len(items), self.name)

    def encode(self, answer: Any, body: bytes | memoryview = b"") -> Outcome:
        """An answer as the client will get it: JSON, or bytes as they are; tensors to a body of tensors."""
        if body[:1] == self._mark:
            return self.tensors.outcome(answer, body)
        if isinstance(answer, bytes | bytearray):
            return Outcome(bytes(answer), media="application/octet-stream")
        if isinstance(answer, Reply):
            return answer.outcome(self._encode)
        return Outcome(self._encode(answer))

    def infer_apart(self, items: Sequence[Any], infer: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
        """Outputs, or the exception in the place of an item that fails: a failing batch is halved to find it."""
        if not items:
            return []
        try:
            return infer(items)
        except CAUGHT as error:
            self.memory_failures += is_for_want_of_memory(error)
            if is_lost_device(error):
                raise
            if len(items) == 1:
                return [error]
            if not self._has_told_of_halving:
                self._has_told_of_halving = True
                log.warning("%s: a batch of %d failed and is computed in halves", self.name, len(items), exc_info=error)
        middle = len(items) // 2
        return [output for part in (items[:middle], items[middle:]) for output in self.infer_apart(part, infer)]

    def finish(self, request: Any, output: Any, body: bytes | memoryview = b"") -> Outcome:
        """One item's answer, or its error."""
        if isinstance(output, CAUGHT):
            return item_failure(self.name, output, "infer", body)
        try:
            return self.encode(self.model.finish(output, request), body)
        except CAUGHT as error:
            return item_failure(self.name, error, "finish", body)


def stack(items: Sequence[Any]) -> Any:
    """A batch from items: arrays (or dicts or tuples of arrays) of one shape are stacked, anything else is a list."""
    if type(items) is Rows:
        return items.stacked
    first = items[0]
    if isinstance(first, np.ndarray | np.generic):
        return np.stack(items) if all(stacks_with(first, item) for item in items) else list(items)
    if not holds_array(first):
        return list(items)
    if isinstance(first, dict) and all(isinstance(i, dict) and i.keys() == first.keys() for i in items):
        return {name: stack([item[name] for item in items]) for name in first}
    if isinstance(first, tuple) and all(isinstance(i, tuple) and len(i) == len(first) for i in items):
        return tuple(stack([item[place] for item in items]) for place in range(len(first)))
    return list(items)


def holds_array(item: Any) -> bool:
    """Whether it is an array, or a dict or tuple with one in it: anything else is the model's own, and stays whole."""
    if isinstance(item, dict | tuple):
        return any(map(holds_array, item.values() if isinstance(item, dict) else item))
    return isinstance(item, np.ndarray | np.generic)


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
