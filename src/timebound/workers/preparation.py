"""Batches of one model prepared by hands, in the rows of the slot that computes them; small ones by the slot itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from timebound.backends.base import current_slot
from timebound.backends.file_model import FileModel
from timebound.clock import Clock
from timebound.importer import describe
from timebound.model import Model, example_body, padded_fields
from timebound.types import ModelInfo
from timebound.workers.failures import failure, item_failure
from timebound.workers.hands import Hands
from timebound.workers.hired import Order
from timebound.workers.runner import CAUGHT, Prepared, Runner
from timebound.workers.staging import Form, Rows

log = logging.getLogger("timebound.worker")

_AT_HOME = 2
"""Batches of so many are prepared by the slot: to hand them over would take longer."""
_AT_HOME_S = 0.0005
"""So are those that take no longer than this altogether."""
_PART_S = 0.001
"""A part takes at least so long, or handing it over costs too much of it."""
_PARTS_EACH = 3
"""Parts of a batch for each hand, so that none has to wait long for the slowest."""
_SEEN, _ODD = 64, 0.5
"""After so many items it is judged whether too large a share of them has another form than the example."""
_HANG = 0.3
"""Of the deadline, that one item may take: less than the gateway allows the batch, or the worker would be ended."""
_MOST_BYTES = 256 << 20
"""Of one slot's rows: a device's worker pins them."""


def open_preparation(
    runners: Mapping[str, Runner], infos: Sequence[ModelInfo], hands: Hands, clock: Clock
) -> dict[str, str]:
    """Have hands prepare for these runners, as far as they can; by model, a sentence that says why they cannot."""
    known, why = {}, {}
    for info in infos:
        runner = runners[info.name]
        if not has_prepare(runner.model):
            continue
        found = learn(runner, max([info.max_batch, *info.batch_sizes]), clock)
        if isinstance(found, str):
            why[info.name] = found
        else:
            known[info.name] = found
    hands.learn({name: (found.form, found.body, found.room) for name, found in known.items()})
    why.update(hands.unable)
    for name, found in known.items():
        if name not in why:
            runners[name].preparing = Preparation(runners[name], hands, found, clock).prepare
    return {
        name: f"{name}: prepared in the worker, not in processes of its own: {reason}" for name, reason in why.items()
    }


def has_prepare(model: Model) -> bool:
    """Whether there is anything to do for hands."""
    return type(model).prepare is not Model.prepare and not isinstance(model, FileModel)


class Lesson:
    """What one run on the example shows of a model's items."""

    def __init__(self, form: Form, body: bytes, room: int, item_s: float) -> None:
        self.form = form
        self.body = body
        self.room = room
        self.item_s = item_s
        """How long one takes."""


def learn(runner: Runner, room: int, clock: Clock) -> Lesson | str:
    """Prepare the example once more; or why hands cannot do what `prepare` does, as far as it is seen here."""
    model = runner.model
    if model.example is None:
        return "there is no `example` to learn from; set one on the class"
    if padded_fields(type(model)):
        return "its items vary in length, as `pad` says"
    body = example_body(model.example)
    try:
        request, twin, state = runner.decode(body), runner.decode(body), _state(model)
        start = clock.now()
        item = model.prepare(request)
        item_s = clock.now() - start
        changes_request = bool(request != twin)
    except CAUGHT as error:
        return f"prepare() failed on the example: {describe(error)}"
    if changes_request:
        return "prepare() changes the request, and finish() would not see that; have finish() find it out itself"
    if _state(model) != state:
        return "prepare() sets attributes of self, which stay where it ran; set them in equip()"
    form = Form.of(item)
    if form is None:
        kind = type(item).__name__
        return (
            f"prepare() gives a {kind}; a numpy array of numbers, or a dict or tuple of such arrays, can be handed over"
        )
    if form.bytes(room) > _MOST_BYTES:
        return f"{room} items would take {form.bytes(room) >> 20} MiB of shared memory; lower max_batch or send uint8"
    return Lesson(form, body, room, item_s)


def _state(model: Model) -> dict[str, int]:
    return {name: id(value) for name, value in vars(model).items()}


