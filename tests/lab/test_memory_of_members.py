from __future__ import annotations

import numpy as np
import pytest

import timebound as tb
from timebound.lab.memory import drop_members


class Member:
    def __init__(self, mib: int) -> None:
        self.weights = np.ones(mib << 17)  # eight bytes each

    def __call__(self, batch: list[int]) -> list[float]:
        return [float(self.weights[0]) for _ in batch]


def test_each_member_of_an_ensemble_takes_what_its_weights_take() -> None:
    net = tb.ensemble(Member(8), Member(40), names=["small", "large"])
    taken = drop_members(net)
    assert taken == {"small": pytest.approx(8, abs=3), "large": pytest.approx(40, abs=3)}


def test_what_is_no_ensemble_has_no_members_to_drop() -> None:
    net = Member(1)
    assert drop_members(net) == {}
    assert net([1]) == [1.0]
