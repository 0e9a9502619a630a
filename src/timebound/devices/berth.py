"""Memory for one batch on its way: where its rows wait, and where its results arrive. One per batch in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from timebound.devices.base import Device
from timebound.devices.form import Form
from timebound.devices.tree import leaves

_BESIDE = 2
"""Results of a stage are fetched while the next stage writes its own."""


class Berth:
    """The memory for batches of one form; the last batch in it may still be on the device."""

    def __init__(self, device: Device, form: Form, outputs: Sequence[Any], *, is_mixture: bool) -> None:
        top = form.ladder[-1]
        self.rows = {key: device.staging(tensor.shape, tensor.dtype) for key, tensor in form.inputs.items()}
        self.rows_there = {key: device.empty(tensor.shape, tensor.dtype) for key, tensor in form.inputs.items()}
        kinds = [((top, *leaf.shape[1:]), torch.float32 if is_mixture else leaf.dtype) for leaf in outputs]
        self.sums = [device.empty(*kind) for kind in kinds] if is_mixture else []
        self.results_there = [[device.empty(*kind) for kind in kinds] for _ in range(_BESIDE)]
        self.results = [[device.staging(*kind) for kind in kinds] for _ in range(_BESIDE)]
        self.last: Callable[[], None] | None = None
        """Returns when the device has done with the batch that was in it."""


class Berths:
    """All of them, handed out to who comes first."""

    def __init__(self, device: Device, form: Form, outputs: Sequence[Any], count: int, *, is_mixture: bool) -> None:
        self._free = [Berth(device, form, outputs, is_mixture=is_mixture) for _ in range(count)]
        self._news = threading.Condition()

    @contextmanager
    def taken(self) -> Iterator[Berth]:
        """A berth for one batch, inside the `with` block."""
        with self._news:
            self._news.wait_for(lambda: self._free)
            berth = self._free.pop()
        try:
            if berth.last is not None:
                berth.last()
                berth.last = None
            yield berth
        finally:
            with self._news:
                self._free.append(berth)
                self._news.notify()


def bring(device: Device, arrays: Mapping[int | str, Any], berth: Berth, count: int) -> list[Any]:
    """Have rows copied to the device; the marks of their arrival. Any thread may: this keeps nothing per thread."""
    marks = []
    for key, array in arrays.items():
        if array.flags.c_contiguous and device.is_pinned(array.ctypes.data, array.nbytes):
            source = torch.from_numpy(array)
        else:
            source = berth.rows[key][:count]
            source.numpy()[...] = array
        marks.append(device.upload(source, berth.rows_there[key][:count]))
    return marks


def first_graph_outputs(form: Form) -> list[Any]:
    """What a captured network gives at the largest size, leaf by leaf."""
    return leaves(form.graphs[0][form.ladder[-1]].outputs)
