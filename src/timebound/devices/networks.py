"""Networks that take the same batches on one device: captured before serving, then run stage by stage in the lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from timebound.devices.base import Device, Graph, add_usage, expect, unprepared
from timebound.devices.berth import Berths, first_graph_outputs
from timebound.devices.compiling import compiles
from timebound.devices.form import Call, Form, Settling, Tell
from timebound.devices.ladder import batch_steps, few_steps, up
from timebound.devices.lane import the_lane
from timebound.devices.lengths import Lengths, length_of
from timebound.devices.mixture import Mix
from timebound.devices.run import After, Run, count_of, numbers, result_of
from timebound.devices.tree import alike, leaves

log = logging.getLogger("timebound.worker")

_MOST_MET = 10_000
"""Shapes of batches that are remembered: whoever meets more of them meets each as if it were new."""


class Networks:
    """One network, or the members of an ensemble. Batches are dicts of arrays by input."""

    def __init__(
        self,
        device: Device,
        calls: Sequence[tuple[Call, Call]],
        labels: Sequence[str],
        mix: Mix | None = None,
        *,
        limit: int | None = None,
        longest: int | None = None,
        is_captured: bool = True,
        is_compiled: bool = False,
    ) -> None:
        self.device = device
        self._steps = few_steps if is_compiled else batch_steps
        self._limit = limit
        self._lengths = Lengths(longest) if longest is not None else None
        self._is_captured = is_captured
        self.labels = labels
        self._calls = [call for call, _ in calls]
        self._as_they_are = [call for _, call in calls]
        """What runs where nothing may be compiled: at first, and for shapes that were not there before."""
        self._mix = mix
        self._seen: dict[Any, dict[int | str, Any]] = {}
        self._forms: dict[Any, tuple[Form, Berths | None]] = {}
        self._of_length: dict[int, Form] = {}
        self._own_length = 0
        """Of texts: the example's."""
        self._is_settled = False
        self.notes: list[str] = []
        """Sentences for people: what runs in another way than it should."""
        self.strangers = 0
        """Batches whose shape was not there before serving."""
        self._met: set[Any] = set()
        """Their shapes."""

    @property
    def form(self) -> Form | None:
        """The form that serves, where there is one only; of texts that of the example's length."""
        if self._lengths is not None:
            return self._of_length.get(up(self._lengths.steps, self._own_length) or 0)
        return next(iter(self._forms.values()))[0] if len(self._forms) == 1 else None

    def seconds_by_length(self) -> list[tuple[float, list[list[float]]]]:
        """Of texts: each length, as a multiple of the example's, and by network the seconds of the sizes of `form`."""
        own, found = self.form, []
        for length, form in sorted(self._of_length.items()) if own is not None else ():
            sizes = [size for size in own.ladder if size in form.seconds[0]] if own is not None else []
            found.append((length / self._own_length, [[each[size] for size in sizes] for each in form.seconds]))
        return found

    def captured(self) -> str:
        """What was, in words; empty if nothing."""
        forms = [form for form, _ in self._forms.values()]
        done = [place for place in range(len(self._calls)) if any(form.graphs[place] for form in forms)]
        if not done:
            return ""
        sizes = sorted({size for form in forms for size in form.graphs[done[0]]})
        shown = ", ".join(map(str, sizes if len(sizes) < 6 else (*sizes[:2], "...", *sizes[-2:])))
        lengths = f" at {len(forms)} lengths up to {self._lengths.steps[-1]}" if self._lengths is not None else ""
        share = f" for {len(done)} of {len(self._calls)} networks" if len(done) < len(self._calls) else ""
        return f"{len(sizes)} batch sizes captured, {shown}{lengths}{share}".replace("..., ", "... ")

    def settle(self, most: int, in_flight: int, tell: Tell) -> None:
        """Capture what was seen so far, for batches of up to `most`; nothing is prepared later."""
        the_lane().call(lambda: self._settle(most, in_flight, tell))

    def _settle(self, most: int, in_flight: int, tell: Tell) -> None:
        settling = Settling(self.device, self._calls, self.labels, self._mix, tell)
        with torch.inference_mode():
            for sample in self._samples():
                top = min(most, self._limit or most)
                top = self._lengths.most(sample, top) if self._lengths is not None else top
                make = partial(self._berths, in_flight)
                made = settling.settle(sample, self._steps(top), make, is_captured=self._is_captured)
                self._forms[_shape_of_item(sample)] = made
                if self._lengths is not None:
                    self._of_length[_length_of_item(sample)] = made[0]
        self.notes += settling.notes
        self._is_settled = True

    def _berths(self, in_flight: int, form: Form) -> Berths | None:
        if not all(form.is_captured(size) for size in form.ladder):
            return None
        return Berths(self.device, form, first_graph_outputs(form), in_flight, is_mixture=self._mix is not None)

    def _samples(self) -> list[dict[int | str, Any]]:
        """An item of each shape that is to be captured."""
        seen = list(self._seen.values())
        if self._lengths is None:
            return seen
        self._own_length = _length_of_item(seen[0])
        self._lengths.learn(self._as_it_is, seen[0])
        return self._lengths.samples(seen[0])

    def _as_it_is(self, item: Mapping[int | str, Any]) -> Any:
        given = {key: torch.from_numpy(row[None].copy()).to(self.device.place) for key, row in item.items()}
        return self.device.compute(lambda: self._as_they_are[0](given))

    # ------------------------------------------------------------------ serving

    def outputs(self, arrays: Mapping[int | str, Any], place: int = 0) -> Any:
        """What one network gives for a batch: a tree of arrays."""
        return self._fitted(arrays, lambda fitting: self._in_pieces(fitting, lambda part: self._outputs(part, place)))

    def mixture(
        self, arrays: Mapping[int | str, Any], order: Sequence[int], after: After | None = None, sure: int = 0
    ) -> Any:
        """The combination of the networks, run in this order until `after` says stop; None if some are not captured.

        Where `sure` is known, it does not say so earlier, and none beyond them is begun before it was asked.
        """
        lengths, length, heard = self._lengths, length_of(arrays), after
        if after is not None and lengths is not None:

            def heard(done: int, value: Callable[[], Any]) -> bool:
                return after(done, lambda: lengths.cut(value(), length))

        return self._fitted(arrays, lambda fitting: self._mixture(fitting, order, heard, sure))

    def _fitted(self, arrays: Mapping[int | str, Any], call: Callable[[Mapping[int | str, Any]], Any]) -> Any:
        """With texts at a length that is captured, and without the padding in what comes back."""
        lengths = self._lengths
        if lengths is None or not self._is_settled:
            return call(arrays)
        length = length_of(arrays)
        made = call(lengths.pad(arrays))
        return lengths.cut(made, length) if made is not None else None

    def _mixture(
        self, arrays: Mapping[int | str, Any], order: Sequence[int], after: After | None, sure: int = 0
    ) -> Any:
        found = self._forms.get(_shape(arrays))
        if found is None or found[1] is None:
            return None
        if count_of(arrays) > found[0].ladder[-1]:
            return self._in_pieces(arrays, lambda part: self._mixture(part, order, None))
        with self._run(arrays, found[0], found[1]) as run:
            return run.mixture(order, after, sure)

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
        found, total = self._forms.get(_shape(arrays)), count_of(arrays)
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
            self._meet_stranger(arrays, place)
        elif _shape(arrays) not in self._seen:
            self._seen[_shape(arrays)] = {key: array[0].copy() for key, array in arrays.items()}
            expect(self)

        def compute() -> Any:
            given = {key: torch.from_numpy(array.copy()).to(self.device.place) for key, array in arrays.items()}
            return alike(self._as_they_are[place](given), _array)

        return self._in_lane(compute)

    def _meet_stranger(self, arrays: Mapping[int | str, Any], place: int) -> None:
        self.strangers += 1
        if self.strangers == 1:
            log.warning("%s: items of another shape than the example's are not captured", self.labels[place])
        met = (place, count_of(arrays), _shape(arrays))
        is_new = met not in self._met
        if is_new and len(self._met) < _MOST_MET:
            self._met.add(met)
        if (tell := unprepared.get()) is not None:
            tell(is_new)

    def _apart(self, arrays: Mapping[int | str, Any], form: Form, place: int) -> Any:
        """One network by itself: captured as a member, or never."""
        count = count_of(arrays)
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
            before = compiles()
            made = self._in_lane(compute)
            if compiles() > before and (tell := unprepared.get()) is not None:
                tell(False)  # too late for patience, and counted
            return made
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
        whole = result_of(device, the_lane().submit(next(numbers), work))
        add_usage(whole.seconds, max(0.0, time.monotonic() - asked - whole.seconds))
        return whole.result


def _shape(arrays: Mapping[int | str, Any]) -> tuple[Any, ...]:
    return tuple((key, array.dtype.str, array.shape[1:]) for key, array in arrays.items())


def _shape_of_item(item: Mapping[int | str, Any]) -> tuple[Any, ...]:
    return tuple((key, row.dtype.str, row.shape) for key, row in item.items())


def _length_of_item(item: Mapping[int | str, Any]) -> int:
    return max((len(row) for row in item.values() if row.ndim), default=0)


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()


class _Whole:
    """Work that was waited for on the lane."""

    def __init__(self, result: Any, seconds: float) -> None:
        self.result = result
        self.seconds = seconds

    def wait(self) -> None:
        """It has ended."""
