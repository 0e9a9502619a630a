"""What the handwriting networks are judged by."""

from __future__ import annotations

import numpy as np
from examples.handwriting.evaluate import ISNULL, Test, _small, said

Test.__test__ = False  # type: ignore[attr-defined] # pytest would collect it by its name


def test_small_scans_are_the_same_pictures_with_less_detail() -> None:
    ink = np.zeros((1, 1, 64, 64), np.float32)
    ink[0, 0, 5:59, 31:33] = ink[0, 0, 31:33, 5:59] = 1.0  # a cross that fills the frame
    ink[0, 0, 10:20, 10:20:2] = 1.0  # lines nearer than a small scan can tell apart
    small = _small(Test("test", ink, np.zeros(1, int)))
    assert small.name == "test, small"
    assert small.ink.shape == ink.shape
    assert np.corrcoef(small.ink[0, 0, 25:].ravel(), ink[0, 0, 25:].ravel())[0, 1] > 0.8
    assert ink[0, 0, 15, 10:20].std() > 0.4
    assert small.ink[0, 0, 15, 11:19].std() < 0.2


def test_answers_are_judged_by_the_served_rule() -> None:
    rows = np.zeros((3, 801), np.float32)
    rows[0, 5], rows[0, ISNULL] = 0.3, 0.6
    rows[1, 5], rows[1, ISNULL] = 0.1, 0.9
    rows[2, 7] = 1.0
    assert said(rows, 0.7).tolist() == [5, ISNULL, 7]
    assert said(rows, 0.5).tolist() == [ISNULL, ISNULL, 7]
