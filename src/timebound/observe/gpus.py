"""How busy and how full the GPUs are, for metrics and the live page: read by a thread of its own when they ask."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

log = logging.getLogger("timebound.metrics")


class Card(Protocol):
    """One GPU at one moment."""

    @property
    def busy(self) -> float: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


class Cards(Protocol):
    """Who reads them, slowly."""

    names: list[str]

    def read(self) -> Sequence[Card]: ...


class GpuNumbers(Collector):
    """Shows what was read last; whoever looks has them read again, for who looks next."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._last: Sequence[Card] = ()
        self._asked = threading.Event()
        self._asked.set()  # the first look finds something
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    @property
    def names(self) -> list[str]:
        """Of the GPUs that are read."""
        return self._cards.names

    def read(self) -> list[tuple[str, Card]]:
        """Each GPU by its name, as it was read last; they are read again, for who asks next."""
        self._asked.set()
        return list(zip(self._cards.names, self._last, strict=False))

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                self._last = self._cards.read()
            except Exception as error:  # the driver's; it may come back
                self._last = ()
                log.debug("the GPUs cannot be read: %s", error)

    def collect(self) -> Iterator[Metric]:
        busy = GaugeMetricFamily("timebound_gpu_busy_ratio", "Share of time in which a GPU computes.", labels=["gpu"])
        used = GaugeMetricFamily("timebound_gpu_memory_used_bytes", "Memory of a GPU in use.", labels=["gpu"])
        total = GaugeMetricFamily("timebound_gpu_memory_bytes", "Memory of a GPU.", labels=["gpu"])
        for name, card in self.read():
            busy.add_metric([name], card.busy)
            used.add_metric([name], card.used_bytes)
            total.add_metric([name], card.total_bytes)
        yield from (busy, used, total)
