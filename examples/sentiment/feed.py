"""Sends posts through a running server: the invented ones beside this file, or the airline tweets."""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asking import Answer, Server
from posts import FEELINGS, airline

SAMPLES = Path(__file__).parent / "samples.json"


def invented() -> list[dict[str, Any]]:
    """The posts that come with the example."""
    posts: list[dict[str, Any]] = json.loads(SAMPLES.read_text(encoding="utf-8"))
    return posts


def tweets(folder: Path) -> list[dict[str, Any]]:
    """The airline tweets as requests; the id is the place in order of time."""
    return [
        {"id": f"airline-{number:05}", "text": post.text, "user": post.user, "time": post.time, "topic": post.topic}
        for number, post in enumerate(airline(folder))
    ]


def send_all(url: str, posts: list[dict[str, Any]], connections: int) -> list[Answer | None]:
    """The answers in order, over several connections at once; None where a connection broke."""
    answers: list[Answer | None] = [None] * len(posts)
    turns: Iterator[tuple[int, dict[str, Any]]] = iter(enumerate(posts))
    lock = threading.Lock()

    def work() -> None:
        server = Server(url)
        while True:
            with lock:
                turn = next(turns, None)
            if turn is None:
                return
            try:
                answers[turn[0]] = server.send(turn[1])
            except (OSError, http.client.HTTPException):
                server = Server(url)  # the post is lost, the next may get through

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main() -> None:
    """Send, and say what came back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder with the tweets; without it the invented posts are sent")
    parser.add_argument("--connections", type=int, default=8, help="requests at a time (default: 8)")
    options = parser.parse_args()
    Server(options.url).check()
    posts = tweets(options.data) if options.data else invented()
    start = time.perf_counter()
    answers = send_all(options.url, posts, options.connections)
    seconds = time.perf_counter() - start
    print(f"{len(posts):,} posts in {seconds:.1f} s, {len(posts) / seconds:,.0f} a second")
    kinds = collections.Counter("lost" if a is None else f"{a.status} {a.quality} {a.source}".strip() for a in answers)
    for kind, count in kinds.most_common():
        print(f"  {count:6,}  {kind}")
    feelings = collections.Counter(a.body.get("feeling") for a in answers if a is not None)
    print("  " + ", ".join(f"{feelings[name]:,} {name}" for name in FEELINGS))
    if any(a is None or a.status != 200 for a in answers):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
