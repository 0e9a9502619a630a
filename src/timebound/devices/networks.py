"""Networks that take the same batches on one device: captured before serving, then run stage by stage in the lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch

from timebound.devices.base import Device, Graph, add_usage, expect
from timebound.devices.berth import Berth, Berths, bring, first_graph_outputs
from timebound.devices.form import Call, Form, Settling, Tell
from timebound.devices.lane import the_lane
from timebound.devices.mixture import Mix
from timebound.devices.tree import alike, leaves

log = logging.getLogger("timebound.worker")

_AHEAD = 2
"""Stages of a batch that are handed to the lane before the first has ended."""
_numbers = count(1)

After = Callable[[int, Callable[[], Any]], bool]
"""Hears how many networks have run, and how to get their combination; says whether to go on."""


class Networks:
    """One network, or the members of an ensemble. Batches are dicts of arrays by input."""

    def __init__(
        self,
        device: Device,
        calls: Sequence[Call],
        labels: Sequence[str],
        mix: Mix | None = None,
        *,
        limit: int | None = None,
        is_captured: bool = True,
    ) -> None:
        self.device = device
        self._limit = limit
        self._is_captured = is_captured
        self.labels = labels
        self._calls = calls
        self._mix = mix
        self._seen: dict[Any, dict[int | str, Any]] = {}
        self._forms: dict[Any, tuple[Form, Berths | None]] = {}
        self._is_settled = False
        self.notes: list[str] = []
        """Sentences for people: what runs in another way than it should."""
        self.strangers = 0
        """Batches whose shape was not there before serving."""

    @property
    def form(self) -> Form | None:
        """The form that serves, where there is one only."""
        return next(iter(self._forms.values()))[0] if len(self._forms) == 1 else None

    def settle(self, most: int, in_flight: int, tell: Tell) -> None:
        """Capture what was seen so far, for batches of up to `most`; nothing is prepared later."""
        the_lane().call(lambda: self._settle(most, in_flight, tell))

    def _settle(self, most: int, in_flight: int, tell: Tell) -> None:
        settling = Settling(self.device, self._calls, self.labels, self._mix, tell)
        with torch.inference_mode():
            for shape, sample in self._seen.items():
                form = settling.settle(sample, min(most, self._limit or most), is_captured=self._is_captured)
                berths = None
                if all(form.is_captured(size) for size in form.ladder):
                    outputs, is_mixture = first_graph_outputs(form), self._mix is not None
                    berths = Berths(self.device, form, outputs, in_flight, is_mixture=is_mixture)
                self._forms[shape] = (form, berths)
        self.notes += settling.notes
        self._is_settled = True

    # ------------------------------------------------------------------ serving

    def outputs(self, arrays: Mapping[int | str, Any], place: int = 0) -> Any:
        """What one network gives for a batch: a tree of arrays."""
        return self._in_pieces(arrays, lambda part: self._outputs(part, place))

    def mixture(self, arrays: Mapping[int | str, Any], order: Sequence[int], after: After | None = None) -> Any:
        """The combination of the networks, run in this order until `after` says stop; None if some are not captured."""
        found = self._forms.get(_shape(arrays))
        if found is None or found[1] is None:
            return None
        if _count(arrays) > found[0].ladder[-1]:
            return self._in_pieces(arrays, lambda part: self.mixture(part, order))
        with self._run(arrays, found[0], found[1]) as run:
            return run.mixture(order, after)

    def _outputs(self, arrays: Mapping[int | str, Any], place: int) -> Any:
        found = self._forms.get(_shape(arrays))
        if found is None:
            return self._unprepared(arrays, place)
        form, berths = found
        if self._mix is None and berths is not None:
            with self._run(arrays, form, berths) as run:
                return run.output()
        return self._apart(arrays, form, place)

    def _in_pieces(self, arrays: Mapping[int | str, Any], call: Callable[[Mapping[int | str, Any]], Any]) -> Any:
        """Batches larger than the ladder, one part after another."""
        found, total = self._forms.get(_shape(arrays)), _count(arrays)
        if found is None or total <= found[0].ladder[-1]:
            return call(arrays)
        top = found[0].ladder[-1]
        parts = [
            call({key: array[start : start + top] for key, array in arrays.items()}) for start in range(0, total, top)
        ]
        each = [leaves(part) for part in parts]
        joined = iter([np.concatenate(same) for same in zip(*each, strict=True)])
        return alike(parts[0], lambda _: next(joined))

    @contextmanager
    def _run(self, arrays: Mapping[int | str, Any], form: Form, berths: Berths) -> Iterator[Run]:
        with berths.taken() as berth:
            yield Run(self.device, form, self._mix, arrays, berth)

    def _unprepared(self, arrays: Mapping[int | str, Any], place: int) -> Any:
        """A shape that was not there before: as it comes, which may take a GPU seconds."""
        if self._is_settled:
            self.strangers += 1
            if self.strangers == 1:
                log.warning("%s: items of another shape than the example's are not captured", self.labels[place])
        elif _shape(arrays) not in self._seen:
            self._seen[_shape(arrays)] = {key: array[0].copy() for key, array in arrays.items()}
            expect(self)

        def compute() -> Any:
            given = {key: torch.from_numpy(array.copy()).to(self.device.place) for key, array in arrays.items()}
            return alike(self._calls[place](given), _array)

        return self._in_lane(compute)

    def _apart(self, arrays: Mapping[int | str, Any], form: Form, place: int) -> Any:
        """One network by itself: captured as a member, or never."""
        count = _count(arrays)
        size = form.step(count)
        assert size is not None
        graph = form.graphs[place].get(size)

        def bring_in() -> None:
            for key, array in arrays.items():
                form.inputs[key][:count].copy_(torch.from_numpy(np.ascontiguousarray(array)))

        def compute() -> Any:
            bring_in()
            return alike(self._calls[place](form.rows(size)), lambda leaf: _array(leaf[:count]))

        if graph is None:
            return self._in_lane(compute)
        return self._in_lane(lambda: alike(graph.outputs, lambda leaf: _array(leaf[:count])), bring_in, graph, count)

    def _in_lane(
        self,
        compute: Callable[[], Any],
        before: Callable[[], None] | None = None,
        graph: Graph | None = None,
        rows: int = 0,
    ) -> Any:
        """Run this in its turn, waiting for its end there."""
        device = self.device

        def work() -> _Whole:
            start = device.mark()
            if before is not None and graph is not None:
                device.compute(before)
                device.replay(graph, rows)
            result = device.compute(compute)
            end = device.mark()
            end.wait()
            return _Whole(result, end.seconds_since(start))

        asked = time.monotonic()
        whole = _result(device, the_lane().submit(next(_numbers), work))
        add_usage(whole.seconds, max(0.0, time.monotonic() - asked - whole.seconds))
        return whole.result


class Run:
    """One batch on the device: its stages go through the lane in their turn, after those of older batches."""

    def __init__(
        self, device: Device, form: Form, mix: Mix | None, arrays: Mapping[int | str, Any], berth: Berth
    ) -> None:
        self._device, self._form, self._mix, self._berth = device, form, mix, berth
        self._number = next(_numbers)
        self._count = _count(arrays)
        size = form.step(self._count)
        assert size is not None
        self._size = size
        self._asked = time.monotonic()
        self._uploaded = bring(device, arrays, berth, self._count)
        self._stages: list[Future[Stage]] = []
        self._told = 0

    def output(self) -> Any:
        """What the only network gives."""
        self._submit(self._form.graphs[0][self._size], self._collect_all)
        results = iter(self._fetch(0))
        self._tell(0)
        return alike(self._form.graphs[0][self._size].outputs, lambda _: next(results))

    def mixture(self, order: Sequence[int], after: After | None) -> Any:
        """The combination of the networks, in this order until `after` says stop."""
        if after is None and self._size in self._form.together and len(order) == len(self._form.graphs):
            self._submit(self._form.together[self._size], self._collect_all)
            return self._finish(0)
        ahead = len(order) if after is None else _AHEAD
        for turn in range(min(ahead, len(order))):
            self._submit_turn(order, turn, is_asked=after is not None)
        if after is None:
            return self._finish(len(order) - 1)
        for turn in range(len(order) - 1):
            self._wait(turn)
            self._tell(turn)
            if not after(turn + 1, lambda turn=turn: self._result(turn)[0]):  # type: ignore[misc]
                return self._finish(turn)
            if turn + _AHEAD < len(order):
                self._submit_turn(order, turn + _AHEAD, is_asked=True)
        return self._finish(len(order) - 1)

    def _submit_turn(self, order: Sequence[int], turn: int, *, is_asked: bool) -> None:
        """One network's stage; its combination with those before is fetched if somebody may ask for it."""
        mix, place = self._mix, order[turn]
        assert mix is not None
        is_fetched = is_asked or turn == len(order) - 1
        total = sum(mix.weights[each] for each in order[: turn + 1])
        graph, sums = self._form.graphs[place][self._size], self._berth.sums[0][: self._count]
        target = self._berth.results_there[turn % 2][0][: self._count]

        def collect(_: int) -> None:
            mix.add(sums, graph.outputs[: self._count], place, is_first=turn == 0)
            if is_fetched:
                torch.div(sums, total, out=target)

        self._submit(graph, collect, is_fetched=is_fetched)

    def _collect_all(self, turn: int) -> None:
        outputs = self._form.together[self._size].outputs if self._mix else self._form.graphs[0][self._size].outputs
        for source, target in zip(leaves(outputs), self._berth.results_there[turn % 2], strict=True):
            target[: self._count].copy_(source[: self._count])

    def _submit(self, graph: Graph, collect: Callable[[int], None], *, is_fetched: bool = True) -> None:
        turn = len(self._stages)
        stage = Stage(self._device, self._form, self._berth, self._count)
        work = lambda: stage.start(graph, self._uploaded, lambda: collect(turn), turn, is_fetched=is_fetched)  # noqa: E731
        future: Future[Stage] = the_lane().submit(self._number, work)
        self._stages.append(future)
        self._berth.last = lambda: _settled(future)

    def _wait(self, turn: int) -> None:
        """Return when the results of this stage have arrived."""
        stage = _result(self._device, self._stages[turn])
        for mark in stage.arrived or [stage]:
            mark.wait()

    def _result(self, turn: int) -> list[Any]:
        """Copies of what has arrived."""
        return [result[: self._count].numpy().copy() for result in self._berth.results[turn % 2]]

    def _fetch(self, turn: int) -> list[Any]:
        self._wait(turn)
        return self._result(turn)

    def _finish(self, turn: int) -> Any:
        result = self._fetch(turn)[0]
        self._tell(turn)
        return result

    def _tell(self, turn: int) -> None:
        """What the stages up to this one have used, but for what was told before."""
        used, now = sum(future.result().seconds() for future in self._stages[self._told : turn + 1]), time.monotonic()
        add_usage(used, max(0.0, now - self._asked - used))
        self._told, self._asked = turn + 1, now


