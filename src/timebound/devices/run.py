"""One batch on the device: its stages, and what comes back of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeAlias

import torch

from timebound.devices.base import Device, Graph, add_usage
from timebound.devices.berth import Berth, bring
from timebound.devices.form import Form
from timebound.devices.lane import the_lane
from timebound.devices.mixture import Mix
from timebound.devices.tree import alike, leaves

_AHEAD = 2
"""Stages of a batch that are handed to the lane before the first has ended."""
numbers = count(1)
"""The order of batches in the lane."""

After: TypeAlias = Callable[[int, Callable[[], Any]], bool]
"""Hears how many networks have run, and how to get their combination; says whether to go on."""


class Run:
    """One batch on the device: its stages go through the lane in their turn, after those of older batches."""

    def __init__(
        self, device: Device, form: Form, mix: Mix | None, arrays: Mapping[int | str, Any], berth: Berth
    ) -> None:
        self._device, self._form, self._mix, self._berth = device, form, mix, berth
        self._number = next(numbers)
        self._count = count_of(arrays)
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

    def mixture(self, order: Sequence[int], after: After | None, sure: int = 0) -> Any:
        """The combination of the networks, in this order until `after` says stop; see `Networks.mixture`."""
        if after is None and self._size in self._form.together and len(order) == len(self._form.graphs):
            self._submit(self._form.together[self._size], self._collect_all)
            return self._finish(0)
        if after is None:
            self._submit_up_to(len(order), order, is_asked=False)
            return self._finish(len(order) - 1)
        self._submit_up_to(min(_AHEAD, sure or _AHEAD), order, is_asked=True)
        for turn in range(len(order) - 1):
            self._wait(turn)
            self._tell(turn)
            if not after(turn + 1, lambda turn=turn: self._result(turn)[0]):  # type: ignore[misc]
                return self._finish(turn)
            ahead = turn + 1 + _AHEAD
            self._submit_up_to(min(ahead, max(sure, turn + 2)) if sure else ahead, order, is_asked=True)
        return self._finish(len(order) - 1)

    def _submit_up_to(self, turns: int, order: Sequence[int], *, is_asked: bool) -> None:
        for turn in range(len(self._stages), min(turns, len(order))):
            self._submit_turn(order, turn, is_asked=is_asked)

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
        stage = result_of(self._device, self._stages[turn])
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


def result_of(device: Device, future: Future[Any]) -> Any:
    """What the lane made of it; raises `DeviceLost` where that is why it failed."""
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


def count_of(arrays: Mapping[int | str, Any]) -> int:
    """How many items."""
    return len(next(iter(arrays.values())))
