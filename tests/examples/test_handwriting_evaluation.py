"""What the handwriting networks are judged by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from examples.handwriting.crops import KINDS, PILE, Characters, draw_crops
from examples.handwriting.evaluate import ISNULL, Test, _small, said
from examples.handwriting.nets import KNOWN

from timebound.demo.app import CLEAN_NONE, FORM_NONE

Test.__test__ = False  # type: ignore[attr-defined] # pytest would collect it by its name


def test_small_scans_are_the_same_pictures_with_less_detail() -> None:
    ink = np.zeros((1, 1, 64, 64), np.float32)
    ink[0, 0, 5:59, 31:33] = ink[0, 0, 31:33, 5:59] = 1.0  # a cross that fills the frame
    ink[0, 0, 10:20, 10:20:2] = 1.0  # lines nearer than a small scan can tell apart
    small = _small(Test("test", ink, np.zeros(1, int), np.ones(1, bool)))
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


def test_isnull_takes_more_of_a_form_than_of_a_clean_picture() -> None:
    rows = np.zeros((2, 801), np.float32)
    rows[:, 5], rows[:, ISNULL] = 0.3, 0.7
    assert said(rows, np.array([CLEAN_NONE, FORM_NONE])).tolist() == [ISNULL, 5]


@pytest.fixture(scope="module")
def piles() -> list[Characters]:
    """Three characters that are known and one that is not, as faces and hands have them."""
    ink = np.zeros((4, 64, 64), np.uint8)
    for turn in range(4):
        ink[turn, 10:54, 12 + 6 * turn : 18 + 6 * turn] = ink[turn, 30:36, 8:56] = 255
    return [Characters(torch.tensor(ink), torch.tensor([3, 4, 5, KNOWN]))] * 4


def test_crops_to_judge_by_are_the_same_for_the_same_seed(piles: list[Characters]) -> None:
    first, again, other = (draw_crops(piles, seed, 40) for seed in (1, 1, 2))
    assert first.ink.shape == (40, 1, 64, 64)
    assert np.array_equal(first.ink, again.ink)
    assert not np.array_equal(first.ink, other.ink)
    assert 0 <= first.ink.min() < first.ink.max() <= 1
    assert (first.took_s > 0).all()


def test_every_pile_of_crops_has_the_same_shares(piles: list[Characters]) -> None:
    """A fifth are faces, and a fifth of each pile are others: chance does not decide how many."""
    faces, *hands = [Characters(pile.pictures, pile.labels.clamp(max=KNOWN)) for pile in piles]
    named = [
        Characters(hand.pictures, torch.where(hand.labels == KNOWN, KNOWN, 10 * turn))
        for turn, hand in enumerate(hands)
    ]
    labels = draw_crops([faces, *named], 1, 100).labels.tolist()
    assert [labels.count(label) for label in (0, 10, 20, KNOWN)] == [21, 21, 22, 20]
    more = draw_crops(piles, 5, PILE + 50)
    assert [(part == KNOWN).sum() for part in (more.labels[:PILE], more.labels[PILE:])] == [PILE // 5, 10]


def test_varied_crops_are_printed_crossed_out_or_empty_at_times(piles: list[Characters]) -> None:
    crops = draw_crops(piles, 1, 300, varied=True)
    for kind, is_other in ((1, False), (2, True), (3, True)):
        rows = crops.kinds == kind
        assert rows.any(), KINDS[kind]
        assert ((crops.labels[rows] == KNOWN) == is_other).all()
    assert not draw_crops(piles, 1, 100).kinds.any()
