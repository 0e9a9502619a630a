"""The real GPU keeps what its stand-in promises; skipped where there is none. `scripts/gpu` measures it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from timebound.backends.ensemble import ensemble
from timebound.backends.torch import torch as network
from timebound.devices.base import adopt, current_device, settle_all, take_usage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Scores(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x.permute(0, 3, 1, 2).float() / 255).softmax(-1)


class Looks(Scores):
    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if y.sum().item() > 0 else -y


def pictures(count: int) -> Any:
    return np.random.default_rng(count).integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)


def settled(net: Any, most: int = 32) -> Any:
    net(pictures(1))
    settle_all(most, 2, lambda text: None)
    return net


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    adopt(None)


def test_an_ensemble_gives_what_it_gives_on_the_processor_in_many_threads() -> None:
    there = settled(ensemble(*[network(Scores(seed), device="cuda") for seed in range(3)]))
    here = ensemble(*[network(Scores(seed)) for seed in range(3)])
    assert there.notes() == []
    with ThreadPoolExecutor(6) as threads:
        for count, made in zip(range(1, 33), threads.map(there, map(pictures, range(1, 33))), strict=True):
            np.testing.assert_allclose(made, here(pictures(count)), atol=2e-3)
    stopped = there.run(pictures(9), lambda so_far: so_far.count < 2)
    np.testing.assert_allclose(stopped, here.run(pictures(9), lambda so_far: so_far.count < 2), atol=2e-3)


def test_pinned_rows_are_uploaded_and_device_time_is_told() -> None:
    there = settled(network(Scores(1), device="cuda"))
    device, area = current_device(), bytearray(32 * 32 * 32 * 3)
    assert device is not None
    device.pin(area)
    rows = np.frombuffer(area, np.uint8).reshape(32, 32, 32, 3)
    rows[:5] = pictures(5)
    take_usage()
    np.testing.assert_allclose(there(rows[:5]), network(Scores(1))(pictures(5)), atol=2e-3)
    assert 0 < take_usage().device_s < 1
    device.unpin(area)


def test_a_network_that_looks_at_numbers_runs_as_it_is_and_the_next_one_is_captured() -> None:
    looks = settled(network(Looks(1), device="cuda"))
    assert "runs without being captured" in looks.notes()[0]
    assert looks(pictures(3)).shape == (3, 16)
    assert settled(network(Scores(2), device="cuda")).notes() == []
