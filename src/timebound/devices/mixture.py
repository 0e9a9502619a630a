"""The running combination of networks' outputs, computed on the device: mean, weighted mean or vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Mix:
    """How outputs are combined; exact for any number of networks done."""

    def __init__(self, weights: Sequence[float], *, is_vote: bool) -> None:
        self.weights = weights
        self.is_vote = is_vote

    def whole(self, outputs: Sequence[Any]) -> Any:
        """The combination of all."""
        total = self.share(outputs[0]) * self.weights[0]
        for output, weight in zip(outputs[1:], self.weights[1:], strict=True):
            total = total + self.share(output) * weight
        return total / sum(self.weights)

    def add(self, sums: Any, output: Any, place: int, *, is_first: bool) -> None:
        """Add one network's output to the sums so far."""
        if is_first:
            torch.mul(self.share(output), self.weights[place], out=sums)
        else:
            sums.add_(self.share(output), alpha=self.weights[place])

    def share(self, output: Any) -> Any:
        """What is summed up: the output, or a one for its largest class."""
        if not self.is_vote:
            return output.float()
        ballots = torch.zeros_like(output, dtype=torch.float32)
        return ballots.scatter_(-1, output.argmax(-1, keepdim=True), 1.0)
