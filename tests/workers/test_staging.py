"""Rows in memory that processes share: what fits in them, and batches that are views of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from timebound.workers.runner import stack
from timebound.workers.staging import Area, Form, Rows

PICTURE = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def rows_of(*items: Any) -> Rows:
    form = Form.of(items[0])
    assert form is not None
    rows = form.rows(memoryview(bytearray(form.bytes(len(items)))), len(items))
    assert all(form.write(rows, place, item) for place, item in enumerate(items))
    return Rows(form, rows, 0, len(items))


@pytest.mark.parametrize(
    "item",
    [
        PICTURE,
        np.float32(0.5),
        {"picture": PICTURE, "weight": np.float64(2)},
        (PICTURE, np.zeros(3, np.float16), np.array([True, False])),
    ],
)
def test_a_batch_of_rows_is_what_stacking_the_items_gives(item: Any) -> None:
    rows = rows_of(item, item, item)
    for found, wanted in ((stack(rows), stack([item] * 3)), (stack(rows[1:]), stack([item] * 2))):
        np.testing.assert_equal(found, wanted)
    np.testing.assert_equal(rows[2], item)


@pytest.mark.parametrize(
    "item", ["text", b"bytes", [1, 2], {}, (), np.array(["text"]), np.array([object()]), {"a": "text"}, {1: PICTURE}]
)
def test_what_has_no_fixed_size_has_no_form(item: Any) -> None:
    assert Form.of(item) is None


@pytest.mark.parametrize("item", [PICTURE[:1], PICTURE.astype(np.int8), {"picture": PICTURE}, (PICTURE,), "text", None])
def test_an_item_of_another_form_is_not_written(item: Any) -> None:
    form = Form.of(PICTURE)
    assert form is not None
    rows = form.rows(memoryview(bytearray(form.bytes(1))), 1)
    assert not form.write(rows, 0, item)


def test_a_batch_is_a_view_of_its_rows() -> None:
    rows = rows_of(PICTURE, PICTURE)
    stack(rows)[1] = 7
    assert (rows[1] == 7).all()


def test_a_frame_is_received_where_the_bodies_can_be_found() -> None:
    area = Area()
    area.open(100, 1000)
    frame = area.receive(30)
    frame[20:] = b"0123456789"
    at = area.offset([frame[20:25], frame[25:30]])
    assert at is not None
    with open(area.file, "rb", closefd=False) as file:
        file.seek(at)
        assert file.read(10) == b"0123456789"
    area.close()


def test_a_frame_that_is_too_large_is_received_elsewhere() -> None:
    area = Area()
    area.open(100, 1000)
    frame = area.receive(1001)
    assert len(frame) == 1001
    assert area.offset([frame]) is None
    area.close()
