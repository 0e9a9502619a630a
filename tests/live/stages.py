"""A server whose processes tell each step of their lives, and can be held at any of them and killed there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from tests.live.serving import MODELS, Serving, eventually


class Stages:
    """`tests/models/steps.py` with this folder to tell its steps in, and to find its gates in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.say("one")
        (folder / "told").touch()

    def say(self, word: str) -> None:
        """What the code says in its answers from the next load on."""
        (self.folder / "word").write_text(word)

    def serve(self, *flags: str, workers: int = 2, until_ready: bool = True, fetches: bool = False) -> Serving:
        """A server of it; with a fetcher, if it `fetches`."""
        return Serving(
            MODELS / "steps.py",
            "--workers",
            str(workers),
            *flags,
            environment={"STEPS": str(self.folder), **({"STEPS_FETCHES": "yes"} if fetches else {})},
            until_ready=until_ready,
        )

    @contextmanager
    def held(self, step: str) -> Iterator[Callable[[], None]]:
        """Everybody who comes to this step waits there, until the block ends or what it gives is called."""
        gate = self.folder / step
        gate.touch()
        try:
            yield lambda: gate.unlink(missing_ok=True)
        finally:
            gate.unlink(missing_ok=True)

    def let_through(self, pid: int) -> None:
        """Let this one go on, past whatever gate; everybody else is held as before."""
        (self.folder / f"pass-{pid}").touch()

    def reached(self, step: str) -> list[int]:
        """The processes that have come to this step, in order."""
        lines = [line.split() for line in (self.folder / "told").read_text().splitlines()]
        return [int(pid) for pid, name in lines if name == step]

    def await_step(self, step: str, after: list[int]) -> int:
        """The first process to come to this step that is not among `after`."""
        return eventually(lambda: [pid for pid in self.reached(step) if pid not in after], f"somebody at {step}")[0]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def up(serving: Serving, generation: int | None = None) -> list[int]:
    """The workers that take batches, by their process."""
    return [
        worker["pid"]
        for worker in serving.workers()
        if worker["is_up"]
        and not worker["is_understudy"]
        and not worker["is_leaving"]
        and generation in (None, worker["generation"])
    ]


def at_the_door(serving: Serving, generation: int) -> list[int]:
    """Workers that have reported ready and were not let in yet."""
    return [
        worker["pid"]
        for worker in serving.workers()
        if worker["generation"] == generation and worker["slots"] and not worker["is_up"]
    ]


def beside(serving: Serving, role: str, generation: int) -> int:
    """The process of this role; 0 before it is started."""
    found = [w["pid"] for w in serving.workers() if w["role"] == role and w["generation"] == generation and w["pid"]]
    return int(found[0]) if found else 0


def understudy(serving: Serving, generation: int) -> int:
    """The understudy's process; 0 before it is started."""
    return beside(serving, "understudy", generation)


def settle(serving: Serving, workers: int, generation: int, *, others: int = 1) -> None:
    """Return when there are exactly so many workers, of that generation, and nobody else but who stands beside them."""

    def is_settled() -> bool:
        everybody = serving.workers()
        is_whole = len(everybody) == workers + others and all(w["is_up"] and not w["is_leaving"] for w in everybody)
        return is_whole and {w["generation"] for w in everybody} == {generation}

    eventually(is_settled, f"{workers} workers of generation {generation} and {others} beside them")


class Later:
    """A call in a thread of its own, and what came of it."""

    def __init__(self, client: httpx.Client, path: str, body: Any = None) -> None:
        self._answer: httpx.Response | None = None

        def ask() -> None:
            self._answer = client.post(path, json=body)

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()

    def answer(self) -> httpx.Response:
        self._thread.join(20)
        assert self._answer is not None, "no answer"
        return self._answer


class Askers:
    """Clients that ask all the time, each for a number of its own; whatever they were told is kept."""

    def __init__(self, serving: Serving, clients: int = 3) -> None:
        self._serving = serving
        self._is_over = threading.Event()
        self.answers: list[tuple[int, int, Any]] = []
        self._threads = [threading.Thread(target=self._ask, args=(place,), daemon=True) for place in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, place: int) -> None:
        number = place
        while not self._is_over.is_set():
            number += len(self._threads)
            answer = self._serving.http.post("/predictions/steps", json={"n": number})
            self.answers.append((number, answer.status_code, answer.json()))
            self._is_over.wait(0.02)  # or the clients would keep the new processes from the cores

    def more(self, count: int = 20) -> None:
        """Return when there are some more answers."""
        enough = len(self.answers) + count
        eventually(lambda: len(self.answers) >= enough, "more answers")

    def check(self) -> None:
        """Everybody got the right answer, and no fallback."""
        wrong = [each for each in self.answers if each[1] != 200 or each[2]["double"] != 2 * each[0]]
        assert not wrong, wrong[:3]

    def words_since(self, place: int) -> set[str]:
        return {answer["word"] for _, _, answer in self.answers[place:]}
