"""Tells what stood still during a load, and when answers were late: the notes of `pauses` beside what clients saw."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tools.pauses import LONG_S

_APART_S = 0.3
"""Troubles so far apart are of different clusters."""
_AROUND_S = 0.3
_MOST_CLUSTERS, _MOST_LINES, _MOST_STATES, _MOST_STACKS, _MOST_DEEP = 8, 12, 16, 4, 60
_FACTS = ("begins", "state", "counters", "stack")
"""What is noted and is no pause."""


class Trouble(NamedTuple):
    """An answer that was late, or none: when it was asked for, how long it took and what it said."""

    at: float
    seconds: float
    status: int
    code: str
    is_first: bool
    """Whether its connection was a new one."""


class Note(NamedTuple):
    """A line of a process's notes."""

    at: float
    who: str
    what: str
    seconds: float
    more: dict[str, Any]


@contextmanager
def bare_clocks(folder: Path) -> Iterator[None]:
    """Have them tick for the length of a `with` block."""
    process = subprocess.Popen([sys.executable, "-S", Path(__file__).with_name("pauses.py"), folder])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def clusters(troubles: Sequence[Trouble]) -> list[list[Trouble]]:
    """Those that came together, by when they were asked for."""
    made: list[list[Trouble]] = []
    for one in sorted(troubles):
        if not made or one.at - made[-1][-1].at > _APART_S:
            made.append([])
        made[-1].append(one)
    return made


def notes(folder: Path) -> list[Note]:
    """All that was noted, in order."""
    found = []
    for file in folder.glob("*.jsonl"):
        who = file.stem.partition("-")[0]
        for line in file.read_text().splitlines():
            with suppress(ValueError):  # it is being written
                told = json.loads(line)
                found.append(Note(told.pop("at"), who, told.pop("what"), told.pop("s"), told))
    return sorted(found, key=lambda note: note.at)


def longest_ms(found: Sequence[Note], since: float, until: float) -> dict[str, float]:
    """By whom, the longest pause between these moments; the clocks of all cores are one."""
    longest: defaultdict[str, float] = defaultdict(float)
    for note in found:
        who = "bare clock" if note.who.startswith("clock") else note.who
        is_within = note.what == "beat" and since < note.at and note.at - note.seconds < until
        if who != "machine":
            longest[who] = max(longest[who], note.seconds if is_within else 0.0)
    return {who: round(1e3 * seconds, 1) for who, seconds in sorted(longest.items())}


def tell(folder: Path, troubles: Sequence[Trouble], since: float, until: float) -> Iterator[str]:
    """Lines for people: what was late when, and what is noted around it; times in seconds since the load began."""
    found = [note for note in notes(folder) if since - _AROUND_S < note.at < until + _AROUND_S]
    grouped = clusters(troubles)
    for cluster in grouped[:_MOST_CLUSTERS]:
        yield _of_cluster(cluster, since)
        start, end = cluster[0].at - _AROUND_S, max(one.at + one.seconds for one in cluster) + _AROUND_S
        around = [note for note in found if start < note.at < end]
        longest = sorted((note for note in around if note.what not in _FACTS), key=lambda note: -note.seconds)
        states = [note for note in around if note.what == "state"]
        states = states[:: -(-len(states) // _MOST_STATES)] if states else []
        counters = [note for note in around if note.what == "counters"][:_MOST_STATES]
        yield from (
            _line(note, since)
            for note in sorted([*longest[:_MOST_LINES], *states, *counters], key=lambda note: note.at)
        )
    if len(grouped) > _MOST_CLUSTERS:
        yield f"and {len(grouped) - _MOST_CLUSTERS} times more"
    long = [note for note in found if note.what not in _FACTS and note.seconds > LONG_S]
    yield from (_line(note, since) for note in long[:_MOST_LINES])
    for note in [note for note in found if note.what == "stack"][:_MOST_STACKS]:
        yield f"{note.at - since:.2f} s {note.who}:"
        yield from (f"  {line}" for line in note.more["stack"].splitlines()[:_MOST_DEEP])


def _of_cluster(cluster: Sequence[Trouble], since: float) -> str:
    counts: defaultdict[str, int] = defaultdict(int)
    for one in cluster:
        counts[f"{one.status} {one.code}".strip()] += 1
    first, last = cluster[0].at - since, cluster[-1].at - since
    shortest, longest = min(one.seconds for one in cluster), max(one.seconds for one in cluster)
    fresh = sum(one.is_first for one in cluster)
    return (
        f"{len(cluster)} late or refused, asked {first:.2f} to {last:.2f} s after the start, took "
        f"{shortest * 1e3:.0f} to {longest * 1e3:.0f} ms, {fresh} on new connections: {dict(counts)}"
    )


def _line(note: Note, since: float) -> str:
    facts = " ".join(f"{name} {value}" for name, value in note.more.items() if value)
    return f"  {note.at - since:.2f} s {note.who}: {note.what} {note.seconds * 1e3:.0f} ms {facts}"
