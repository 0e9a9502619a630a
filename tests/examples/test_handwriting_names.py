"""The handwriting example's names for characters that it does not answer with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from examples.handwriting.nets import CLASSES, KNOWN, MEMBERS, shares_of
from examples.handwriting.train import begin


def test_all_that_is_none_of_the_800_is_added_up_to_isnull() -> None:
    scores = torch.zeros(2, CLASSES["lite"])
    scores[1, KNOWN - 1] = 50.0
    shares = shares_of(scores)
    assert shares.shape == (2, KNOWN + 1)
    assert shares[0, -1].item() == pytest.approx(1201 / 2001, abs=1e-5)
    assert shares[1].argmax().item() == KNOWN - 1
    assert shares.sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)


def test_a_network_with_one_class_for_isnull_answers_the_same_once_it_is_taken_apart(tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = MEMBERS["lite"]().eval()
    state = whole.state_dict()
    state["head.weight"], state["head.bias"] = torch.randn(KNOWN + 1, 896), torch.randn(KNOWN + 1)
    torch.save(state, tmp_path / "lite.float.pt")
    apart = begin("lite", tmp_path).eval()
    picture = torch.rand(2, 1, 64, 64)
    with torch.no_grad():
        features = whole.norm(whole.places(whole.features(picture)).flatten(1))
        before = (features @ state["head.weight"].T + state["head.bias"]).softmax(1)
        after = shares_of(apart(picture))
    assert torch.allclose(before, after, atol=1e-5)
    assert before[:, -1].max() > 1e-6, "or nothing is shown about isnull"
