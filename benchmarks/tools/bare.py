"""The bare loop: the same work without any server, which is what a server's figures are held against."""

import argparse
import json
import multiprocessing as mp
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.texts import TEXT_MODEL_FILE, encode, load_texts, pad, read
from benchmarks.tools.workload import (
    ECHO_VALUES,
    MODEL_FILES,
    decode,
    default_folder,
    load_samples,
    mean_scores,
    open_sessions,
)

# One call of a step does `batch` items.
Step = Callable[[int], None]

CORES = 2
BEST_BATCH = 8


@dataclass(frozen=True)
class Pace:
    """What one loop reached: items per second and the time of each step in ms."""

    rate: float
    p50_ms: float
    p99_ms: float


def ensemble_step(folder: Path) -> Step:
    """Decode and classify the next pictures, as one batch; wrong answers raise."""
    sessions = open_sessions([folder / name for name in MODEL_FILES])
    samples = load_samples(folder)
    position = 0

    def step(batch: int) -> None:
        nonlocal position
        chosen = [samples[(position + offset) % len(samples)] for offset in range(batch)]
        position += batch
        scores = mean_scores(sessions, np.stack([decode(sample.image) for sample in chosen]))
        answers = [int(row.argmax()) for row in scores]
        if answers != [sample.answer for sample in chosen]:
            raise RuntimeError("the bare loop gave a wrong answer; delete the cache folder and build again")

    return step


def text_step(folder: Path) -> Step:
    """Answer the next texts, padded to one batch; wrong answers raise."""
    session = open_sessions([folder / TEXT_MODEL_FILE])[0]
    samples = load_texts(folder)
    position = 0

    def step(batch: int) -> None:
        nonlocal position
        chosen = [samples[(position + offset) % len(samples)] for offset in range(batch)]
        position += batch
        feed = pad([encode(sample.text) for sample in chosen])
        rows = session.run(None, feed)[0]
        if [read(row, len(sample.text)) for row, sample in zip(rows, chosen, strict=True)] != [
            s.answer for s in chosen
        ]:
            raise RuntimeError("the bare loop gave a wrong answer; delete the cache folder and build again")

    return step


def echo_step() -> Step:
    """Read a JSON body, sum it, write the answer."""
    body = json.dumps({"values": ECHO_VALUES}).encode()

    def step(batch: int) -> None:
        for _ in range(batch):
            json.dumps({"sum": sum(json.loads(body)["values"])}).encode()

    return step


def run_loop(step: Step, batch: int, seconds: float) -> Pace:
    """Repeat the step for that long."""
    durations: list[float] = []
    started = now = time.perf_counter()
    while now - started < seconds:
        step(batch)
        before, now = now, time.perf_counter()
        durations.append((now - before) * 1000)
    durations.sort()
    return Pace(
        rate=len(durations) * batch / (now - started),
        p50_ms=median(durations),
        p99_ms=durations[int(len(durations) * 0.99)],
    )


def _serve(orders: Connection, build: Callable[[], Step]) -> None:
    """A child's life: wait for (batch, seconds), run, send the pace; ends when the parent closes or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    step = build()
    step(1)
    step(BEST_BATCH)
    orders.send("ready")
    while True:
        try:
            batch, seconds = orders.recv()
        except EOFError:
            return
        orders.send(run_loop(step, batch, seconds))


class BareLoop:
    """One process per core, idle between measurements; each one builds its step itself."""

    def __init__(self, build: Callable[[], Step]) -> None:
        self._build = build
        self._children: list[tuple[Any, Connection]] = []

    def __enter__(self) -> "BareLoop":
        context = mp.get_context("spawn")
        for _ in range(CORES):
            here, there = context.Pipe()
            child = context.Process(target=_serve, args=(there, self._build), daemon=True)
            child.start()
            there.close()
            self._children.append((child, here))
        for _, orders in self._children:
            orders.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for child, orders in self._children:
            orders.close()
            child.terminate()
            child.join()

    def alone(self, seconds: float) -> Pace:
        """Batch 1 on one core: what a lone request costs without a server."""
        return self._run(1, 1, seconds)[0]

    def ceiling(self, seconds: float, batch: int = BEST_BATCH) -> Pace:
        """All cores at the best batch size: the most that a server could reach."""
        paces = self._run(CORES, batch, seconds)
        return Pace(
            rate=sum(pace.rate for pace in paces),
            p50_ms=median(pace.p50_ms for pace in paces),
            p99_ms=max(pace.p99_ms for pace in paces),
        )

    def _run(self, cores: int, batch: int, seconds: float) -> list[Pace]:
        chosen = self._children[:cores]
        for _, orders in chosen:
            orders.send((batch, seconds))
        return [orders.recv() for _, orders in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=default_folder(), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure; default: %(default)s")
    options = parser.parse_args()
    with BareLoop(partial(ensemble_step, options.models)) as loop:
        alone = loop.alone(options.seconds)
        print(f"ensemble, one core, batch 1: {alone.rate:.1f}/s, p50 {alone.p50_ms:.2f} ms")
        for batch in (1, 2, 4, 8, 16):
            print(f"ensemble, {CORES} cores, batch {batch}: {loop.ceiling(options.seconds, batch).rate:.1f}/s")
    with BareLoop(echo_step) as loop:
        print(f"echo, one core: {loop.alone(options.seconds).rate:.0f}/s")


if __name__ == "__main__":
    main()
