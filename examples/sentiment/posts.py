"""Reads the two sets of labelled tweets: SemEval-2017 task 4 A and the airline tweets."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FEELINGS = ("negative", "neutral", "positive")
"""The three classes, in the order of the network's outputs."""

SEMEVAL, AIRLINE = "semeval2017_task4a.tsv.gz", "airline_tweets.tsv.gz"


class Post(NamedTuple):
    """One labelled post; what a set does not say is empty."""

    text: str
    feeling: int
    user: str = ""
    time: str = ""
    topic: str = ""


def semeval(folder: Path, split: str) -> list[Post]:
    """The posts of SemEval's `train` or `test` part."""
    return [Post(row["text"], FEELINGS.index(row["label"])) for row in _rows(folder / SEMEVAL) if row["split"] == split]


def airline(folder: Path) -> list[Post]:
    """Tweets to airlines of one week in February 2015, oldest first, as pseudonyms wrote them."""
    posts = [
        Post(row["text"], FEELINGS.index(row["label"]), row["user"], _iso(row["time"]), row["airline"])
        for row in _rows(folder / AIRLINE)
    ]
    return sorted(posts, key=lambda post: post.time)


def _iso(time: str) -> str:
    """16-02-2015 9.36 as 2015-02-16T09:36."""
    day, clock = time.split(" ")
    return "-".join(reversed(day.split("-"))) + "T" + clock.replace(".", ":").zfill(5)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise SystemExit(f"{path} is not there; README.md says where the tweets come from")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
