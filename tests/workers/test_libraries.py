"""What a saved profile was made on."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

import timebound as tb
from timebound.workers.libraries import made_on


class Plain(tb.Model):
    def infer(self, batch: Any) -> Any:
        return batch


class Torch(tb.Model):
    def load(self) -> None:
        self.net = tb.torch(lambda: torch.nn.Linear(2, 2), device="cpu")


def test_a_model_of_plain_python_is_made_on_the_cpu() -> None:
    assert made_on(Plain()) == "cpu"


def test_a_network_is_made_on_its_library_in_its_version() -> None:
    model = Torch()
    model.load()
    assert made_on(model) == f"cpu, torch {version('torch')}"