class Preparation:
    """Prepares batches for a runner."""

    def __init__(self, runner: Runner, hands: Hands, lesson: Lesson, clock: Clock) -> None:
        self._runner = runner
        self._hands = hands
        self._form = lesson.form
        self._room = lesson.room
        self._clock = clock
        self._item_s = lesson.item_s
        self._hang_s = _HANG * type(runner.model).deadline
        self._rows: dict[int, list[Any]] = {}
        self._seen = self._odd = 0
        self._wants_requests = type(runner.model).finish is not Model.finish

    def prepare(self, bodies: Sequence[bytes | memoryview], is_suspect: bool) -> Prepared:
        """A prepared batch whose items lie in the slot's rows, as long as all have the usual form."""
        slot, count = current_slot(), len(bodies)
        area = self._hands.areas[slot]
        rows = self._rows.get(slot)
        if rows is None:
            rows = self._rows[slot] = self._form.rows(area.rows, self._room)
        at = area.offset(bodies)
        is_small = count <= _AT_HOME or count * self._item_s < _AT_HOME_S
        if at is None or count > self._room or (is_small and not is_suspect):
            return self._at_home(bodies, rows)
        if not self._hands.is_able(self._runner.name) or self._is_in_vain():
            return self._at_home(bodies, rows)
        order, items = Order(slot, self._runner.name, hang_s=self._hang_s, is_suspect=is_suspect), []
        for place, body in enumerate(bodies):
            items.append((at, len(body), place))
            at += len(body)
        self._hands.put(order, items, self._part_size(count))
        return self._gather(order, bodies, rows)

    def _is_in_vain(self) -> bool:
        """Whether most items have another form than the example, so that they are prepared twice."""
        if self._seen < _SEEN or self._odd < _ODD * self._seen:
            return False
        name, odd, seen = self._runner.name, self._odd, self._seen
        self._hands.unable[name] = "most of its items have other shapes than the example"
        log.warning("%s: prepared in the worker from now on: %d of %d items had other shapes", name, odd, seen)
        return True

    def _part_size(self, count: int) -> int:
        hands = max(1, self._hands.up)
        worthwhile = int(_PART_S / max(self._item_s, 1e-6)) + 1
        return min(max(-(-count // (_PARTS_EACH * hands)), worthwhile), -(-count // hands))

    def _at_home(self, bodies: Sequence[bytes | memoryview], rows: list[Any]) -> Prepared:
        batch, items = Prepared(len(bodies)), []
        for place, body in enumerate(bodies):
            try:
                request = self._runner.decode(body)
                item = self._runner.model.prepare(request)
            except CAUGHT as error:
                batch.refused[place] = item_failure(self._runner.name, error, "prepare", body)
            else:
                _accept(batch, place, request, body)
                items.append(item)
        fits = len(items) <= self._room and all(self._form.write(rows, row, item) for row, item in enumerate(items))
        batch.items = Rows(self._form, rows, 0, len(items)) if fits else items
        return batch

    def _gather(self, order: Order, bodies: Sequence[bytes | memoryview], rows: list[Any]) -> Prepared:
        """Wait for an order; the requests themselves are read here meanwhile, for `finish`."""
        requests = [self._request(body) for body in bodies] if self._wants_requests else [None] * len(bodies)
        own: dict[int, Any] = {}
        while order.left:
            for place in self._hands.wait(order):
                self._prepare_one(order, place, bodies[place], rows, own)
        for place in order.odd:
            self._prepare_one(order, place, bodies[place], rows, own)
        self._seen, self._odd = self._seen + len(bodies), self._odd + len(order.odd)
        batch = self._sorted(order, bodies, requests)
        if own:
            views = Rows(self._form, rows, 0, len(bodies))
            batch.items = [own[place] if place in own else views[place] for place in batch.places]
            return batch
        for row, place in enumerate(batch.places):
            if row != place:  # somebody before it was refused
                for array in rows:
                    array[row] = array[place]
        batch.items = Rows(self._form, rows, 0, len(batch.places))
        return batch

    def _sorted(self, order: Order, bodies: Sequence[bytes | memoryview], requests: Sequence[Any]) -> Prepared:
        """Who goes on, and who does not."""
        batch = Prepared(len(bodies))
        batch.killers = order.killers
        for place, (body, request) in enumerate(zip(bodies, requests, strict=True)):
            if place in order.killers:
                batch.refused[place] = failure("crashes_worker", "the process that prepared this request died or hung")
            elif place in order.outcomes:
                batch.refused[place] = order.outcomes[place]
            elif isinstance(request, CAUGHT):
                batch.refused[place] = item_failure(self._runner.name, request, "prepare", body)
            else:
                _accept(batch, place, request, body)
        return batch

    def _request(self, body: bytes | memoryview) -> Any:
        try:
            return self._runner.decode(body)
        except CAUGHT as error:
            return error

    def _prepare_one(
        self, order: Order, place: int, body: bytes | memoryview, rows: list[Any], own: dict[int, Any]
    ) -> None:
        """Here, into its row, or into `own` if it has another form."""
        try:
            item = self._runner.model.prepare(self._runner.decode(body))
        except CAUGHT as error:
            order.outcomes[place] = item_failure(self._runner.name, error, "prepare", body)
            return
        if not self._form.write(rows, place, item):
            own[place] = item


def _accept(batch: Prepared, place: int, request: Any, body: bytes | memoryview) -> None:
    batch.places.append(place)
    batch.requests.append(request)
    batch.bodies.append(body)
