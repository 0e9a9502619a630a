"""One shape of items on a device: its inputs, and what each network does with every batch size of its ladder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from timebound.devices.base import Device, Graph
from timebound.devices.graphs import NotCaptured, Piece, Tensors, capture, replay_seconds, run_seconds
from timebound.devices.ladder import up
from timebound.devices.mixture import Mix

T = TypeVar("T")

Call: TypeAlias = Callable[[Tensors], Any]
"""A network: tensors in, a tensor or a tree of them out."""
Tell: TypeAlias = Callable[[str], None]

_TOGETHER_MOST = 32
_TOGETHER_GAIN = 0.75
"""All networks at once must take less than this share of one after another: small batches leave most of a GPU idle."""
_TELL_EVERY_S = 2.0


class Form:
    """What was captured for items of one shape. Made by `settle_form`."""

    def __init__(self, inputs: Tensors, ladder: list[int], networks: int) -> None:
        self.inputs = inputs
        """The memory that graphs read, with room for the largest batch."""
        self.ladder = ladder
        self.graphs: list[dict[int, Graph]] = [{} for _ in range(networks)]
        self.seconds: list[dict[int, float]] = [{} for _ in range(networks)]
        self.together: dict[int, Graph] = {}
        self.together_s: dict[int, float] = {}
        self.reasons: list[str] = ["" for _ in range(networks)]
        """By network, why some of its sizes are not captured."""
        self.worst = 0.0
        """The largest difference seen between a replay and a run."""

    def rows(self, size: int) -> dict[int | str, Any]:
        """The inputs of a batch of this size."""
        return {key: tensor[:size] for key, tensor in self.inputs.items()}

    def step(self, count: int) -> int | None:
        """The size that a batch of so many runs at."""
        return up(self.ladder, count)

    def is_captured(self, size: int) -> bool:
        """Whether every network is, at this size."""
        return all(size in graphs for graphs in self.graphs)

    def all_graphs(self) -> list[Graph]:
        return [graph for graphs in (*self.graphs, self.together) for graph in graphs.values()]


class Settling:
    """Captures every network at every size, the largest first; drops the largest where memory is short."""

    def __init__(
        self, device: Device, calls: Sequence[Call], labels: Sequence[str], mix: Mix | None, tell: Tell
    ) -> None:
        self._device = device
        self._calls = calls
        self._labels = labels
        self._mix = mix
        self._tell = tell
        self.notes: list[str] = []

    def settle(
        self, sample: Mapping[int | str, Any], ladder: list[int], make: Callable[[Form], T], *, is_captured: bool = True
    ) -> tuple[Form, T]:
        """The form of items like this sample, for batches of these sizes, and what is made for it."""
        while True:
            form: Form | None = None
            try:
                form = Form(self._inputs(sample, ladder[-1]), ladder, len(self._calls))
                self._fill(form, is_captured=is_captured)
                return form, make(form)
            except Exception as error:
                if not self._device.is_exhausted(error) or len(ladder) == 1:
                    raise
            self._device.forget(form.all_graphs() if form is not None else [])
            dropped, ladder = ladder[-1], ladder[:-1]
            del form
            self.notes.append(
                f"{', '.join(self._labels)}: the device's memory does not hold batches of {dropped}; "
                f"the largest is {ladder[-1]}"
            )

    def _inputs(self, sample: Mapping[int | str, Any], top: int) -> Tensors:
        made: dict[int | str, Any] = {}
        for key, row in sample.items():
            value = torch.from_numpy(row)
            made[key] = target = self._device.empty((top, *value.shape), value.dtype)
            on_device = value.to(self._device.place)
            self._device.compute(partial(target.copy_, on_device))
        return made

    def _fill(self, form: Form, *, is_captured: bool) -> None:
        begin, done, told = time.monotonic(), 0, time.monotonic()
        pairs = len(form.ladder) * len(self._calls)
        for size in reversed(form.ladder):
            for place in range(len(self._calls)):
                self._step(form, place, size, is_captured=is_captured)
                done += 1
                now = time.monotonic()
                if now - told > _TELL_EVERY_S or done == 1:
                    told, left = now, (now - begin) / done * (pairs - done)
                    what = f"{len(form.ladder)} batch sizes x {len(self._calls)} networks"
                    self._tell(f"capturing {what}, about {left:.0f} s left")
        for place, reason in enumerate(form.reasons):
            if reason:
                self.notes.append(f"{self._labels[place]} runs without being captured: {reason}")
        if len(self._calls) > 1 and self._mix is not None:
            self._all_at_once(form)

    def _step(self, form: Form, place: int, size: int, *, is_captured: bool) -> None:
        inputs, call = form.rows(size), self._calls[place]
        piece = Piece(lambda: call(inputs), list(inputs.values()))
        if is_captured and not form.reasons[place]:
            try:
                graph, worst = capture(self._device, piece, next(iter(form.all_graphs()), None))
            except NotCaptured as refusal:
                form.reasons[place] = str(refusal)
            else:
                form.graphs[place][size] = graph
                form.worst = max(form.worst, worst)
                form.seconds[place][size] = replay_seconds(self._device, graph, piece)
                return
        self._device.compute(piece.work)
        form.seconds[place][size] = run_seconds(self._device, piece)

    def _all_at_once(self, form: Form) -> None:
        for size in (size for size in form.ladder if size <= _TOGETHER_MOST):
            if not form.is_captured(size):
                return
            inputs = form.rows(size)

            def work(inputs: Tensors = inputs) -> Any:
                outputs = self._device.branches([lambda call=call: call(inputs) for call in self._calls])  # type: ignore[misc]
                assert self._mix is not None
                return self._mix.whole(outputs)

            piece = Piece(work, list(inputs.values()))
            try:
                graph, _ = capture(self._device, piece, form.graphs[0][size])
            except Exception as error:
                if not isinstance(error, NotCaptured) and not self._device.is_exhausted(error):
                    raise
                why = str(error) if isinstance(error, NotCaptured) else f"no memory is left for that at {size} items"
                self.notes.append(f"the networks do not run beside each other in one graph: {why}")
                return
            took = replay_seconds(self._device, graph, piece)
            if took > _TOGETHER_GAIN * sum(seconds[size] for seconds in form.seconds):
                self._device.forget([graph])
                return
            form.together[size], form.together_s[size] = graph, took
