"""The stand-in for a GPU is as late and as strict as one where mistakes would hide."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from timebound.devices.host import HostDevice, OutOfMemory
from timebound.errors import DeviceLost


def buffer(device: HostDevice, *shape: int) -> Any:
    return device.empty(shape, torch.float32)


def test_a_replay_runs_later_and_only_with_what_is_in_the_captured_inputs() -> None:
    device = HostDevice()
    x = buffer(device, 4, 2)
    graph = device.capture(lambda: x * 2, [x])
    device.gate.clear()
    device.launch(lambda: _fill(x, 3.0))
    device.replay(graph, 4)
    assert graph.outputs.isnan().all()
    device.gate.set()
    device.mark().wait()
    assert (graph.outputs == 6.0).all()


def _fill(tensor: Any, value: float) -> None:
    tensor.fill_(value)


def test_padded_rows_are_poisoned_before_a_replay() -> None:
    device = HostDevice()
    x = buffer(device, 4, 2)
    graph = device.capture(lambda: x + 1, [x])
    device.launch(lambda: _fill(x, 1.0))
    device.replay(graph, 3)
    device.mark().wait()
    assert (graph.outputs[:3] == 2.0).all()
    assert graph.outputs[3].isnan().all()


def test_a_replay_writes_over_what_other_graphs_have_left() -> None:
    device = HostDevice()
    x = buffer(device, 4, 2)
    first, second = (device.capture(work, [x]) for work in (lambda: x + 1, lambda: x + 2))
    device.launch(lambda: _fill(x, 1.0))
    device.replay(first, 4)
    device.replay(second, 4)
    device.mark().wait()
    assert first.outputs.isnan().all()
    assert (second.outputs == 3.0).all()


def test_branches_do_not_run_in_the_order_in_which_they_are_given() -> None:
    device, order = HostDevice(), list[int]()
    x = buffer(device, 2)

    def branch(number: int) -> Any:
        order.append(number)
        return x + number

    graph = device.capture(lambda: device.branches([partial(branch, number) for number in range(3)]), [x])
    assert order == [2, 1, 0]
    device.launch(lambda: _fill(x, 1.0))
    device.replay(graph, 2)
    device.mark().wait()
    assert [float(output[0]) for output in graph.outputs] == [1.0, 2.0, 3.0]


def test_what_is_on_its_way_is_poison_until_its_mark_is_past() -> None:
    device = HostDevice()
    target = buffer(device, 3)
    device.gate.clear()
    mark = device.upload(torch.ones(3), target)
    assert target.isnan().all()
    assert not mark.is_past()
    device.gate.set()
    mark.wait()
    assert (target == 1.0).all()


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x * 2 if x.sum() > 0 else x,
    ],
)
def test_what_needs_a_number_of_the_device_cannot_be_captured(forbidden: Callable[[Any], Any]) -> None:
    device = HostDevice()
    x = buffer(device, 2)
    with pytest.raises(RuntimeError, match="not permitted while capturing"):
        device.capture(lambda: forbidden(x), [x])
    device.capture(lambda: x + 1, [x])  # and the next one can


def test_nothing_else_happens_on_the_device_during_a_capture() -> None:
    device = HostDevice()
    x = buffer(device, 2)
    for also in (device.mark, lambda: device.capture(lambda: x, [x]), lambda: buffer(device, 1)):
        with pytest.raises(RuntimeError, match="not permitted while capturing"):
            device.capture(also, [x])


def test_only_the_thread_that_opened_it_captures_and_replays() -> None:
    device = HostDevice()
    x = buffer(device, 2)
    refused: list[str] = []

    def elsewhere() -> None:
        for work in (lambda: device.capture(lambda: x, [x]), lambda: device.compute(lambda: None)):
            try:
                work()
            except RuntimeError as error:
                refused.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(refused) == 2


def test_memory_runs_out_where_it_is_told_to() -> None:
    device = HostDevice(rooms={"capture": 2})
    x = buffer(device, 4)
    with pytest.raises(OutOfMemory):
        device.capture(lambda: x, [x])
    assert device.capture(lambda: x[:2], [x[:2]])


def test_an_error_in_a_kernel_takes_the_device_with_it() -> None:
    device = HostDevice()
    device.launch(lambda: _fill(torch.ones(2).view(3), 1.0))
    with pytest.raises(DeviceLost, match="the device failed"):
        device.mark().wait()
    with pytest.raises(DeviceLost):
        device.check(RuntimeError("next"))


def test_memory_that_was_pinned_is_known_by_its_address() -> None:
    device, area = HostDevice(), bytearray(1000)
    whole = np.frombuffer(area, np.uint8)
    device.pin(area)
    assert device.is_pinned(whole.ctypes.data + 100, 900)
    assert not device.is_pinned(whole.ctypes.data + 101, 900)
    device.unpin(area)
    assert not device.is_pinned(whole.ctypes.data, 1)
