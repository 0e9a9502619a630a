"""What can be said of a GPU without having one."""

from __future__ import annotations

import pytest

from timebound.devices import cuda
from timebound.errors import SetupError


def test_a_gpu_of_a_number_that_is_not_there_is_refused_though_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(SetupError, match="this machine has 1 CUDA device"):
        cuda.open_device("cuda:5")
