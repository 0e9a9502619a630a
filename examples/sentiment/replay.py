"""Measures how fast a kept answer comes back: posts are sent once, then asked for again.

With `--then`, the second asking goes to another server on the same Redis, which has never seen these posts: its first
answers come from Redis, those after that from its own memory.
"""

from __future__ import annotations

import argparse
import http.client
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from asking import Answer, Server
from feed import invented


def new_posts(count: int) -> list[dict[str, Any]]:
    """Invented texts under ids that no store can know; without users and times, so that no report counts them."""
    run = uuid.uuid4().hex[:8]
    samples = invented()
    return [{"id": f"replay-{run}-{n}", "text": samples[n % len(samples)]["text"]} for n in range(count)]


def measure(what: str, ask: Callable[[dict[str, Any]], Answer], posts: list[dict[str, Any]], source: str) -> float:
    """Ask for every post in turn and print the times; returns the median in seconds."""
    try:
        answers = [ask(post) for post in posts]
    except (OSError, http.client.HTTPException) as error:
        raise SystemExit(f"{what}: the server went away: {error}; see its log") from None
    wrong = [answer for answer in answers if answer.status != 200 or answer.source != source]
    if wrong:
        raise SystemExit(f"{what}: {len(wrong)} of {len(answers)} were not {source}; the first: {wrong[0]}")
    times = np.array([answer.seconds for answer in answers]) * 1e3
    middle, late = np.percentile(times, [50, 99])
    print(f"{what:45} p50 {middle:6.2f} ms   p99 {late:6.2f} ms")
    return float(middle) / 1e3


def main() -> None:
    """Compute, then replay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="that computes (default: %(default)s)")
    parser.add_argument("--then", help="the server that is asked again; the same unless given")
    parser.add_argument("--count", type=int, default=500, help="posts (default: 500)")
    options = parser.parse_args()
    first, then = Server(options.url), Server(options.then or options.url)
    for server in (first, then):
        server.check()
    posts = new_posts(options.count)
    measure("computed", first.send, posts, "computed")
    time.sleep(1)  # writes to the store happen after the answers
    where = "another server, from the store" if options.then else "the same server, from its memory"
    median = measure(f"sent again to {where}", then.send, posts, "stored")
    if options.then:
        measure("sent again, now from its memory", then.send, posts, "stored")
    measure("read by key", lambda post: then.read(post["id"]), posts, "stored")
    if median > 0.002:
        raise SystemExit("a kept answer took more than 2 ms at the median")


if __name__ == "__main__":
    main()