class Stage:
    """One network's, or all networks', work on a batch."""

    def __init__(self, device: Device, form: Form, berth: Berth, count: int) -> None:
        self._device, self._form, self._berth, self._count = device, form, berth, count
        self._begin: Any = None
        self._end: Any = None
        self.arrived: list[Any] = []
        """The marks of its results, if they are fetched."""

    def start(
        self, graph: Graph, uploaded: Sequence[Any], collect: Callable[[], None], turn: int, *, is_fetched: bool
    ) -> Stage:
        """Put it on the device; on the lane's thread."""
        device, berth, count = self._device, self._berth, self._count
        with torch.inference_mode():
            for mark in uploaded:
                device.wait_for(mark)
            self._begin = device.mark()
            device.launch(self._bring_in)
            device.replay(graph, count)
            device.launch(collect)
            self._end = device.mark()
            if is_fetched:
                pairs = zip(berth.results_there[turn % 2], berth.results[turn % 2], strict=True)
                self.arrived = [device.download(there[:count], here[:count]) for there, here in pairs]
        return self

    def _bring_in(self) -> None:
        # Always: another batch, or the network itself, may have written there since.
        for key, there in self._berth.rows_there.items():
            self._form.inputs[key][: self._count].copy_(there[: self._count])

    def wait(self) -> None:
        """Return when it has ended on the device."""
        self._end.wait()

    def seconds(self) -> float:
        """What it took there; only once it has ended."""
        return float(self._end.seconds_since(self._begin))


class _Whole:
    """Work that was waited for on the lane."""

    def __init__(self, result: Any, seconds: float) -> None:
        self.result = result
        self.seconds = seconds

    def wait(self) -> None:
        """It has ended."""


def _result(device: Device, future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        device.check(error)
        raise


def _settled(future: Future[Stage]) -> None:
    """Wait for the end of a stage, whatever became of it."""
    if future.exception() is None:
        stage = future.result()
        for mark in stage.arrived or [stage]:
            mark.wait()


def _count(arrays: Mapping[int | str, Any]) -> int:
    return len(next(iter(arrays.values())))


def _shape(arrays: Mapping[int | str, Any]) -> tuple[Any, ...]:
    return tuple((key, array.dtype.str, array.shape[1:]) for key, array in arrays.items())


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()
