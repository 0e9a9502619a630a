"""GPUs in the metrics: read in a thread of their own, and only when somebody scrapes."""

from __future__ import annotations

from tests.live.serving import eventually

from timebound.events import Events
from timebound.machine.nvml import Card
from timebound.observe.gpus import GpuNumbers
from timebound.observe.metrics import Metrics


class Two:
    """Two GPUs; how often they were read."""

    def __init__(self) -> None:
        self.names = ["0", "3"]
        self.reads = 0
        self.is_there = True

    def read(self) -> list[Card]:
        self.reads += 1
        if not self.is_there:
            raise OSError("the driver is gone")
        return [Card("a", 0.25, 10, 100), Card("b", 0.5, 20, 200)]


def test_each_gpu_is_shown_as_it_was_read_last() -> None:
    cards = Two()
    metrics = Metrics(Events(), {}, gpus=GpuNumbers(cards))
    eventually(lambda: cards.reads, "the first look")
    eventually(lambda: b'timebound_gpu_busy_ratio{gpu="3"} 0.5' in metrics.render()[0], "what it saw")
    text = metrics.render()[0].decode()
    assert 'timebound_gpu_memory_used_bytes{gpu="0"} 10.0' in text
    assert 'timebound_gpu_memory_bytes{gpu="3"} 200.0' in text


def test_gpus_that_cannot_be_read_are_not_shown() -> None:
    cards = Two()
    metrics = Metrics(Events(), {}, gpus=GpuNumbers(cards))
    eventually(lambda: b'gpu="0"' in metrics.render()[0], "the first look")
    cards.is_there = False
    eventually(lambda: b'gpu="0"' not in metrics.render()[0], "their leaving")
