"""Whether an `infer` of a class hands whole batches to the network: then the network's batch sizes are its own, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from timebound.model import Model


class Hearing:
    """What the network heard while `infer` ran."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, list[int | None]]] = []

    def begin(self, count: int) -> None:
        """`infer` gets a batch of so many items now."""
        self._runs.append((count, []))

    def heard(self, batch: Any) -> None:
        """The network was called with this."""
        if self._runs:
            self._runs[-1][1].append(_rows(batch))

    @property
    def is_whole(self) -> bool:
        """Whether each batch came to the network whole, once."""
        return bool(self._runs) and all(heard == [count] for count, heard in self._runs)


@contextmanager
def hearing(model: Model) -> Iterator[Hearing]:
    """Stand between a model and its `net` inside the `with` block; a network that it reaches otherwise is not heard."""
    found, net = Hearing(), model.net
    model.net = _Between(net, found)
    try:
        yield found
    finally:
        model.net = net


class _Between:
    def __init__(self, net: Any, hearing: Hearing) -> None:
        self._net = net
        self._hearing = hearing

    def __call__(self, batch: Any) -> Any:
        self._hearing.heard(batch)
        return self._net(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)


def _rows(batch: Any) -> int | None:
    if isinstance(batch, Mapping | tuple):
        rows = {_rows(part) for part in (batch.values() if isinstance(batch, Mapping) else batch)}
        return rows.pop() if len(rows) == 1 else None
    try:
        return len(batch)
    except TypeError:
        return None
