"""What the models really worked on: workers write down the uuid of every item, the benchmark counts repeats."""

import os
from collections import Counter
from pathlib import Path

# Names the folder for the lists; unset means that nothing is written.
SEEN_ENV = "BENCH_SEEN"


class Seen:
    """One list per process."""

    def __init__(self) -> None:
        folder = os.environ.get(SEEN_ENV)
        # Unbuffered and appending: slots of one worker write at the same time, and a killed worker loses nothing.
        self._file = open(Path(folder) / str(os.getpid()), "ab", buffering=0) if folder else None  # noqa: SIM115

    def add(self, uuid: str) -> None:
        """Note one item."""
        if self._file is not None:
            self._file.write(uuid.encode() + b"\n")


def count_seen(folder: Path) -> Counter[str]:
    """How often each uuid was worked on, over all processes; a worker's warm-up does not count."""
    seen: Counter[str] = Counter()
    for file in folder.iterdir():
        seen.update(file.read_text().split())
    seen.pop("example", None)
    return seen


def repeats(seen: Counter[str]) -> int:
    """How many items were worked on in vain because they had been before."""
    return seen.total() - len(seen)
