"""Several members answering together: mean, weighted mean or vote, exact for any number of members done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from timebound.backends.base import Backend, TensorSpec
from timebound.backends.python import PythonBackend
from timebound.errors import SetupError

_COMBINES = ("mean", "weighted", "vote")


class Ensemble:
    """Runs its members one after another on the same batch and combines their outputs.

    `mean` and `weighted` average the outputs; `vote` gives each class the share of members whose
    largest output it is. Members must agree in output shape: an array of one row per item.
    """

    kind = "ensemble"

    def __init__(
        self,
        members: Sequence[Backend | Callable[[Any], Any]],
        *,
        combine: str = "mean",
        weights: Sequence[float] | None = None,
    ) -> None:
        if not members:
            raise SetupError("ensemble() needs at least one member")
        if combine not in _COMBINES:
            raise SetupError(f"ensemble(combine={combine!r}) is unknown; choose one of {', '.join(_COMBINES)}")
        self.members = [m if isinstance(m, Backend) else PythonBackend(m) for m in members]
        self.combine = combine
        self.weights = _checked_weights(combine, weights, len(members))
        self.parallel = all(member.parallel for member in self.members)
        self.inputs: Sequence[TensorSpec] = self.members[0].inputs

    def __call__(self, batch: Any) -> Any:
        mixture = Mixture(self.combine)
        for member, weight in zip(self.members, self.weights, strict=True):
            mixture.add(member(batch), weight)
        return mixture.value()


class Mixture:
    """The running combination: `value()` is exact for the members added so far."""

    def __init__(self, combine: str) -> None:
        self._vote = combine == "vote"
        self._sum: Any = None
        self._weight = 0.0
        self.count = 0

    def add(self, output: Any, weight: float = 1.0) -> None:
        """Add one member's output: an array with one row per item."""
        rows = np.asarray(output)
        share = _ballots(rows) if self._vote else rows
        if self._sum is None:
            self._sum = share * np.asarray(weight, dtype=share.dtype)
        elif self._sum.shape != share.shape:
            raise ValueError(
                f"member {self.count + 1} gave shape {rows.shape}, the first gave {self._sum.shape}; "
                "members of an ensemble must agree"
            )
        else:
            self._sum += share * np.asarray(weight, dtype=share.dtype)
        self._weight += weight
        self.count += 1

    def value(self) -> Any:
        """The combination of what was added; a fresh array."""
        return self._sum / np.asarray(self._weight, dtype=self._sum.dtype)


def ensemble(
    *members: Backend | Callable[[Any], Any], combine: str = "mean", weights: Sequence[float] | None = None
) -> Ensemble:
    """Combine members (backends or callables) by "mean", "weighted" (give `weights`) or "vote"."""
    return Ensemble(members, combine=combine, weights=weights)


def _ballots(rows: Any) -> Any:
    if rows.ndim < 2:
        raise ValueError(f"vote needs one row of class scores per item, but a member gave shape {rows.shape}")
    ballots = np.zeros(rows.shape, dtype=np.float32)
    np.put_along_axis(ballots, rows.argmax(axis=-1, keepdims=True), 1.0, axis=-1)
    return ballots


def _checked_weights(combine: str, weights: Sequence[float] | None, count: int) -> list[float]:
    if combine != "weighted":
        if weights is not None:
            raise SetupError(f'ensemble(combine={combine!r}) takes no weights; use combine="weighted"')
        return [1.0] * count
    if weights is None or len(weights) != count:
        raise SetupError(f"ensemble of {count} members needs {count} weights, got {weights!r}")
    if any(not w > 0 for w in weights):
        raise SetupError(f"weights must be above zero, got {list(weights)!r}")
    return [float(w) for w in weights]
