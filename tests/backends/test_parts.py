"""How batches of a network are cut: by what a part takes, on a clock that each computed item moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.onnx_files import save_doubler, save_sum_and_difference

from timebound.backends.onnx import onnx
from timebound.backends.parts import Parts
from timebound.clock import ManualClock


class Network:
    """Takes as long as it is told for a part, and remembers the parts of its last batch."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self._clock = ManualClock()
        self.parts = Parts(self._clock)
        self.cut: list[tuple[int, int]] = []

    def run(self, count: int, times: int = 1) -> list[int]:
        """Run batches of so many items; the sizes of the last one's parts."""
        for _ in range(times):
            self.cut = []
            self.parts.run(count, self._compute)
            assert all(start < end for start, end in self.cut)
            assert [start for start, _ in self.cut] == [0, *(end for _, end in self.cut[:-1])]
            assert self.cut[-1][1] == count
        return [end - start for start, end in self.cut]

    def _compute(self, start: int, end: int) -> None:
        self.cut.append((start, end))
        self._clock.advance(self._seconds(end - start))


def of_pictures(count: int) -> float:
    return 0.001 + 0.005 * count + (0.0005 * (count - 12) if count > 12 else 0)


def of_small_rows(count: int) -> float:
    return 0.003 + 0.00001 * count


def test_a_network_that_gains_nothing_from_more_items_at_once_runs_small_parts() -> None:
    network = Network(of_pictures)
    network.run(25, times=4)
    assert network.run(25) == [8, 8, 9]
    assert max(network.run(64)) == 8


def test_a_small_batch_is_never_cut() -> None:
    network = Network(of_pictures)
    network.run(25, times=4)
    assert network.run(1) == [1]
    assert network.run(11) == [11]


def test_a_network_whose_weights_are_what_takes_long_soon_runs_whole_batches() -> None:
    network = Network(of_small_rows)
    network.run(64, times=12)
    assert network.run(63) == [63]


@pytest.mark.parametrize("count", [12, 15, 20])
def test_small_batches_suffice_to_find_that_out(count: int) -> None:
    network = Network(of_small_rows)
    network.run(count, times=4)
    assert network.run(count) == [count]


def test_a_network_that_was_misjudged_is_judged_anew() -> None:
    is_misled = [True]
    network = Network(lambda count: of_pictures(count) if is_misled[0] else of_small_rows(count))
    network.run(32, times=4)
    assert len(network.run(32)) == 4
    is_misled[0] = False
    network.run(32, times=500)
    assert network.run(31) == [31]


def test_a_failure_in_the_first_comparison_does_not_keep_others_from_comparing() -> None:
    network = Network(of_small_rows)

    def fail(start: int, end: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        network.parts.run(64, fail)
    network.run(64, times=12)
    assert network.run(63) == [63]


@pytest.mark.parametrize("save", [save_doubler, save_sum_and_difference])
def test_a_file_gives_the_same_outputs_in_parts(tmp_path: Path, save: Any) -> None:
    net = onnx(save(tmp_path / "net.onnx"))
    width = net.inputs[0].shape[1] or 1
    given = {spec.name: np.arange(61 * width, dtype=np.float32).reshape(61, width) for spec in net.inputs}
    one_by_one = [net({name: rows[row : row + 1] for name, rows in given.items()}) for row in range(61)]
    for _ in range(6):
        outputs = net(given)
        if isinstance(outputs, dict):
            for name, output in outputs.items():
                np.testing.assert_array_equal(output, np.concatenate([each[name] for each in one_by_one]))
        else:
            np.testing.assert_array_equal(outputs, np.concatenate(one_by_one))
