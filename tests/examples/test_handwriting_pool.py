"""What the handwriting example learns from: crops of forms beside clean pictures, and what was read in them before."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from examples.handwriting.data import Data
from examples.handwriting.mill import Mill
from examples.handwriting.nets import CLASSES, KNOWN
from examples.handwriting.pool import Pictures
from examples.handwriting.train import alone
from torch import Tensor, nn


class Bars:
    """Two characters: one bar across, which is the first of the 800, and one upright, which is the second."""

    device = torch.device("cpu")

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(size) % 2
        ink = torch.zeros(size, 1, 64, 64)
        ink[::2, :, 28:36, 5:59] = 1
        ink[1::2, :, 5:59, 28:36] = 1
        return ink, labels


def always_the_first(ink: Tensor) -> Tensor:
    """Half right: 0.7 for the bar across, the rest for the third."""
    shares = torch.zeros(len(ink), KNOWN + 1)
    shares[:, 0], shares[:, 2] = 0.7, 0.3
    return shares


def learned_from(**options: Any) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    pictures = Pictures(cast(Data, Bars()), Mill(1, 8, 3), share=0.5, room=64, **options)
    return pictures.batch(32)


def test_forms_stand_beside_clean_pictures_with_their_own_labels() -> None:
    ink, labels, taught = learned_from()
    assert ink.shape == (32, 1, 64, 64)
    assert not len(taught)
    rows, columns = ink[16:, 0].amax(2).sum(1), ink[16:, 0].amax(1).sum(1)
    assert ((columns > rows) == (labels[16:] == 0)).float().mean() > 0.8, (
        "a bar across is wider than high, on a form too"
    )


def test_what_was_read_before_a_form_came_goes_with_it_but_for_what_was_wrong() -> None:
    _, labels, taught = learned_from(wise=always_the_first)
    shares = taught.softmax(1)
    assert shares.shape == (32, KNOWN + 1)
    assert {0, 1} == set(labels[16:].tolist())
    for label, row in zip(labels.tolist(), shares, strict=True):
        assert row[label].item() == pytest.approx((0.7, 1.0)[label], abs=0.02)
        assert row[2].item() == pytest.approx((0.3, 0.0)[label], abs=0.02)


def test_a_network_with_names_learns_from_one_without() -> None:
    labels = torch.tensor([3, 1500])
    taught = nn.functional.one_hot(labels.clamp(max=KNOWN), KNOWN + 1).float() * 12
    right = nn.functional.one_hot(labels, CLASSES["lite"]).float() * 12
    wrong = right.roll(1, 0).requires_grad_()
    loss = alone(wrong, labels, taught)
    assert alone(right, labels, taught) < 0.1 < loss
    loss.backward()
    assert wrong.grad is not None
    assert (wrong.grad[torch.arange(2), labels] < 0).all()
