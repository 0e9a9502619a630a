"""Crops of forms by the thousand: processes draw characters on forms and prepare them as the served model does."""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from examples.handwriting.forms import PLAIN, Crop, Odds, draw_form

from timebound.demo.picture import read_picture

Bytes = npt.NDArray[np.uint8]
SIDE = 64


def prepared(characters: Bytes, seed: int) -> Bytes:
    """Each character [n, 64, 64] on a form of its own among others of these, as `read_picture` gives it."""
    out = np.empty_like(characters)
    for place, crop in enumerate(crops_of(characters, seed)):
        out[place] = read_picture(crop.picture) * 255
    return out


def crops_of(characters: Bytes, seed: int | list[int], odds: Odds = PLAIN) -> Iterator[Crop]:
    """Each character [n, 64, 64] on a form of its own among others of these."""
    seeds = seed if isinstance(seed, list) else [seed]
    chance = np.random.default_rng(seed)
    others = chance.integers(0, len(characters), (len(characters), 4))
    for place, character in enumerate(characters):
        yield draw_form(character, characters[others[place]], [*seeds, place], odds)


class _Hand(NamedTuple):
    """One process: the pipe to it, and the memory that both see."""

    pipe: Connection
    given: Bytes
    made: Bytes
    label: list[Any]


class Mill:
    """Processes that draw while the GPU learns. Make it before CUDA is touched: they are forks of this process."""

    def __init__(self, processes: int, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed * 1_000_000
        context = multiprocessing.get_context("fork")
        self._hands: list[_Hand] = []
        for _ in range(processes):
            given, made = (_shared(size) for _ in range(2))
            ours, theirs = context.Pipe()
            context.Process(target=_work, args=(theirs, given, made), daemon=True).start()
            theirs.close()
            self._hands.append(_Hand(ours, given, made, []))
        self._idle = list(self._hands)

    def idle(self) -> int:
        """How many processes wait for characters."""
        return len(self._idle)

    def give(self, characters: Bytes, label: Any) -> None:
        """Characters [size, 64, 64] for a process that is idle; `label` comes back with them."""
        hand = self._idle.pop()
        hand.given[:] = characters
        hand.label.append(label)
        self._seed += 1
        hand.pipe.send(self._seed)

    def take(self, timeout_s: float) -> list[tuple[Bytes, Any]]:
        """What is done by now; waits so long if nothing is. The pictures must be copied before `give` is called."""
        busy = {hand.pipe: hand for hand in self._hands if hand.label}
        done: list[tuple[Bytes, Any]] = []
        if not busy:
            return done
        for pipe in wait(list(busy), timeout_s):
            hand = busy[pipe]  # type: ignore[index] # only these were waited for
            hand.pipe.recv()
            self._idle.append(hand)
            done.append((hand.made, hand.label.pop()))
        return done


def _shared(size: int) -> Bytes:
    """Memory that a fork shares, without a limit such as that of /dev/shm."""
    return np.frombuffer(mmap.mmap(-1, size * SIDE * SIDE), np.uint8).reshape(size, SIDE, SIDE)


def _work(pipe: Connection, given: Bytes, made: Bytes) -> None:
    try:
        while True:
            seed = pipe.recv()
            made[:] = prepared(given, seed)
            pipe.send(None)
    except (EOFError, KeyboardInterrupt):
        return
