"""The ladder: which shapes are captured, and which one a batch is padded to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timebound.devices.ladder import batch_steps, few_steps, length_steps, up


def test_steps_are_fine_where_large_batches_earn_most() -> None:
    assert batch_steps(128) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    assert batch_steps(100) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 100]
    assert batch_steps(1) == [1]
    assert batch_steps(384)[-4:] == [240, 256, 320, 384]


@given(st.integers(1, 1024), st.data())
def test_every_batch_finds_a_step_that_wastes_less_than_half(top: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, top))
    step = up(batch_steps(top), size)
    assert step is not None
    assert size <= step < 2 * size or step <= 2


def test_a_compiler_gets_fewer_steps() -> None:
    assert few_steps(128) == [1, 8, 32, 64, 128]
    assert few_steps(10) == [1, 8, 10]
    assert few_steps(512) == [1, 8, 32, 64, 128, 256, 512]


def test_lengths_have_two_steps_to_each_doubling() -> None:
    assert length_steps(100) == [8, 12, 16, 24, 32, 48, 64, 96, 100]
    assert length_steps(5) == [5]


def test_what_is_above_the_ladder_has_no_step() -> None:
    assert up([1, 2, 4], 5) is None
