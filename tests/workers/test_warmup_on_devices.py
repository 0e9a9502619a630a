"""What the warm-up run finds out of networks on a device: where they are, whose batch sizes hold, what was captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import timebound as tb
from timebound.clock import MonotonicClock
from timebound.devices.base import adopt
from timebound.devices.host import HostDevice
from timebound.devices.lane import the_lane
from timebound.target import load_class
from timebound.types import ModelInfo
from timebound.workers.members import open_runner
from timebound.workers.messages import WorkerPlan
from timebound.workers.warmup import warm_up


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    adopt(the_lane().call(HostDevice))
    yield
    adopt(None)


def layer() -> Any:
    return torch.nn.Linear(2, 3)


class Ours(tb.Model):
    max_batch = 4
    deadline = 5.0
    example: ClassVar[Any] = {"numbers": [0.5, 1.0]}

    class Request(tb.Struct):
        numbers: list[float]

    def load(self) -> None:
        self.net = tb.torch(layer, device="host")

    def prepare(self, request: Any) -> Any:
        return np.array(request.numbers, np.float32)


def warm(cls: type[tb.Model], slots: int = 2) -> ModelInfo:
    clock = MonotonicClock()
    return warm_up(open_runner(load_class(cls), clock), clock, slots)


def test_an_infer_that_hands_whole_batches_to_its_network_has_the_networks_batch_sizes() -> None:
    class Whole(Ours):
        def infer(self, batch: Any) -> Any:
            return self.net(batch).round(3)

    info = warm(Whole)
    assert info.batch_sizes == [1, 2, 4]
    assert [len(seconds) for seconds in info.step_s] == [3]
    assert info.captured == "3 batch sizes captured, 1, 2, 4"


def test_an_infer_that_cuts_batches_or_calls_its_network_twice_has_none() -> None:
    class Cuts(Ours):
        def infer(self, batch: Any) -> Any:
            return np.concatenate([self.net(batch[:3]), *([self.net(batch[3:])] if len(batch) > 3 else [])])

    class Twice(Ours):
        def infer(self, batch: Any) -> Any:
            return self.net(batch) + self.net(batch[:, ::-1])

    for cls in (Cuts, Twice):
        info = warm(cls)
        assert (info.batch_sizes, info.step_s, info.device) == ([], [], "host")


def test_networks_of_any_name_count_as_what_they_were_opened_on() -> None:
    class Parts(Ours):
        def load(self) -> None:
            self.encoder = tb.torch(layer, device="host")
            self.decoder = tb.torch(lambda: torch.nn.Linear(3, 2), device="host")

        def infer(self, batch: Any) -> Any:
            return self.decoder(self.encoder(batch))

    info = warm(Parts)
    assert (info.device, info.depth) == ("host", 2)
    assert info.made_on.startswith("device host")
    assert info.captured == "3 batch sizes captured, 1, 2, 4"
    assert WorkerPlan(target="app.py", cores=8).wanted(2, [info]) == 1


def test_an_ensemble_with_a_member_on_a_device_is_on_the_device() -> None:
    class Mixed(Ours):
        def load(self) -> None:
            self.net = tb.ensemble(tb.torch(layer, device="host"), tb.torch(layer, device="cpu"))

    info = warm(Mixed)
    assert (info.device, info.depth, info.batch_sizes) == ("host", 2, [])


def test_texts_bring_the_seconds_of_every_length_in_the_size_of_their_requests() -> None:
    class Texts(Ours):
        pad = "numbers"
        example: ClassVar[Any] = {"numbers": [1.0] * 10}

        def load(self) -> None:
            self.net = tb.torch(lambda: torch.nn.Embedding(50, 2), device="host", longest=24)

        def prepare(self, request: Any) -> Any:
            return np.array(request.numbers, np.int64)

        def infer(self, batch: Any) -> Any:
            return self.net(batch["numbers"])

    info = warm(Texts)
    assert info.captured == "3 batch sizes captured, 1, 2, 4 at 4 lengths up to 24"
    assert info.batch_sizes == [1, 2, 4]
    assert [size for size, _ in info.grid_s] == pytest.approx([8, 12, 16, 24])
    assert all([len(seconds) for seconds in steps] == [3] for _, steps in info.grid_s)
    assert info.step_s == info.grid_s[1][1]


def test_what_cannot_be_captured_is_not_said_to_be_captured() -> None:
    class Looking(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum().item() >= 0 else x

    class Looks(Ours):
        def load(self) -> None:
            self.net = tb.ensemble(tb.torch(Looking, device="host"), tb.torch(torch.nn.ReLU, device="host"))

    info = warm(Looks)
    assert info.captured == "3 batch sizes captured, 1, 2, 4 for 1 of 2 networks"
    assert "Looking runs without being captured" in info.notes[0]
