"""Asks a running server from several clients at once, each waiting for its answer, and says how fast and how well.

timebound serve examples/correction &
python examples/correction/load.py http://127.0.0.1:8000 --seconds 20
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from sentences import Alphabet

HERE = Path(__file__).parent
LIMIT_S = 1.0


def bodies(long_every: int) -> list[dict[str, Any]]:
    """One body per shipped line; every `long_every`-th says its sentence over and over, too long for the network."""
    alphabet = Alphabet(HERE / "characters.tsv", HERE / "phonemes.json")
    found = []
    for number, line in enumerate((HERE / "samples.tsv").read_text(encoding="utf-8").splitlines(), 1):
        candidates = line.split("\t")[3:]
        if long_every and number % long_every == 0:
            candidates = [text * 20 for text in candidates]
        phonemes = [alphabet.phonemes(text) for text in candidates]
        found.append({"sentence_list": candidates, "phoneme_sequence_list": phonemes, "esun_timestamp": 0, "retry": 2})
    return found


class Client(threading.Thread):
    """Sends one request after the other over one connection."""

    def __init__(self, address: str, questions: list[dict[str, Any]], first: int, end: float) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection(address)
        self._questions = itertools.islice(itertools.cycle(questions), first, None)
        self._end = end
        self.latencies: dict[str, list[float]] = {"short": [], "long": []}
        self.qualities: Counter[str] = Counter()
        self.changed = 0

    def run(self) -> None:
        while time.monotonic() < self._end:
            question = {**next(self._questions), "esun_uuid": str(uuid.uuid4())}
            body = json.dumps(question).encode()
            began = time.monotonic()
            self._connection.request("POST", "/inference", body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            answer = json.loads(response.read())
            kind = "long" if len(question["sentence_list"][0]) > 40 else "short"
            self.latencies[kind].append(time.monotonic() - began)
            is_right = response.status == 200 and answer["esun_uuid"] == question["esun_uuid"]
            self.qualities[response.headers.get("Timebound-Quality", "none") if is_right else "failed"] += 1
            self.changed += is_right and answer["answer"] != question["sentence_list"][0]


def wait_until_ready(address: str) -> None:
    """Return when the server says that it is ready; a minute is enough for any start."""
    end = time.monotonic() + 60
    while True:
        try:
            connection = http.client.HTTPConnection(address, timeout=1)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError as error:
            if time.monotonic() > end:
                raise SystemExit(f"no server answers at {address}: {error}") from None
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--long-every", type=int, default=0, help="make every so many-th sentence too long")
    options = parser.parse_args()
    questions = bodies(options.long_every)
    address = urllib.parse.urlsplit(options.url).netloc
    wait_until_ready(address)
    end = time.monotonic() + options.seconds
    clients = [Client(address, questions, 7 * number, end) for number in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    qualities = sum((client.qualities for client in clients), Counter[str]())
    total = qualities.total()
    late = sum(s > LIMIT_S for client in clients for kind in client.latencies.values() for s in kind)
    print(f"{options.clients} clients: {total / options.seconds:.1f} requests/s, {late} later than {LIMIT_S:g} s")
    print("  " + ", ".join(f"{count} {quality}" for quality, count in qualities.most_common()))
    print(f"  {sum(client.changed for client in clients)} sentences corrected")
    for kind in ("short", "long"):
        seconds = sorted(s for client in clients for s in client.latencies[kind])
        if seconds:
            places = [seconds[int(share * (len(seconds) - 1))] * 1000 for share in (0.5, 0.99, 1.0)]
            print(f"  {kind} sentences: p50 {places[0]:.1f} ms, p99 {places[1]:.1f} ms, longest {places[2]:.1f} ms")


if __name__ == "__main__":
    main()
