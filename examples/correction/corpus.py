"""Real recogniser output with the truth: reads the files and splits them so that no held-out sentence is trained on."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST = 40
"""Characters; the few longer lines (conversations cut badly) are left out of training and of the held-out sets."""

_FILES = {
    "aishell1_asr_1best.tsv.gz": "aishell1",
    "aishell3_asr_1best.tsv.gz": "aishell3",
    "more_asr_1best.tsv.gz": "",
}
_HELD_OUT = {"aishell3": (18, 20), "magicdata": (3, 3), "mandarin": (3, 3), "accented": (2, 3)}
"""Of a hundred truths: how many are for the test, how many for tuning. AISHELL-1 comes with a test set of its own."""


@dataclass(frozen=True)
class Line:
    """One utterance: what the recogniser wrote, and what was said."""

    source: str
    part: str
    recognised: str
    truth: str


def read_lines(folder: Path) -> list[Line]:
    """All lines, each with its part: test, dev or train.

    The part follows from the truth's hash, so the same sentence, spoken twice or recognised by two recognisers, is
    never on both sides; a train line whose truth is held out in another source is dropped.
    """
    lines = [line for file, source in _FILES.items() for line in _read(folder / file, source)]
    lines = [line for line in lines if 0 < len(line.recognised) <= LONGEST and 0 < len(line.truth) <= LONGEST]
    held_out = {line.truth for line in lines if line.part != "train"}
    tested = {line.truth for line in lines if line.part == "test"}
    seen: set[tuple[str, str]] = set()
    kept = []
    for line in lines:
        leaks = line.truth in (held_out if line.part == "train" else tested) and line.part != "test"
        pair = (line.recognised, line.truth)
        if not leaks and not (line.part == "train" and pair in seen):
            kept.append(line)
            seen.add(pair)
    return kept


def _read(file: Path, source: str) -> Iterator[Line]:
    if not file.is_file():
        raise SystemExit(f"{file} is not there; README.md says where the lines come from")
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        next(rows)
        for row in rows:
            first, recognised, truth = row.rstrip("\n").split("\t")
            yield Line(*_source_and_part(source, first, truth), recognised.replace(" ", ""), truth.replace(" ", ""))


def _source_and_part(source: str, first: str, truth: str) -> tuple[str, str]:
    place = int(hashlib.sha1(truth.encode()).hexdigest(), 16) % 100
    if source == "aishell1":
        if first == "test":
            return source, "test"
        return source, "dev" if place < 6 else "train"
    if not source:
        source = "accented" if "accented" in first else first.split("-", maxsplit=1)[0]
    test, dev = _HELD_OUT[source]
    return source, "test" if place < test else "dev" if place < test + dev else "train"
